"""Graphs whose nodes have types: ``HeteroData`` of PyG and npz with names of types to ``graph.h5`` and back."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_graphs
import torch
from click.testing import CliRunner
from helpers import check_refused

import hpcgnn
from hpcgnn import HpcgnnError
from hpcgnn.cli.partition import partition as partition_command
from hpcgnn.cli.show import show
from hpcgnn.data.graph_file import GraphFile, PartsFile
from hpcgnn.data.sealing import seal
from hpcgnn.data.whole_check import verify
from hpcgnn.sources.convert import convert

ARRAYS = small_graphs.with_types()
DATA = small_graphs.hetero_data(ARRAYS)


def sorted_edges(store: Any) -> list[tuple[float, ...]]:
    """The edges of a type in any order, with their values."""
    columns = [*store.edge_index, *(store.edge_attr.T if "edge_attr" in store else ())]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def partition(graph: Path, parts: Path, count: int) -> None:
    result = CliRunner().invoke(partition_command, [str(graph), str(parts), "--parts", str(count), "--force"])
    assert result.exit_code == 0, result.output


def check_same(found: Any, wanted: Any) -> None:
    assert (found.node_types, found.edge_types) == (wanted.node_types, wanted.edge_types)
    for name in wanted.node_types:
        assert found[name].num_nodes == wanted[name].num_nodes
        for key in ("x", "y", "train_mask", "val_mask", "test_mask"):
            assert (key in found[name]) == (key in wanted[name]), (name, key)
            assert key not in wanted[name] or torch.equal(found[name][key], wanted[name][key])
    for key in wanted.edge_types:
        assert sorted_edges(found[key]) == sorted_edges(wanted[key])


def test_hetero_data_come_back_as_they_were(tmp_path: Path) -> None:
    summary = hpcgnn.from_pyg(DATA, tmp_path / "g.h5")
    check_same(hpcgnn.to_pyg(tmp_path / "g.h5"), DATA)
    assert (summary.meta.node_types, summary.meta.edge_types) == (ARRAYS.node_types, ARRAYS.edge_types)
    small_graphs.write_graph(tmp_path / "defined.h5", ARRAYS)  # by the definition of the file, without a source
    with GraphFile(tmp_path / "g.h5") as one, GraphFile(tmp_path / "defined.h5") as other:
        assert one.digests == other.digests


def test_sets_of_links_of_types_come_back(tmp_path: Path) -> None:
    data, key = copy.deepcopy(DATA), DATA.edge_types[1]
    data[key].edge_split = torch.arange(data[key].num_edges) % 3
    hpcgnn.from_pyg(data, tmp_path / "g.h5")
    found = hpcgnn.to_pyg(tmp_path / "g.h5")
    ends, given = found[key].edge_index, data[key]
    told = sorted(zip(*ends.tolist(), found[key].edge_split.tolist(), strict=True))
    assert told == sorted(zip(*given.edge_index.tolist(), given.edge_split.tolist(), strict=True))
    assert not any(found[other].edge_split.any() for other in DATA.edge_types if other != key)


def test_features_by_type_are_those_of_a_sparse_matrix(tmp_path: Path) -> None:
    """Files of version 6 have one sparse matrix of the features of all types; the nodes' values are the same."""
    here = Path(__file__).parent
    with GraphFile(here / "graph-version-6.h5") as old, GraphFile(here / "graph-version-7.h5") as new:
        assert old.digests == new.digests
        assert ("nodes/x_indices" in old.rules, "nodes/x_indices" in new.rules) == (True, False)
        x = old.features(0, 60).toarray()
        for kind, found in enumerate(new.features(0, 60)):
            columns = slice(*new.meta.column_offsets[kind : kind + 2])
            assert np.array_equal(found.x, x[found.rows, columns])
    check_same(hpcgnn.to_pyg(here / "graph-version-6.h5"), DATA)
    check_same(hpcgnn.to_pyg(here / "graph-version-7.h5"), DATA)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_value_of_float16_takes_two_bytes(tmp_path: Path, parts: int) -> None:
    data = copy.deepcopy(DATA)
    for name in ("paper", "author"):
        data[name].x = data[name].x.half()
    hpcgnn.from_pyg(data, tmp_path / "g.h5")
    partition(tmp_path / "g.h5", tmp_path / "p.h5", parts)
    for name, reader in (("g.h5", GraphFile), ("p.h5", PartsFile)):
        with reader(tmp_path / name) as file:
            stored = file.file["nodes/x_data"]
            assert (stored.dtype, stored.size) == (np.float16, 30 * 5 + 20 * 7)
            file.verify(range(file.num_slabs))
            ids = file.ids(0, 60)
            for each, found in zip(("paper", "author"), file.features(0, 60), strict=False):
                first = {"paper": 0, "author": 30}[each]
                assert np.array_equal(found.x, data[each].x.float()[ids[found.rows] - first])
    data["author"].x = data["author"].x.float()  # of two widths, the larger one
    hpcgnn.from_pyg(data, tmp_path / "g.h5", force=True)
    assert GraphFile(tmp_path / "g.h5").meta.x_dtype == "float32"
    check_same(hpcgnn.to_pyg(tmp_path / "g.h5"), with_float(data))


def with_float(data: Any) -> Any:
    data["paper"].x = data["paper"].x.float()
    return data


def test_sparse_features_of_a_type_stay_sparse_unless_asked(tmp_path: Path) -> None:
    data = copy.deepcopy(DATA)
    data["author"].x = torch.nn.functional.one_hot(torch.arange(20) % 13, 13).float()
    meta = hpcgnn.from_pyg(data, tmp_path / "g.h5").meta
    assert (meta.x_by_type, meta.x_nnz) == (False, 30 * 5 + 20)
    check_same(hpcgnn.to_pyg(tmp_path / "g.h5"), data)
    meta = hpcgnn.from_pyg(data, tmp_path / "g.h5", features="dense", force=True).meta
    assert (meta.x_by_type, meta.x_nnz) == (True, 30 * 5 + 20 * 13)
    check_same(hpcgnn.to_pyg(tmp_path / "g.h5"), data)


@pytest.mark.parametrize("x_by_type", [True, False])
def test_row_normalised_features_of_types(tmp_path: Path, x_by_type: bool) -> None:
    data = copy.deepcopy(DATA)
    if not x_by_type:
        data["author"].x = data["author"].x.to_sparse_csr()
    assert hpcgnn.from_pyg(data, tmp_path / "g.h5", row_normalise=True).meta.x_by_type == x_by_type
    found = hpcgnn.to_pyg(tmp_path / "g.h5")
    for name in ("paper", "author"):
        x = DATA[name].x
        assert torch.allclose(found[name].x, x / x.abs().sum(1, keepdim=True))


def npz_of(data: Any, path: Path, **changes: Any) -> str:
    arrays = {f"{name}/num_nodes": np.array(data[name].num_nodes) for name in data.node_types}
    stores = [(name, data[name]) for name in data.node_types] + [("__".join(key), data[key]) for key in data.edge_types]
    for name, store in stores:
        arrays |= {f"{name}/{key}": value.numpy() for key, value in store.items() if isinstance(value, torch.Tensor)}
    np.savez(path, **{name: value for name, value in (arrays | changes).items() if value is not None})
    return f"npz:{path}"


def test_npz_has_the_names_of_types(tmp_path: Path) -> None:
    convert(npz_of(DATA, tmp_path / "g.npz"), tmp_path / "g.h5")
    back = hpcgnn.to_pyg(tmp_path / "g.h5")
    ordered = DATA.__class__()  # npz lists names in the order of the alphabet
    for name in back.node_types:
        ordered[name].update(DATA[name])
    for key in back.edge_types:
        ordered[key].update(DATA[key])
    check_same(back, ordered)


def test_several_types_may_have_labels_of_their_own_classes(tmp_path: Path) -> None:
    data = copy.deepcopy(DATA)
    data["author"].y = (torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    with pytest.raises(HpcgnnError, match="the labels of paper and author are of different kinds"):
        hpcgnn.from_pyg(data, tmp_path / "g.h5")
    data["author"].y = torch.arange(20) % 6
    meta = hpcgnn.from_pyg(data, tmp_path / "g.h5").meta
    assert ([each.classes for each in meta.node_types], meta.num_classes) == ([4, 6, 0, 0], 6)
    check_same(hpcgnn.to_pyg(tmp_path / "g.h5"), with_masks(data))


def with_masks(data: Any) -> Any:
    """Types with labels get masks, as soon as one type has them."""
    for name in ("train_mask", "val_mask", "test_mask"):
        data["author"][name] = torch.zeros(20, dtype=torch.bool)
    return data


def test_several_labels_a_node_of_one_type(tmp_path: Path) -> None:
    data = copy.deepcopy(DATA)
    data["paper"].y = (torch.rand(30, 3, generator=torch.Generator().manual_seed(0)) > 0.5).to(torch.uint8)
    meta = hpcgnn.from_pyg(data, tmp_path / "g.h5").meta
    assert (meta.task, meta.num_classes, meta.node_types[0].classes) == ("multi-label", 3, 3)
    check_same(hpcgnn.to_pyg(tmp_path / "g.h5"), data)


@pytest.mark.parametrize("columns", [1, 3])
def test_targets_of_regression_of_two_types(tmp_path: Path, columns: int) -> None:
    data = copy.deepcopy(DATA)
    for name, count, width in (("paper", 30, columns), ("author", 20, 1)):
        data[name].y = (torch.arange(count * width).reshape(count, width) / 8 + 0.1).squeeze(1)
    meta = hpcgnn.from_pyg(data, tmp_path / "g.h5").meta
    assert (meta.task, meta.num_classes) == ("regression", columns)
    found = hpcgnn.to_pyg(tmp_path / "g.h5")
    assert torch.equal(found["paper"].y, data["paper"].y)
    assert torch.equal(found["author"].y.reshape(20), data["author"].y)


def test_show_tells_what_each_type_has(tmp_path: Path) -> None:
    small_graphs.write_graph(tmp_path / "g.h5", ARRAYS)
    shown = CliRunner().invoke(show, [str(tmp_path / "g.h5")]).output
    lines = (
        "type paper +30 with 5 features, 4 classes",
        "type venue +1 with no features",
        "type 1, author__writes__paper +65",
    )
    assert all(re.search(line, shown) for line in lines)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"paper__cites__paper/edge_index": np.array([[0, 30], [1, 1]]), "paper__cites__paper/edge_attr": None},
            "paper__cites__paper: edge_index has node 30",
        ),
        (
            {"paper__cites__paper/edge_attr": np.zeros((9, 3))},
            r"paper__cites__paper: edge_attr is float64 of shape \(9, 3\)",
        ),
        ({"paper__cites__gone/edge_index": np.array([[0], [1]])}, "has the type of nodes 'gone'"),
        ({"paper__cites/edge_index": np.array([[0], [1]])}, "should be named SOURCE__RELATION__DESTINATION"),
        ({"term/num_nodes": None}, "term has neither x nor num_nodes|type of nodes 'term'"),
        ({"paper/x": np.zeros((29, 5))}, r"paper: x has shape \(29, 5\)"),
    ],
)
def test_wrong_types_are_named(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    check_refused(npz_of(DATA, tmp_path / "g.npz", **changes), tmp_path, sentence)


@pytest.mark.parametrize("options", [{"undirected": True}, {"labels": "random:3"}, {"features": "onehot"}])
def test_options_that_would_break_types_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    source = npz_of(DATA, tmp_path / "g.npz")
    check_refused(source, tmp_path, "ToUndirected|types of nodes", **options)


@pytest.mark.parametrize(
    ("name", "text"),
    [("node_types", '[["paper", 3, 12, 4]]'), ("node_types", '[["paper", "60", 12, 4]]'), ("edge_types", "[[0, 1]]")],
)
def test_damaged_types_are_told(tmp_path: Path, name: str, text: str) -> None:
    hpcgnn.from_pyg(DATA, tmp_path / "g.h5")
    with h5py.File(tmp_path / "g.h5", "r+") as file:
        file.attrs[name] = text
    with pytest.raises(HpcgnnError, match="an attribute is missing or wrong"):
        GraphFile(tmp_path / "g.h5")


def test_rows_of_another_width_than_the_types_are_damage(tmp_path: Path) -> None:
    hpcgnn.from_pyg(DATA, tmp_path / "g.h5")
    with h5py.File(tmp_path / "g.h5", "r+") as file:
        file["nodes/x_indptr"][1] += 1
    seal(tmp_path / "g.h5")
    with pytest.raises(HpcgnnError, match="nodes/x_indptr does not give each node the features of its type"):
        hpcgnn.to_pyg(tmp_path / "g.h5")
    with GraphFile(tmp_path / "g.h5") as reader, pytest.raises(HpcgnnError, match="features of its type"):
        verify(reader)
