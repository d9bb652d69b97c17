"""PyG's and networkx' graphs in memory, and GraphML, beyond what the matrix of sources draws: layouts, defaults, and refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from helpers import check_refused, converted, pairs, read, small_graph, weighted
from requires import require_module

import hpcgnn
from hpcgnn import HpcgnnError
from hpcgnn.data.schema import MASKS
from hpcgnn.sources.convert import convert

# -- PyG -----------------------------------------------------------------------------------------------------------------

EYE = torch.eye(6)
LAYOUTS = [
    EYE.to_sparse(),
    EYE.to_sparse_csc(),
    EYE.to(torch.bfloat16),
    EYE.clone().requires_grad_(),
    sp.coo_matrix(np.eye(6)),
]


@pytest.mark.parametrize("x", LAYOUTS, ids=["coo", "csc", "bfloat16", "gradient", "scipy"])
def test_features_of_any_layout(tmp_path, x):
    hpcgnn.from_pyg(SimpleNamespace(**small_graph(x=x)), tmp_path / "g.h5")
    assert np.array_equal(read(tmp_path / "g.h5")[2], np.eye(6))


def test_a_graph_of_edges_alone(tmp_path):
    data = SimpleNamespace(edge_index=torch.tensor([[0, 3], [1, 2]]))
    assert hpcgnn.from_pyg(data, tmp_path / "g.h5").meta.num_nodes == 4
    back = hpcgnn.to_pyg(tmp_path / "g.h5")
    assert sorted(back.keys()) == ["edge_index", "num_nodes"]
    assert pairs(back.edge_index.T.numpy()) == [(0, 1), (3, 2)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"edge_index": None}, "the PyG graph is no graph: it has neither edge_index nor"),
        ({"edge_index": torch.tensor([[0, 9], [1, 0]])}, "node ids run from 0 to 5"),
        ({"edge_index": torch.eye(3).to_sparse()}, "edge_index is a sparse tensor"),
        ({"x": "words"}, "x has dtype"),
        ({"num_nodes": 2.5}, "num_nodes is 2.5, but it should be a whole number"),
        ({"train_mask": torch.ones(6, 2, 2)}, r"train_mask has shape torch.Size|train_mask has shape \(6, 2, 2\)"),
    ],
)
def test_what_pyg_data_may_not_be(tmp_path, changes, sentence):
    with pytest.raises(HpcgnnError, match=sentence):
        hpcgnn.from_pyg(SimpleNamespace(**small_graph(**changes)), tmp_path / "g.h5")
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_a_graph_keeps_the_numbers_of_its_classes(tmp_path):
    """As in PyG, whose data sets give a part of a graph the classes of the whole, also more of them than nodes."""
    y, note = torch.tensor([5, 39, 5, 2, 39, -1]), "38 of 40 classes have no training node, and cannot be learned: 0,"
    written = hpcgnn.from_pyg(SimpleNamespace(**small_graph(y=y)), tmp_path / "g.h5")
    assert [note in each and "; 37 never appear in y" in each for each in written.notes] == [True]
    assert read(tmp_path / "g.h5")[3].tolist() == y.tolist()
    networkx = require_module("networkx")
    graph = networkx.path_graph(6)
    networkx.set_node_attributes(graph, dict(enumerate(y.tolist())), "y")
    (told,) = hpcgnn.from_networkx(graph, tmp_path / "nx.h5").notes
    assert told.startswith("37 of 40 classes have no node: 0, 1, 3, 4, 6, ...; 37 never appear in y")
    data = require_module("torch_geometric.data").HeteroData()
    data["paper"].num_nodes, data["paper"].y, data["venue"].num_nodes = 6, y, 2
    data["paper", "in", "venue"].edge_index = torch.tensor([[0, 3], [1, 0]])
    meta = hpcgnn.from_pyg(data, tmp_path / "typed.h5").meta
    assert [each.classes for each in meta.node_types] == [40, 0]


GRAPH = Path(__file__).parent / "graph-version-3.h5"


@pytest.mark.parametrize(
    ("package", "call", "advice"),
    [
        ("torch_geometric", lambda folder: convert("pyg:Cora", folder / "g.h5"), r"pip install 'hpcgnn\[pyg\]'"),
        ("torch_geometric.data", lambda folder: hpcgnn.to_pyg(GRAPH), r"pip install 'hpcgnn\[pyg\]'"),
        ("dgl", lambda folder: hpcgnn.to_dgl(GRAPH), "a version of torch that it was built for .*: install dgl"),
    ],
)
def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch, package, call, advice):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HpcgnnError, match=advice):
        call(tmp_path)


# -- networkx ------------------------------------------------------------------------------------------------------------


def small_networkx(kind="Graph"):
    graph = getattr(require_module("networkx"), kind)()
    for number, name in enumerate(("c", "a", "b", "d")):
        graph.add_node(name, x=[number, 2.5], y=number % 2, age=number, train=number < 2, val=number == 2)
    graph.add_edge("c", "a", weight=2.0)
    graph.add_edge("b", "a")
    graph.add_edge("d", "d", weight=0.5)
    return graph


@pytest.mark.parametrize("kind", ["Graph", "MultiGraph"])
def test_undirected_networkx_has_both_directions(tmp_path, kind):
    graph = small_networkx(kind)
    expected = [(0, 1, 2.0), (1, 0, 2.0), (2, 1, 1.0), (1, 2, 1.0), (3, 3, 0.5)]
    if kind == "MultiGraph":
        graph.add_edge("c", "a", weight=3.0)
        expected += [(0, 1, 3.0), (1, 0, 3.0)]
    del graph.nodes["d"]["y"]
    hpcgnn.from_networkx(graph, tmp_path / "g.h5", x="age")
    meta, edges, x, y, masks = read(tmp_path / "g.h5")
    assert weighted(edges) == sorted(expected)
    assert not meta.directed
    assert x.tolist() == [[0], [1], [2], [3]]
    assert y.tolist() == [0, 1, 0, -1]
    assert [np.flatnonzero(masks[mask]).tolist() for mask in MASKS] == [[0, 1], [2], []]


@pytest.mark.parametrize(
    ("change", "settings", "sentence"),
    [
        (lambda n: n["a"].pop("x"), {}, "node 'a' has no attribute 'x': give all nodes one, or none"),
        (lambda n: n["a"].update(x="big"), {}, "x of node 'a' is 'big', but it should be a number or a row of numbers"),
        (lambda n: n["b"].update(x=[1, 2, 3]), {}, "x of node 'b' has 3 values, that of the first node has 2"),
        (lambda n: n["b"].update(y="red"), {}, "the label 'red' should be a number"),
        (lambda n: n["b"].update(y=[1, 0]), {}, "labels have different widths"),
        (lambda n: n["b"].update(train="yes"), {}, "train of node 'b' is 'yes', but it should be True or False"),
        (lambda n: None, {"x": "size"}, "no node has the attribute 'size', which should be a feature"),
        (lambda n: None, {"y": "size"}, "no node has the attribute 'size', which should be its label"),
        (lambda n: None, {"y": 3}, "y must be str"),
        (lambda n: None, {"x": ["x", 3]}, "x must be the name of an attribute, or a list of names"),
        (lambda n: None, {"weight": "age"}, "no edge has the attribute 'age', which should be its weight"),
    ],
)
def test_what_attributes_may_not_be(tmp_path, change, settings, sentence):
    graph = small_networkx()
    change(graph.nodes)
    with pytest.raises(HpcgnnError, match=sentence):
        hpcgnn.from_networkx(graph, tmp_path / "g.h5", **settings)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_missing_or_not_read_are_told(tmp_path):
    graph = small_networkx()
    told = "the networkx graph: 1 of 3 edges have no attribute 'weight', and get weight 1"
    assert hpcgnn.from_networkx(graph, tmp_path / "g.h5").notes[0] == told
    for *_, values in graph.edges(data=True):
        values["value"] = values.pop("weight", 1.0)
    told = "the networkx graph: no edge has the attribute 'weight', so edges have no weights; not read: value"
    assert told in hpcgnn.from_networkx(graph, tmp_path / "g.h5", force=True).notes


def test_a_row_of_labels_that_is_missing_is_no_row_of_zeros(tmp_path):
    graph = small_networkx()
    for number, values in enumerate(graph.nodes.values()):
        values["y"] = [1, number % 2]
    del graph.nodes["b"]["y"]  # a validation node
    with pytest.raises(HpcgnnError, match="node 2 is in val_mask but has no label: its row of y is NaN"):
        hpcgnn.from_networkx(graph, tmp_path / "g.h5")
    hpcgnn.from_networkx(graph, tmp_path / "g.h5", split="random:0.5,0.5,0")
    assert not any(mask[2] for mask in read(tmp_path / "g.h5")[-1].values())


# -- GraphML -------------------------------------------------------------------------------------------------------------

GRAPHML = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="w" for="edge" attr.name="weight" attr.type="double"><default>2.5</default></key>
<key id="c" for="node" attr.name="y" attr.type="long"><default>1</default></key>
<key id="t" for="node" attr.name="train" attr.type="boolean"><default>true</default></key>
<graph edgedefault="directed"><node id="a"><data key="c">0</data></node><node id="b"/>
<node id="c"><data key="t">false</data></node>
<edge source="a" target="b"><data key="w">7</data></edge><edge source="b" target="c"/><edge source="c" target="a"/></graph>
</graphml>
"""
GEXF = """<gexf xmlns="http://www.gexf.net/1.2draft" version="1.2"><graph defaultedgetype="directed">
<attributes class="node"><attribute id="0" title="y" type="integer"><default>1</default></attribute>
<attribute id="1" title="train" type="boolean"><default>true</default></attribute></attributes>
<attributes class="edge"><attribute id="2" title="value" type="double"><default>2.5</default></attribute></attributes>
<nodes><node id="a" label="a"><attvalues><attvalue for="0" value="0"/></attvalues></node><node id="b" label="b"/>
<node id="c" label="c"><attvalues><attvalue for="1" value="false"/></attvalues></node></nodes>
<edges><edge id="0" source="a" target="b"><attvalues><attvalue for="2" value="7"/></attvalues></edge>
<edge id="1" source="b" target="c"/><edge id="2" source="c" target="a"/></edges></graph></gexf>
"""


@pytest.fixture
def graphml(tmp_path):
    """``graphml(old, new)``: write GraphML with this change, and return its source."""
    require_module("networkx")

    def write(old="", new=""):
        (tmp_path / "g.graphml").write_text(GRAPHML.replace(old, new) if old else GRAPHML)
        return f"graphml:{tmp_path / 'g.graphml'}"

    return write


@pytest.mark.parametrize("kind", ["graphml", "gexf"])
def test_declared_defaults_are_values(tmp_path, graphml, kind):
    if kind == "graphml":
        convert(graphml(), tmp_path / "g.h5")
    else:
        (tmp_path / "g.gexf").write_text(GEXF)
        graph = require_module("networkx").read_gexf(tmp_path / "g.gexf")
        hpcgnn.from_networkx(graph, tmp_path / "g.h5", weight="value")
    _, edges, _, y, masks = read(tmp_path / "g.h5")
    assert weighted(edges) == [(0, 1, 7.0), (1, 2, 2.5), (2, 0, 2.5)]
    assert y.tolist() == [0, 1, 1]
    assert masks["train_mask"].tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('key id="w" for="edge"', 'key id="w" for="all"', "key 'weight' has a default for both nodes and edges: write"),
        ('key id="w" for="edge"', 'key id="w"', "key 'weight' has a default for both nodes and edges: write two"),
        ("</graphml>", "<graph><node id='d'/></graph></graphml>", "holds 2 graphs, but hpcgnn"),
        ('<node id="b"/>', "<node id='b'><graph/></node>", "holds 2 graphs, but hpcgnn trains on one"),
        (GRAPHML, "", "cannot be read as GraphML|has 0 nodes|of 1 to"),
        (GRAPHML, "<graphml>", "cannot be read as GraphML|has 0 nodes|of 1 to"),
        (GRAPHML, "<html></html>", "cannot be read as GraphML|has 0 nodes|of 1 to"),
        (GRAPHML, "\x00\x01", "cannot be read as GraphML|has 0 nodes|of 1 to"),
        (GRAPHML, "<graphml><graph/></graphml>", "cannot be read as GraphML|has 0 nodes|of 1 to"),
    ],
)
def test_graphml_that_is_wrong_or_would_lose_something(tmp_path, graphml, old, new, sentence):
    check_refused(graphml(old, new), tmp_path, sentence)


@pytest.mark.parametrize("module", ["gzip", "bz2", "lzma"])
def test_graphml_may_be_compressed_under_any_name(tmp_path, module):
    require_module("networkx")
    for path in (tmp_path / "g.graphml", tmp_path / "g.graphml.gz"):
        path.write_bytes(pytest.importorskip(module).compress(GRAPHML.encode()))
        assert converted(f"graphml:{path}", tmp_path)[0].num_nodes == 3


def test_groups_of_yed_are_read(tmp_path, graphml):
    group = '<node id="b" yfiles.foldertype="group"><graph edgedefault="directed"><node id="d"/></graph></node>'
    assert converted(graphml('<node id="b"/>', group), tmp_path)[0].num_nodes == 4
