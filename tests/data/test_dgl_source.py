"""``dgl:FILE`` and ``to_dgl``. DGL 2.1.0 wrote dgl-2.1-*.bin and DGL 1.1.3 dgl-1.1-types.bin by ``dgl.save_graphs``; the unused
part of the header is 0."""

from __future__ import annotations

import sys
from pathlib import Path

import dgl_standin
import numpy as np
import pytest
import torch
from helpers import check_refused, converted, notes_of, pairs, weighted
from requires import EVERYTHING

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


@pytest.mark.parametrize(("name", "split"), [*zip(LAYOUTS, [0, 1, 0, 1, 0], strict=True)])
def test_what_dgl_saved_is_in_the_file(tmp_path, name, split):
    meta, edges, x, y, masks = converted(f"dgl:{file(name)}?split={split}", tmp_path)
    ends = DglReader(file("coo")).graph(0).edges[0].values["ends"]
    assert weighted(edges) == sorted((*pair, weight) for weight, pair in enumerate(ends.tolist(), 1))
    assert len({tuple(pair) for pair in ends.tolist()}) < len(edges)  # there are parallel edges
    assert np.array_equal(x, np.arange(20).reshape(10, 2) / 8)
    assert y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert [np.flatnonzero(masks[mask]).tolist() for mask in MASKS] == [list(nodes) for nodes in SPLITS[split]]
    assert (meta.num_nodes, meta.weighted) == (10, True)


def test_one_of_several_graphs_and_types_that_numpy_has_not(tmp_path):
    values = {"half": np.arange(8).reshape(4, 2), "brain": [[1], [-2.5], [3], [2**20]], "double": [[0], [1], [2], [3]]}
    for name, expected in values.items():
        meta, edges, x, *_ = converted(f"dgl:{file('two')}?graph=1&x={name}&nodes=4", tmp_path)
        assert np.array_equal(x, expected)
        assert edges.tolist() == [[0, 1], [1, 2], [2, 3]]
        assert meta.x_dtype == ("float16" if name == "half" else "float32")


def test_edges_take_the_values_that_the_user_names(tmp_path):
    split, unread = notes_of(f"dgl:{file('coo')}", tmp_path)
    assert "train_mask holds 2 splits, of which split 0 is taken: choose another with ?split=K" in split
    assert unread == f"{file('coo')}: values that are not read: ends (of edges)"
    converted(f"dgl:{file('coo')}?attr=ends", tmp_path)
    found = hpcgnn.to_pyg(tmp_path / "out.h5")
    assert torch.equal(found.edge_attr.long().T, found.edge_index)
    check_refused(f"dgl:{file('coo')}?type=ends", tmp_path, "edge_type is int64 of shape .30, 2., but it should be")
    content = bytearray(file("coo").read_bytes())
    content[8] = 1
    (tmp_path / "old.bin").write_bytes(content)
    check_refused(f"dgl:{tmp_path / 'old.bin'}", tmp_path, "version 1 of DGL's files, .* save it with a later DGL")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("two", "holds 2 graphs, but hpcgnn trains on one: choose it with .graph=K"),
        ("two?graph=2", "graph=2 was given, but there are 2, counted from 0"),
        ("kinds?x=size", "has no values named 'size'; it has none"),
        ("kinds?type=etype", "has types of edges of its own: leave type=etype out"),
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
@pytest.mark.parametrize("name", ["dgl-2.1-csc", "dgl-1.1-types"])
def test_no_damage_is_more_than_a_sentence(tmp_path, name):
    """A byte is changed, or the file is cut after it: it must be refused, or read with other values."""
    content = (HERE / f"{name}.bin").read_bytes()
    path = tmp_path / "damaged.bin"
    refused = 0
    places = [*range(32), *range(4096, len(content))][:: 1 if EVERYTHING else 6]
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        refused += is_refused(path)
    assert refused > len(places) / 4  # other bytes are values of features or weights
    for size in range(0, len(content), 7 if EVERYTHING else 60):
        path.write_bytes(content[:size])
        assert is_refused(path)


def is_refused(path: Path) -> bool:
    try:
        open_source(f"dgl:{path}", path.parent)
    except HpcgnnError:
        return True
    return False


TYPES = HERE / "dgl-1.1-types.bin"


def test_a_heterograph_that_dgl_saved_keeps_its_types(tmp_path):
    """DGL's file has the ends of edges once more, as the values ``ends`` and ``other`` of a program."""
    assert f"{TYPES}: values that are not read: ends, other" in notes_of(f"dgl:{TYPES}", tmp_path)
    found, stored = hpcgnn.to_pyg(tmp_path / "out.h5"), DglReader(TYPES).graph(0)
    assert {name: found[name].num_nodes for name in found.node_types} == {"author": 4, "paper": 7, "venue": 1}
    assert torch.equal(found["paper"].x, torch.arange(21).reshape(7, 3) / 8)
    assert found["paper"].y.tolist() == [0, 1, 2, 0, 1, 2, 0]
    for key, each in zip(found.edge_types, stored.edges, strict=True):
        assert key == (stored.node_types[each.source], each.name, stored.node_types[each.destination])
        assert pairs(found[key].edge_index.T.numpy()) == pairs(each.values["ends"])
    converted(f"dgl:{TYPES}?x=other&attr=ends", tmp_path)
    found = hpcgnn.to_pyg(tmp_path / "out.h5")
    assert ("x" in found["paper"], found["author"].x[:, 0].tolist()) == (False, [0, 1, 2, 3])
    for key in found.edge_types:
        assert found[key].num_edges == 0 or torch.equal(found[key].edge_attr.long().T, found[key].edge_index)


@pytest.mark.parametrize("source", [file("coo"), TYPES], ids=["plain", "types"])
def test_to_dgl_has_what_to_pyg_has(tmp_path, monkeypatch, source):
    convert(f"dgl:{source}", tmp_path / "g.h5")
    monkeypatch.setitem(sys.modules, "dgl", dgl_standin.module())
    graph, data = hpcgnn.to_dgl(tmp_path / "g.h5"), hpcgnn.to_pyg(tmp_path / "g.h5")
    of_nodes = {"feat": "x", "label": "y"} | {mask: mask for mask in MASKS}
    of_edges = {"weight": "edge_weight", "feat": "edge_attr"}

    def check(frame, store, names):
        wanted = {name: store[key] for name, key in names.items() if key in store}
        assert frame.keys() == wanted.keys()
        assert all(torch.equal(values, wanted[name]) for name, values in frame.items())

    if source == TYPES:
        assert graph.canonical_etypes == data.edge_types
        for name in data.node_types:
            assert graph.num_nodes(name) == data[name].num_nodes
            check(graph.nodes[name].data, data[name], of_nodes)
        for key in data.edge_types:
            assert torch.equal(torch.stack(graph.edges(etype=key)), data[key].edge_index)
            check(graph.edges[key].data, data[key], of_edges)
    else:
        assert graph.num_nodes() == data.num_nodes
        assert torch.equal(torch.stack(graph.edges()), data.edge_index)
        check(graph.ndata, data, of_nodes)
        check(graph.edata, data, of_edges)
