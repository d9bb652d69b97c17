"""Graphs whose nodes have types, beyond what the matrix of sources draws: how features are stored, older files, and refusals."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_graphs
import torch
from click.testing import CliRunner
from helpers import check_refused
from source_writers import Graph, npz

import hpcgnn
from hpcgnn import HpcgnnError
from hpcgnn.cli.show import show
from hpcgnn.data.graph_file import GraphFile, reader_of
from hpcgnn.data.sealing import seal
from hpcgnn.data.whole_check import verify
from hpcgnn.world.thread_world import on_threads

HERE = Path(__file__).parent
ARRAYS = small_graphs.with_types()
DATA = small_graphs.hetero_data(ARRAYS)


def test_features_by_type_are_those_of_a_sparse_matrix() -> None:
    """Files of version 6 have one sparse matrix of the features of all types; the nodes' values are the same."""
    with GraphFile(HERE / "graph-version-6.h5") as old, GraphFile(HERE / "graph-version-7.h5") as new:
        assert old.digests == new.digests
        assert ("nodes/x_indices" in old.rules, "nodes/x_indices" in new.rules) == (True, False)
        x = old.features(0, 60).toarray()
        for kind, found in enumerate(new.features(0, 60)):
            columns = slice(*new.meta.column_offsets[kind : kind + 2])
            assert np.array_equal(found.x, x[found.rows, columns])


def test_how_features_of_types_are_stored(tmp_path: Path) -> None:
    """A value of float16 takes two bytes if those of all types do; sparse features stay sparse unless asked."""
    data, options = copy.deepcopy(DATA), {"force": True}
    data["paper"].x = data["paper"].x.half()
    assert hpcgnn.from_pyg(data, tmp_path / "g.h5").meta.x_dtype == "float32"
    data["author"].x = data["author"].x.half()
    hpcgnn.from_pyg(data, tmp_path / "g.h5", **options)
    with h5py.File(tmp_path / "g.h5") as file:
        assert (file["nodes/x_data"].dtype, file["nodes/x_data"].size) == (np.float16, 30 * 5 + 20 * 7)
    data["author"].x = torch.nn.functional.one_hot(torch.arange(20) % 13, 13).float()
    for asked, is_by_type, values in ({}, False, 20), ({"features": "dense"}, True, 20 * 13):
        meta = hpcgnn.from_pyg(data, tmp_path / "g.h5", **options, **asked).meta
        assert (meta.x_by_type, meta.x_nnz) == (is_by_type, 30 * 5 + values)


def test_show_tells_what_each_type_has(tmp_path: Path) -> None:
    small_graphs.write_graph(tmp_path / "g.h5", ARRAYS)
    shown = CliRunner().invoke(show, [str(tmp_path / "g.h5")]).output
    lines = (
        "node_types: paper: count +30 ",
        "node_types: paper: columns +5 ",
        "node_types: paper: classes +4 ",
        "node_types: venue: columns +0 ",
        "edge_types: author__writes__paper +65 ",
    )
    assert all(re.search(line, shown) for line in lines)


def small_npz(folder: Path, changes: dict[str, Any]) -> str:
    """A small graph of two types as npz, with other arrays."""
    nodes = {
        "author": {"num_nodes": 2, "y": np.array([0, 1])},
        "paper": {"x": np.ones((3, 5)), "y": np.array([0, 1, 1])},
    }
    edges = {("paper", "cites", "paper"): {"edge_index": np.array([[0, 1], [1, 2]]), "edge_attr": np.ones((2, 3))}}
    source = npz(Graph(nodes, edges), folder)
    with np.load(folder / "g.npz") as arrays:
        changed = {name: value for name, value in {**arrays, **changes}.items() if value is not None}
    np.savez(folder / "g.npz", **changed)
    return source


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"paper__cites__paper/edge_index": np.array([[0, 3], [1, 1]])}, "paper__cites__paper: edge_index has node 3"),
        ({"paper__cites__paper/edge_attr": np.zeros((9, 3))}, r"paper__cites__paper: edge_attr is .* shape \(9, 3\)"),
        ({"paper__cites__gone/edge_index": np.array([[0], [1]])}, "has the type of nodes 'gone'"),
        ({"paper__cites/edge_index": np.array([[0], [1]])}, "should be named SOURCE__RELATION__DESTINATION"),
        ({"author/num_nodes": None}, "author has neither x nor num_nodes"),
        ({"author/num_nodes": np.arange(2)}, "author: num_nodes should be one whole number"),
        ({"paper/num_nodes": np.array(4)}, r"paper: x has shape \(3, 5\)"),
        ({"author/y": np.array([0.5, 0.25])}, "the labels of author and paper are of different kinds"),
        ({"author/y": None, "author/val_mask": np.ones(2, bool)}, "author has masks but no labels"),
        ({"paper/train_mask": np.ones(3, bool)}, "paper: split=1 was given, but there is one split"),
        ({}, "split=1 was given, but no type of nodes has masks"),
    ],
)
def test_wrong_types_are_named(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    query = "?split=1" if "split=1" in sentence else ""
    check_refused(small_npz(tmp_path, changes) + query, tmp_path, sentence)


@pytest.mark.parametrize("options", [{"labels": "random:3"}, {"features": "onehot"}])
def test_options_that_would_break_types_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    check_refused(small_npz(tmp_path, {}), tmp_path, "has types of nodes, for which", **options)


@pytest.mark.parametrize(
    ("name", "text"),
    [("node_types", '[["paper", 3, 12, 4]]'), ("node_types", '[["paper", "60", 12, 4]]'), ("edge_types", "[[0, 1]]")],
)
def test_damaged_types_are_told(tmp_path: Path, name: str, text: str) -> None:
    small_graphs.write_graph(tmp_path / "g.h5", ARRAYS)
    with h5py.File(tmp_path / "g.h5", "r+") as file:
        file.attrs[name] = text
    with pytest.raises(HpcgnnError, match="an attribute is missing or wrong"):
        GraphFile(tmp_path / "g.h5")


def columns_swapped(types: list) -> None:
    types[0][2], types[1][2] = types[1][2], types[0][2]


def changed(name: str, change: Callable[[list], object]) -> Callable[[h5py.File], None]:
    """A change of the list of records in an attribute."""

    def apply(file: h5py.File) -> None:
        records = json.loads(file.attrs[name])
        change(records)
        file.attrs[name] = json.dumps(records)

    return apply


# Damage of a file with new checksums, and words of the sentence.
TABLES: dict[str, tuple[Callable[[h5py.File], object], str]] = {
    "another destination": (
        changed("edge_types", lambda types: types[1].__setitem__(2, 3)),
        "edges/type are not the types",
    ),
    "another source": (changed("edge_types", lambda types: types[1].__setitem__(0, 3)), "edges/type are not the types"),
    "no types of edges": (
        lambda file: file.attrs.update(edge_types="[]"),
        "edge_types are not types of edges between node_types",
    ),
    "no types of nodes": (
        lambda file: file.attrs.update(node_types="[]"),
        "edge_types are not types of edges between node_types",
    ),
    "fewer types of edges": (lambda file: file.attrs.update(num_edge_types=5), "num_edge_types is 5, but .* have 6"),
    "50 columns": (
        changed("edge_types", lambda types: types[0].__setitem__(3, 50)),
        "num_edge_features is 3, but .* have 50",
    ),
    "fewer columns": (
        changed("edge_types", lambda types: types[1].__setitem__(3, 1)),
        "edges/attr has more features of an edge",
    ),
    "no columns": (
        changed("edge_types", lambda types: [each.__setitem__(3, 0) for each in types]),
        "num_edge_features is 3",
    ),
    "no features of edges": (
        lambda file: file.attrs.update(num_edge_features=0),
        "num_edge_features is 0, but .* have 3",
    ),
    "all types 0": (
        lambda file: file["edges/type"].write_direct(np.zeros(file["edges/type"].shape, np.int32)),
        "edges/type are",
    ),
    "10^9 classes": (
        changed("node_types", lambda types: types[0].__setitem__(3, 10**9)),
        "num_classes is 4, but .* have 10000",
    ),
    "other labels": (
        changed("node_types", lambda types: (types[0].__setitem__(3, 0), types[1].__setitem__(3, 4))),
        "nodes/y has",
    ),
    "swapped columns": (
        changed("node_types", columns_swapped),
        "nodes/x_ind(ices has columns|ptr does not give)|x_nnz is 290",
    ),
    "one name": (changed("node_types", lambda types: types[2].__setitem__(0, "paper")), "two types have the same name"),
    "a node more": (
        changed("node_types", lambda types: (types[1].__setitem__(1, 21), types[3].__setitem__(1, 8))),
        "damaged",
    ),
    "no masks": (lambda file: file.attrs.update(has_masks=False), "says? that it has no nodes/train_mask"),
    "no labels": (lambda file: file.attrs.update(task="none", num_classes=0), "num_classes is 0|has no nodes/y"),
}


@pytest.fixture(scope="module", params=[True, False], ids=["by type", "sparse"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """graph.h5 and parts.h5 of a graph with types."""
    folder = tmp_path_factory.mktemp("whole")
    arrays = small_graphs.with_types(x_by_type=request.param)
    small_graphs.write_graph(folder / "graph.h5", arrays)
    small_graphs.in_parts(folder / "parts.h5", arrays, 3)
    return folder / "graph.h5", folder / "parts.h5"


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_types_are_compared_with_the_data(whole: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    """Files of which a program has changed the tables, and has made new checksums."""
    damage, words = TABLES[name]

    def loaded(path: Path) -> None:
        on_threads(3, lambda world: hpcgnn.load(path, world, any_ranks=True).edge_attr)

    for source, load in zip(whole, (hpcgnn.to_pyg, loaded), strict=True):
        path = Path(shutil.copy(source, tmp_path))
        with h5py.File(path, "r+") as file:
            damage(file)
        with contextlib.suppress(HpcgnnError):
            seal(path)
        with pytest.raises(HpcgnnError, match=words), reader_of(path)(path) as reader:
            verify(reader)
        with pytest.raises(HpcgnnError, match=words):
            load(path)


def test_rows_of_another_width_than_the_types_are_damage(tmp_path: Path) -> None:
    hpcgnn.from_pyg(DATA, tmp_path / "g.h5")
    with h5py.File(tmp_path / "g.h5", "r+") as file:
        file["nodes/x_indptr"][1] += 1
    seal(tmp_path / "g.h5")
    with pytest.raises(HpcgnnError, match="nodes/x_indptr does not give each node the features of its type"):
        hpcgnn.to_pyg(tmp_path / "g.h5")
    with GraphFile(tmp_path / "g.h5") as reader, pytest.raises(HpcgnnError, match="features of its type"):
        verify(reader)
