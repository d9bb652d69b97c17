"""``dgl:FILE`` and ``to_dgl``. DGL 2.1.0 wrote dgl-2.1-*.bin by ``dgl.save_graphs``; the unused part of the header is 0."""

from __future__ import annotations

import sys
from pathlib import Path

import dgl_standin
import numpy as np
import pytest
import torch
from helpers import check_refused, check_same, converted, notes_of, read, weighted

import hpcgnn
from hpcgnn import HpcgnnError
from hpcgnn.data.schema import MASKS
from hpcgnn.sources import open_source
from hpcgnn.sources.convert import convert
from hpcgnn.sources.dgl import DglReader

HERE = Path(__file__).parent
LAYOUTS = ("coo", "csr", "csc", "several", "int32")
SPLITS = [[range(5), [5], range(6, 10)], [range(5, 10), [4], range(4)]]


def file(name) -> Path:
    return HERE / f"dgl-2.1-{name}.bin"


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_dgl_saved_is_in_the_file(tmp_path, name, split):
    meta, edges, x, y, masks = converted(f"dgl:{file(name)}?split={split}", tmp_path)
    ends = DglReader(file("coo")).graph(0).edge_values["ends"]
    assert weighted(edges) == sorted((*pair, weight) for weight, pair in enumerate(ends.tolist(), 1))
    assert len({tuple(pair) for pair in ends.tolist()}) < len(edges)  # there are parallel edges
    assert np.array_equal(x, np.arange(20).reshape(10, 2) / 8)
    assert y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert [np.flatnonzero(masks[mask]).tolist() for mask in MASKS] == [list(nodes) for nodes in SPLITS[split]]
    assert (meta.num_nodes, meta.weighted) == (10, True)


def test_types_and_features_of_edges_that_dgl_saved(tmp_path, monkeypatch):
    """``dgl.to_homogeneous`` names types _TYPE; features of edges are usually named feat."""
    graph = DglReader(file("coo")).graph(0)
    kinds, feat = np.arange(30) % 3, np.arange(60).reshape(30, 2) / 4
    graph.edge_values.update(_TYPE=kinds, feat=feat, other=kinds)
    monkeypatch.setattr(DglReader, "graph", lambda *_: graph)
    converted(f"dgl:{file('coo')}", tmp_path)
    found = hpcgnn.to_pyg(tmp_path / "out.h5")
    numbers = found.edge_weight.int().numpy() - 1  # weight w of edge k is k + 1
    assert np.array_equal(found.edge_type, kinds[numbers])
    assert np.array_equal(found.edge_attr, feat[numbers])
    converted(f"dgl:{file('coo')}?type=other&attr=ends", tmp_path)
    assert np.array_equal(hpcgnn.to_pyg(tmp_path / "out.h5").edge_attr, graph.edge_values["ends"][numbers])
    check_refused(f"dgl:{file('coo')}?type=feat", tmp_path, "edge_type is float64 of shape .30, 2., but it should be")


def test_what_dgl_saved_and_is_not_read_is_told(tmp_path):
    split, unread = notes_of(f"dgl:{file('coo')}", tmp_path)
    assert "train_mask holds 2 splits, of which split 0 is taken: choose another with ?split=K" in split
    assert unread == f"{file('coo')}: values that are not read: ends (of edges)"


def test_one_of_several_graphs_and_types_that_numpy_has_not(tmp_path):
    values = {"half": np.arange(8).reshape(4, 2), "brain": [[1], [-2.5], [3], [2**20]], "double": [[0], [1], [2], [3]]}
    for name, expected in values.items():
        meta, edges, x, *_ = converted(f"dgl:{file('two')}?graph=1&x={name}&nodes=4", tmp_path)
        assert np.array_equal(x, expected)
        assert edges.tolist() == [[0, 1], [1, 2], [2, 3]]
        assert meta.x_dtype == ("float16" if name == "half" else "float32")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("two", "holds 2 graphs, but hpcgnn trains on one: choose it with .graph=K"),
        ("two?graph=2", "graph=2 was given, but there are 2, counted from 0"),
        (
            "kinds",
            "not a plain graph .it has the kinds of nodes item, user, and of edges buys.: hpcgnn trains on graphs with",
        ),
        ("coo?x=features", "has no values named 'features'; it has feat, label, test_mask, train_mask, val_mask"),
        ("coo?weight=no", "has no values named 'no'; it has ends, w"),
        ("coo?split=2", "split=2 was given, but there are 2"),
        ("coo?weight=ends", "edge_weight should hold one number for each of the 30 edges"),
        ("coo?nodes=11", "nodes=11 was given, but there are 10"),
        ("coo?rows=1", "dgl has no option 'rows'"),
    ],
)
def test_refusals_of_dgl_files(tmp_path, source, sentence):
    name, mark, options = source.partition("?")
    check_refused(f"dgl:{file(name)}{mark}{options}", tmp_path, sentence)


@pytest.mark.slow
def test_no_damage_is_more_than_a_sentence(tmp_path):
    """Each byte in turn is changed, and the file is cut after each: it must be refused, or read with other values."""
    content = file("csc").read_bytes()
    path = tmp_path / "damaged.bin"
    refused = 0
    places = [*range(32), *range(4096, len(content))]
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        refused += is_refused(path)
    assert refused > 1000  # other bytes are values of features or weights
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        assert is_refused(path)


def is_refused(path: Path) -> bool:
    try:
        open_source(f"dgl:{path}", path.parent)
    except HpcgnnError:
        return True
    return False


def test_a_file_before_version_2(tmp_path):
    content = bytearray(file("coo").read_bytes())
    content[8] = 1
    (tmp_path / "old.bin").write_bytes(content)
    check_refused(f"dgl:{tmp_path / 'old.bin'}", tmp_path, "version 1 of DGL's files, .* save it with a later DGL")


def test_to_dgl(tmp_path, monkeypatch):
    convert(f"dgl:{file('coo')}", tmp_path / "g.h5")
    monkeypatch.setitem(sys.modules, "dgl", dgl_standin.module())
    graph = hpcgnn.to_dgl(tmp_path / "g.h5")
    _, edges, *_ = content = read(tmp_path / "g.h5")
    assert isinstance(graph, dgl_standin.DGLGraph)
    assert graph.num_nodes() == 10
    assert np.array_equal(torch.stack((*graph.edges(), graph.edata["weight"]), 1), edges)
    assert sorted(graph.ndata) == ["feat", "label", "test_mask", "train_mask", "val_mask"]
    check_same(content, graph.ndata["feat"], graph.ndata["label"], graph.ndata)
