"""Features of 16 bits: both files keep them unchanged, and all computations use float32."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import check_refused

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import GraphFile, PartsFile
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.partitioner import partition
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.world.thread_world import on_threads

HERE = Path(__file__).parent
NODES, COLUMNS, PARTS = 3000, 96, 3


@pytest.fixture(scope="module")
def x():
    """(N, F) float16 values, including the largest one; float32 holds them exactly."""
    x = np.random.default_rng(0).standard_normal((NODES, COLUMNS)).astype(np.float16)
    x[0, 0], x[1, 1], x[2, 2] = np.finfo(np.float16).max, -np.finfo(np.float16).max, np.finfo(np.float16).tiny
    return x


def write(folder, x, **options):
    """``graph.npz`` with these features, and ``graph.h5``."""
    folder.mkdir(exist_ok=True)
    edge_index = np.random.default_rng(1).integers(0, NODES, (2, 6000))
    masks = {name: np.arange(NODES) % 3 == k for k, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    np.savez(folder / "graph.npz", num_nodes=NODES, edge_index=edge_index, x=x, y=np.arange(NODES) % 4, **masks)
    convert(f"npz:{folder / 'graph.npz'}", folder / "graph.h5", ConvertOptions(**options))
    return folder / "graph.h5"


def parted(graph, path):
    options = PartitionOptions(PARTS, method="random", plan="none")
    on_threads(1, lambda world: partition(world, graph, path, options))
    return path


def test_both_files_hold_16_bits_and_readers_give_the_same_values_in_32(tmp_path, x):
    graphs = [write(tmp_path / "half", x), write(tmp_path / "full", x.astype(np.float32))]
    parts = [parted(graph, graph.with_name("parts.h5")) for graph in graphs]
    for narrow, wide in (graphs, parts):
        saved = wide.stat().st_size - narrow.stat().st_size
        assert abs(saved - 2 * x.size) < 4096
        with h5py.File(narrow) as file:
            assert file["nodes/x"].dtype == np.float16
    with GraphFile(graphs[0]) as graph:
        graph.verify(range(graph.num_slabs))
        found = graph.features(5, NODES)
        assert found.dtype == np.float32
        assert np.array_equal(found, x[5:].astype(np.float32))
        assert graph.features(7, 7).shape == (0, COLUMNS)
    for half, full in zip(*(on_threads(PARTS, partial(hpcgnn.load, path)) for path in parts), strict=True):
        assert half.x.dtype == full.x.dtype
        assert np.array_equal(half.x.numpy(), full.x.numpy())
        assert np.array_equal(half.x.numpy(), x[half.original_ids].astype(np.float32))


def test_normalised_rows_are_of_32_bits(tmp_path, x):
    """The sum of many large values in a row may exceed float16."""
    x = x.copy()
    x[3] = 60000
    with GraphFile(write(tmp_path, x, row_normalise=True)) as file:
        assert file.meta.x_dtype == "float32"
        assert np.allclose(np.abs(file.features(0, NODES)).sum(axis=1), 1, atol=1e-5)


def test_a_value_that_is_no_number_is_refused(tmp_path, x):
    parts = parted(write(tmp_path, x), tmp_path / "parts.h5")
    with h5py.File(parts, "r+") as file:
        file["nodes/x"][4, 5] = np.inf
    with PartsFile(parts) as file, pytest.raises(HpcgnnError, match=r"nodes/x holds inf in row 4, column 5"):
        file.features(0, NODES)
    bad = x.copy()
    bad[8, 1] = np.nan
    np.savez(tmp_path / "bad.npz", num_nodes=NODES, edge_index=np.zeros((2, 1), int), x=bad)
    check_refused(f"npz:{tmp_path / 'bad.npz'}", tmp_path, "x of node 8 is nan in column 1")


@pytest.mark.parametrize("told", ["float32", "float64"])
def test_a_file_that_says_another_type_is_refused(tmp_path, x, told):
    graph = write(tmp_path, x)
    with h5py.File(graph, "r+") as file:
        file.attrs["x_dtype"] = told
    with pytest.raises(HpcgnnError, match=r"x_dtype|nodes/x"):
        GraphFile(graph)


def test_graphs_of_version_2_are_partitioned(tmp_path):
    """They were written before features of 16 bits existed; their attributes, which have a checksum, do not contain the type."""
    with GraphFile(HERE / "graph-version-2.h5") as graph:
        x = graph.features(0, graph.meta.num_nodes)
    assert x.dtype == np.float32
    with PartsFile(parted(HERE / "graph-version-2.h5", tmp_path / "parts.h5")) as parts:
        ids = parts.read("nodes/original_ids", 0, parts.meta.num_nodes)
        assert np.array_equal(parts.features(0, parts.meta.num_nodes), x[ids])
    with PartsFile(HERE / "parts-version-2.h5") as parts:
        assert parts.checksums is not None
        assert parts.features(0, parts.meta.num_nodes).shape == x.shape
