"""Digests of a graph's data: functions of the graph alone, each of which changes with its own data."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import small_graphs
from small_graphs import Arrays

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import plan_store, sealing, whole_check
from hpcgnn.data.digests import ATTRIBUTES, differences
from hpcgnn.data.graph_file import GraphFile, PartsFile, reader_of
from hpcgnn.data.sealing import seal
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.partitioner import partition
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.world.thread_world import on_threads

HERE = Path(__file__).parent
GRAPH = small_graphs.with_typed_edges(small_graphs.random_multigraph(weighted=True))
GRAPH.edge_split = np.random.default_rng(3).integers(0, 4, GRAPH.edge_index.shape[1]).astype(np.uint8)


def data_in(path: Path) -> dict[str, str]:
    with reader_of(path)(path) as reader:
        return reader.data


def data_as_graph(path: Path, graph: Arrays) -> dict[str, str]:
    small_graphs.write_graph(path, graph)
    return data_in(path)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    small_graphs.write_graph(tmp_path / "graph.h5", GRAPH)
    return tmp_path / "graph.h5"


def test_a_partition_takes_the_digests_over(graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "parts.h5"
    on_threads(3, lambda world: partition(world, graph, path, PartitionOptions(num_parts=4, method="random")))
    assert list(data_in(graph)) == ["nodes", "edges", "features", "labels", "splits"]
    assert data_in(path) == data_in(graph)
    seal(path)  # computes them from the arrays in part order
    assert data_in(path) == data_in(graph)
    with PartsFile(path) as parts:
        assert plan_store.stored_strategies(parts) == ["hybrid"]


def test_digests_do_not_depend_on_pieces_or_the_order_of_edges(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "_BYTES_AT_A_TIME", 1)
    order = np.random.default_rng(5).permutation(GRAPH.edge_index.shape[1])
    values = {name: getattr(GRAPH, name)[order] for name in ("weight", "edge_type", "edge_attr", "edge_split")}
    turned = replace(GRAPH, edge_index=GRAPH.edge_index[:, order], **values)
    assert data_as_graph(tmp_path / "turned.h5", turned) == data_in(graph)


def test_the_same_values_have_one_digest_however_they_are_stored(tmp_path: Path) -> None:
    x = np.where(GRAPH.x > 0, GRAPH.x, 0).astype(np.float16).astype(np.float32)
    expected = data_as_graph(tmp_path / "dense.h5", replace(GRAPH, x=x))
    assert data_as_graph(tmp_path / "sparse.h5", replace(GRAPH, x=sp.csr_matrix(x))) == expected
    np.savez(tmp_path / "half.npz", num_nodes=len(x), edge_index=GRAPH.edge_index, x=x.astype(np.float16), y=GRAPH.y)
    convert(f"npz:{tmp_path}/half.npz", tmp_path / "half.h5", ConvertOptions(split="random:0.5,0.2,0.2"))
    with GraphFile(tmp_path / "half.h5") as half:
        assert half.meta.x_dtype == "float16"
    assert differences(data_in(tmp_path / "half.h5"), expected) == "edges and splits"  # without weights, another split


def changed(change: Callable[[Arrays], object]) -> Arrays:
    other = copy.deepcopy(GRAPH)
    change(other)
    return other


def set_to(array: np.ndarray, place: object, value: object) -> None:
    array[place] = value


CHANGES: dict[str, tuple[Callable[[Arrays], object], str]] = {
    "a source": (lambda g: set_to(g.edge_index, (0, 9), 1), "edges"),
    "a direction": (lambda g: set_to(g.edge_index, (slice(None), 9), g.edge_index[::-1, 9].copy()), "edges"),
    "a weight": (lambda g: set_to(g.weight, 3, 0.25), "edges"),
    "two weights": (lambda g: set_to(g.weight, [3, 4], g.weight[[4, 3]]), "edges"),
    "a type": (lambda g: set_to(g.edge_type, 3, (g.edge_type[3] + 1) % 4), "edges"),
    "two features of an edge": (lambda g: set_to(g.edge_attr, (3, [0, 1]), g.edge_attr[3, [1, 0]]), "edges"),
    "features of two edges": (lambda g: set_to(g.edge_attr, [3, 4], g.edge_attr[[4, 3]]), "edges"),
    "a set of links": (lambda g: set_to(g.edge_split, 3, (g.edge_split[3] + 1) % 4), "edges"),
    "no sets of links": (lambda g: setattr(g, "edge_split", None), "edges"),
    "a feature": (lambda g: set_to(g.x, (7, 2), 5), "features"),
    "two rows": (lambda g: set_to(g.x, [7, 8], g.x[[8, 7]]), "features"),
    "two columns": (lambda g: set_to(g.x, (slice(None), [0, 1]), g.x[:, [1, 0]]), "features"),
    "a label": (lambda g: set_to(g.y, 5, (g.y[5] + 1) % 4), "labels"),
    "no label": (lambda g: set_to(g.y, 5, -1), "labels"),
    "a split": (lambda g: set_to(g.masks["test_mask"], slice(None), g.masks["val_mask"]), "splits"),
    "several": (
        lambda g: (set_to(g.x, 7, 0), set_to(g.y, 5, -1), set_to(g.weight, 0, 9)),
        "edges, features and labels",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_named_and_no_other_data(graph: Path, tmp_path: Path, name: str) -> None:
    change, words = CHANGES[name]
    assert differences(data_as_graph(tmp_path / "other.h5", changed(change)), data_in(graph)) == words


def test_a_plan_of_other_edges_is_not_used(tmp_path: Path) -> None:
    """A program changes an edge inside a part and seals the file, whose name for its parts stays."""
    path = small_graphs.in_parts(tmp_path / "parts.h5", GRAPH, 2, ["hybrid", "post"])
    with h5py.File(path, "r+") as file:
        first = file["nodes/original_ids"][0]
        sources = file["edges/indices"][:]
        file["edges/indices"][np.flatnonzero(sources == first)[0]] = 1
    seal(path)
    with PartsFile(path) as parts:
        assert whole_check.verify(parts)["plans_out_of_use"] == ["hybrid", "post"]
    plan_store.store_plans(path, ["hybrid"])
    with PartsFile(path) as parts:
        assert plan_store.stored_strategies(parts) == ["hybrid"]


@pytest.mark.parametrize(
    "name", ["graph-version-4.h5", "parts-version-4.h5", "graph-version-5.h5", "parts-version-5.h5"]
)
def test_digests_of_other_data_are_found(tmp_path: Path, name: str) -> None:
    path = shutil.copy(HERE / name, tmp_path)
    with reader_of(path)(path, "r+") as file:
        file.attributes["labels_digest"] ^= 1
        file.file.attrs["labels_digest"] = np.uint64(file.attributes["labels_digest"])
        sealing.store(file, file.checksums)
    with reader_of(path)(path) as file, pytest.raises(HpcgnnError, match="its digests are not those of its data"):
        whole_check.verify(file)


def test_files_without_digests_tell_their_nodes_alone(tmp_path: Path) -> None:
    old = data_in(HERE / "graph-version-3.h5")
    assert old == data_in(HERE / "parts-version-1.h5") == {"nodes": "12"}
    assert not differences(old, data_in(HERE / "graph-version-4.h5"))
    assert differences(old, {"nodes": "13", "edges": "0"}) == "nodes"
    path = tmp_path / "parts.h5"
    on_threads(
        2, lambda world: partition(world, HERE / "graph-version-3.h5", path, PartitionOptions(2, method="random"))
    )
    assert data_in(path) == old
    with h5py.File(HERE / "graph-version-4.h5") as file:
        assert set(ATTRIBUTES) <= file.attrs.keys()
