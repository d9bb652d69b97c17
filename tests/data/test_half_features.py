"""Features of 16 bits: both files keep them unchanged, and all computations use float32."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcgnn
from hpcgnn.comm.thread_world import on_threads
from hpcgnn.data.convert import ConvertOptions, convert
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.errors import HpcgnnError
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.partitioner import partition

HERE = Path(__file__).parent
NODES, COLUMNS, PARTS = 3000, 96, 3
OPTIONS = PartitionOptions(PARTS, method="random", plan="none")


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    """(N, F) float16 values, including the largest one; float32 holds them exactly."""
    x = np.random.default_rng(0).standard_normal((NODES, COLUMNS)).astype(np.float16)
    x[0, 0], x[1, 1], x[2, 2] = np.finfo(np.float16).max, -np.finfo(np.float16).max, np.finfo(np.float16).tiny
    return x


def write(path: Path, x: np.ndarray) -> None:
    edge_index = np.random.default_rng(1).integers(0, NODES, (2, 6000))
    y = np.arange(NODES) % 4
    mask = np.arange(NODES) % 3
    masks = {name: mask == number for number, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    np.savez(path, num_nodes=NODES, edge_index=edge_index, x=x, y=y, **masks)


def made(folder: Path, x: np.ndarray, **options: object) -> tuple[Path, Path]:
    """The files ``graph.h5`` and ``parts.h5``."""
    folder.mkdir(exist_ok=True)
    write(folder / "graph.npz", x)
    convert(f"npz:{folder / 'graph.npz'}", folder / "graph.h5", ConvertOptions(**options))
    on_threads(1, lambda world: partition(world, folder / "graph.h5", folder / "parts.h5", OPTIONS))
    return folder / "graph.h5", folder / "parts.h5"


def test_both_files_hold_16_bits_and_readers_give_the_same_values_in_32(tmp_path: Path, x: np.ndarray) -> None:
    half, full = made(tmp_path / "half", x), made(tmp_path / "full", x.astype(np.float32))
    for narrow, wide in zip(half, full, strict=True):
        saved = wide.stat().st_size - narrow.stat().st_size
        assert abs(saved - 2 * x.size) < 4096
        with h5py.File(narrow) as file:
            assert file["nodes/x"].dtype == np.float16
    with GraphFile(half[0]) as graph:
        graph.verify(range(graph.num_slabs))
        found = graph.features(5, NODES)
        assert found.dtype == np.float32
        assert np.array_equal(found, x[5:].astype(np.float32))
        assert graph.features(7, 7).shape == (0, COLUMNS)
    with PartsFile(half[1]) as parts:
        ids = parts.read("nodes/original_ids", 0, NODES)
        for part in range(PARTS):
            first, last = parts.part(part)
            assert np.array_equal(parts.features(first, last, part), x[ids[first:last]].astype(np.float32))


def test_a_loaded_part_is_the_one_of_32_bits(tmp_path: Path, x: np.ndarray) -> None:
    loaded = [
        on_threads(PARTS, partial(hpcgnn.load, path))
        for path in (made(tmp_path / "half", x)[1], made(tmp_path / "full", x.astype(np.float32))[1])
    ]
    for half, full in zip(*loaded, strict=True):
        assert half.x.dtype == full.x.dtype
        assert np.array_equal(half.x.numpy(), full.x.numpy())


def test_normalised_rows_are_of_32_bits(tmp_path: Path, x: np.ndarray) -> None:
    """The sum of many large values in a row may exceed float16."""
    x = x.copy()
    x[3] = 60000
    graph, _ = made(tmp_path / "half", x, row_normalise=True)
    with GraphFile(graph) as file:
        assert file.meta.x_dtype == "float32"
        assert np.allclose(np.abs(file.features(0, NODES)).sum(axis=1), 1, atol=1e-5)


def test_a_value_that_is_no_number_is_refused(tmp_path: Path, x: np.ndarray) -> None:
    _, parts = made(tmp_path / "half", x)
    with h5py.File(parts, "r+") as file:
        file["nodes/x"][4, 5] = np.inf
    with PartsFile(parts) as file, pytest.raises(HpcgnnError, match=r"nodes/x holds inf in row 4, column 5"):
        file.features(0, NODES)
    bad = x.copy()
    bad[8, 1] = np.nan
    write(tmp_path / "bad.npz", bad)
    with pytest.raises(HpcgnnError, match="x of node 8 is nan in column 1"):
        convert(f"npz:{tmp_path / 'bad.npz'}", tmp_path / "bad.h5")


@pytest.mark.parametrize("told", ["float32", "float64"])
def test_a_file_that_says_another_type_is_refused(tmp_path: Path, x: np.ndarray, told: str) -> None:
    graph, _ = made(tmp_path / "half", x)
    with h5py.File(graph, "r+") as file:
        file.attrs["x_dtype"] = told
    with pytest.raises(HpcgnnError, match=r"x_dtype|nodes/x"):
        GraphFile(graph)


def test_files_of_version_2_are_read(tmp_path: Path) -> None:
    """They were written before features of 16 bits existed; their attributes, which have a checksum, do not contain the type."""
    with GraphFile(HERE / "graph-version-2.h5") as graph:
        graph.verify(range(graph.num_slabs))
        x = graph.features(0, graph.meta.num_nodes)
        assert x.dtype == np.float32
    path = Path(shutil.copy(HERE / "parts-version-2.h5", tmp_path / "parts.h5"))
    with PartsFile(path) as parts:
        assert parts.checksums is not None
        parts.verify(range(parts.num_slabs))
        assert parts.features(0, parts.meta.num_nodes).shape == x.shape
    again = tmp_path / "again.h5"
    options = PartitionOptions(2, method="block", plan="none")
    on_threads(1, lambda world: partition(world, HERE / "graph-version-2.h5", again, options))
    with PartsFile(again) as parts:
        assert np.array_equal(parts.features(0, parts.meta.num_nodes), x)
