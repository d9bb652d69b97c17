"""One property of all sources with all that a graph can have: what was written comes out of ``graph.h5``, and out of the ranks of
``parts.h5``, or the combination is refused in a sentence.

A *cell* (tests/matrix.py) has a source, the properties of a graph, and options of the conversion. Properties for which a format
has no place are left out (:data:`HOLDS`). Graphs are compared as arrays of the whole graph (:class:`Flat`), which follow from
what was drawn in plain numpy.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from helpers import read
from matrix import Cell, cells, seed
from rank_pool import ThreadPool
from source_writers import WRITERS, Graph, Key

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import graph_file
from hpcgnn.data.schema import MASKS
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.sources import base, ogb_typed, text, webgraph
from hpcgnn.sources import convert as conversion
from hpcgnn.sources.convert import ConvertOptions
from hpcgnn.world import World
from hpcgnn.world.thread_world import one_rank

# The first value of each axis is the default.
AXES = {
    "source": tuple(WRITERS),
    "edges": ("any", "both ways", "repeated", "none"),
    "weight": ("none", "float", "whole"),
    "types": ("none", "numbers", "words"),
    "attr": ("none", "float32", "float16"),
    "sets": ("none", "links"),
    "nodes": ("plain", "typed", "named"),
    "x": ("dense", "none", "float64", "float16", "sparse"),
    "y": ("classes", "none", "several", "real", "reals"),
    "masks": ("bool", "none", "numbers", "splits"),
    "option": ("none", "undirected", "drop_duplicates", "self_loops", "row_normalise", "dense", "inverse"),
    "parts": (2, 1, 3, 4),
    "ranks": ("one each", "others"),
    "order": ("none", "degree"),
    "blocks": ("whole", "small"),
}
_ALL = {"edges": AXES["edges"], "weight": AXES["weight"], "types": ("none", "numbers"), "attr": AXES["attr"],
        "sets": AXES["sets"], "nodes": ("plain", "typed"), "x": AXES["x"], "y": AXES["y"], "masks": AXES["masks"]}  # fmt: skip
_NAMED = {"weight": AXES["weight"], "types": AXES["types"], "attr": ("none", "float32"), "nodes": ("plain", "named"),
          "option": ("inverse",)}  # fmt: skip
_EDGES = {"edges": AXES["edges"]}
# What each format has a place for, beside the options that all have; of other axes, the value is "none", or the first one here.
HOLDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "npz": _ALL,
    "pyg": _ALL,
    "attributes": _ALL | {"nodes": ("plain",)},
    "dgl": _ALL | {"sets": ("none",), "x": ("dense", "none", "float64", "float16"), "masks": ("bool", "none", "splits")},
    "networkx": _EDGES | {"weight": AXES["weight"], "x": ("dense", "none"), "y": AXES["y"], "masks": ("bool", "none")},
    "graphml": _EDGES | {"weight": AXES["weight"], "x": ("dense", "none"), "y": ("classes", "none", "real"),
                         "masks": ("bool", "none")},
    "ogb": {"edges": ("any", "repeated"), "nodes": ("typed",), "x": ("dense", "none"), "y": ("classes", "none"),
            "masks": ("bool", "none"), "option": ("inverse",)},
    "edgelist": _EDGES | _NAMED,
    "arclist": _EDGES | _NAMED,
    "parquet": _EDGES | _NAMED,
    "folder": {"edges": ("any", "repeated"), **_NAMED, "sets": ("links",)},
    "rdf": {"edges": ("any", "repeated"), "types": ("words",), "nodes": ("named",), "y": ("none", "classes"),
            "masks": ("none", "bool"), "option": ("inverse",)},
    "mtx": _EDGES | {"weight": AXES["weight"]},
    "metis": {"edges": ("both ways", "none"), "weight": ("none", "whole")},
    "binedges": _EDGES,
    "bvgraph": {"edges": ("any", "both ways", "none")},
}  # fmt: skip


def settled(cell: Cell) -> Cell:
    """The cell with values for which its source has a place, and which go together."""
    holds, options = HOLDS[cell.source], AXES["option"][:-1] + HOLDS[cell.source].get("option", ())
    for axis in ("edges", "weight", "types", "attr", "sets", "nodes", "x", "y", "masks"):
        held = holds.get(axis, ("plain",) if axis == "nodes" else ("none",))
        cell = cell if cell.values[axis] in held else cell.changed(**{axis: held[0]})
    if cell.option not in options:
        cell = cell.changed(option="none")
    if cell.nodes == "typed":
        cell = cell.changed(types="none")  # types of edges have names
    if cell.edges == "none" and (cell.nodes == "named" or cell.source in ("edgelist", "arclist", "parquet")):
        cell = cell.changed(edges="any")  # a table without rows has no columns
    if cell.edges == "none" and cell.source in ("networkx", "graphml"):
        cell = cell.changed(weight="none")  # an attribute of no edge
    if cell.types == "words" and cell.nodes != "named":
        cell = cell.changed(types="numbers")
    if cell.y == "none" or (cell.source == "rdf" and cell.masks == "none"):
        cell = cell.changed(y="none", masks="none")
    return cell


# Labels of several types of nodes, which few draws have.
_RARE = [{"source": source, "nodes": "typed", "y": y, "masks": "splits"}
         for source in ("npz", "pyg") for y in ("several", "reals")]  # fmt: skip
_DEFAULTS = {name: values[0] for name, values in AXES.items()}
_DRAWN = [*cells(AXES, 128), *(Cell(number, seed(), _DEFAULTS | rare) for number, rare in enumerate(_RARE, 10**6))]
CELLS = [settled(cell) for cell in _DRAWN]


def refusal_of(cell: Cell) -> str:
    """A part of the sentence with which a cell is refused; empty for one that is accepted."""
    has_own = cell.types != "none" or cell.attr != "none" or cell.nodes == "typed"
    if cell.nodes == "typed" and cell.option == "undirected":
        return r"whose reverses are types of their own: apply PyG's T.ToUndirected"
    if cell.option == "self_loops" and has_own:
        return "has types or features of edges, which --self-loops cannot give"
    if cell.option == "row_normalise" and cell.x == "none":
        return "has no features, so that --row-normalise has nothing to do"
    if cell.option == "inverse" and cell.types == "none" and cell.nodes != "typed":
        return "has no types of edges, so leave inverse=yes out"
    return ""


# -- graphs ------------------------------------------------------------------------------------------------------------

_CLASSES, _KINDS = 3, 3
_NODES: dict[bool, dict[str, tuple[int, int]]] = {  # number of nodes and of features by type
    False: {"": (13, 3)},
    True: {"author": (5, 2), "paper": (8, 3), "venue": (1, 0)},
}
_KEYS: dict[bool, tuple[Key, ...]] = {
    False: (("", "", ""),),
    True: (("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "in", "venue")),
}


def drawn(cell: Cell) -> Graph:
    """The graph of a cell. The last two nodes of most types have no edges."""
    rng, is_typed = np.random.default_rng(cell.draws.randrange(2**32)), cell.nodes == "typed"
    counts = _NODES[is_typed]
    edges = {key: edges_of(cell, key, (counts[key[0]][0], counts[key[2]][0]), rng) for key in _KEYS[is_typed]}
    nodes = {name: nodes_of(cell, name, *of_type, rng) for name, of_type in counts.items()}
    if cell.source == "rdf" and cell.y != "none":
        own, here = nodes[""], np.isin(np.arange(13), edges["", "", ""]["edge_index"])
        for mask in MASKS:
            own[mask] &= here
        labelled = np.any([own[mask] for mask in MASKS], axis=0)  # the others are in no table
        own["y"][~labelled] = -1
        own["y"][labelled] = np.unique(own["y"][labelled], return_inverse=True)[1]
    return Graph(nodes, edges)


def edges_of(cell: Cell, key: Key, counts: tuple[int, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    ends = [rng.integers(0, max(count - 2, 1), 16) for count in counts]
    index = np.unique(np.stack(ends), axis=1)
    index = index[:, rng.permutation(index.shape[1])]
    if cell.source == "metis":  # which has two entries for each edge
        index = index[:, index[0] != index[1]]
    if cell.edges == "both ways" and key[0] == key[2]:
        index = np.unique(np.concatenate((index, index[::-1]), axis=1), axis=1)
    elif cell.edges == "repeated":
        index = np.concatenate((index, index[:, :4], index[:, :2]), axis=1)
    elif cell.edges == "none":
        index = index[:, :0]
    size, values = index.shape[1], {"edge_index": index}
    if cell.weight != "none" and key[1] != "in":
        weight = rng.integers(1, 9, size) if cell.edges != "both ways" else index.sum(axis=0)
        values["edge_weight"] = weight if cell.weight == "whole" else (weight / 8).astype(np.float32)
    if cell.types != "none":
        values["edge_type"] = (np.arange(size) + rng.integers(3)) % _KINDS
    if cell.attr != "none" and key[1] != "in":
        values["edge_attr"] = (rng.integers(-9, 9, (size, 2)) / 4).astype(cell.attr)
    if cell.sets != "none":
        values["edge_split"] = rng.integers(0, 3 if cell.source == "folder" else 4, size).astype(np.uint8)
    return values


def nodes_of(cell: Cell, name: str, count: int, columns: int, rng: np.random.Generator) -> dict[str, Any]:
    values: dict[str, Any] = {"num_nodes": count}
    if cell.x != "none" and columns:
        x = rng.integers(-9, 9, (count, columns)) / 4
        if cell.x == "sparse" and (cell.nodes != "typed" or cell.source != "npz"):
            values["x"] = sp.csr_matrix(np.where(np.abs(x) > 1, x, 0).astype(np.float32))
        else:
            values["x"] = x.astype(cell.x if cell.x.startswith("float") else np.float32)
    if cell.y == "none" or name == "venue" or (name == "author" and cell.number % 2):
        return values
    order, is_real = rng.permutation(count), cell.y in ("real", "reals")
    if cell.y == "classes":
        y = np.where(np.arange(count) % 5 == 4, -1, np.arange(count) % _CLASSES)
    elif cell.y == "several":
        y = rng.integers(0, 2, (count, columns)).astype(np.uint8)
    else:
        y = (rng.integers(0, 40, (count, 2)) / 8 + 1 / 16).astype(np.float32)
        y[::5] = np.nan
        y = y[:, 0] if cell.y == "real" or name == "author" else y
    values["y"] = y[order]
    known = np.isfinite(values["y"]).reshape(count, -1).all(axis=1) if is_real else np.ones(count, bool)
    known &= (values["y"] >= 0) if cell.y == "classes" else True
    for number, mask in enumerate(MASKS if cell.masks != "none" else ()):
        values[mask] = known & (np.cumsum(known) % 4 == (number + 1) % 4)
    return values


def as_given(cell: Cell, graph: Graph) -> Graph:
    """The graph with masks, and types of edges, in the form of the cell."""

    def form(values: dict[str, Any]) -> dict[str, Any]:
        masks = {name: values[name] for name in MASKS if name in values}
        if cell.masks == "numbers":
            masks = {f"{name.removesuffix('_mask')}_idx": np.flatnonzero(mask) for name, mask in masks.items()}
        elif cell.masks == "splits":
            masks = {name: np.stack((~mask, mask), axis=1) for name, mask in masks.items()}
        return {name: value for name, value in values.items() if name not in MASKS} | masks

    edges = graph.edges
    if cell.types == "words" and cell.source != "rdf":  # in which types are words in any case
        edges = {key: values | {"edge_type": np.array([f"kind {kind}" for kind in values["edge_type"]])}
                 for key, values in edges.items()}  # fmt: skip
    return Graph({name: form(values) for name, values in graph.nodes.items()}, edges)


# -- the normal form ---------------------------------------------------------------------------------------------------


@dataclass
class Flat:
    """A whole graph, in which types follow each other. edges: sorted rows of both ends, type, weight, set and features.
    columns: the names of the values that the graph has. of_nodes: x, y and masks (N, ...), if it has them."""

    types: list[Any]
    edges: np.ndarray
    columns: list[str]
    of_nodes: dict[str, np.ndarray] = field(default_factory=dict)


def dense(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return (value.to_dense() if value.layout != torch.strided else value).numpy()
    return value.toarray() if sp.issparse(value) else np.asarray(value)


def flat(graph: Graph) -> Flat:
    """The normal form of a graph by types."""
    counts = {name: int(values["num_nodes"]) for name, values in graph.nodes.items()}
    first = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
    total, of_nodes = sum(counts.values()), {}
    blocks = [
        dense(values["x"]) if "x" in values else np.empty((values["num_nodes"], 0)) for values in graph.nodes.values()
    ]
    if any(block.shape[1] for block in blocks):
        of_nodes["x"] = sp.block_diag([block.astype(np.float32) for block in blocks]).toarray()
    labels = {name: dense(values["y"]) for name, values in graph.nodes.items() if "y" in values}
    for name, y in labels.items():
        none = np.nan if y.dtype.kind == "f" else -1 if y.ndim == 1 else 0
        shape = max((each.shape[1:] for each in labels.values()), default=())
        own, columns = slice(first[name], first[name] + counts[name]), slice(*y.shape[1:] or (1,))
        of_nodes.setdefault("y", np.full((total, *shape), none, np.float64))
        of_nodes["y"].reshape(total, -1)[own, columns] = y.reshape(len(y), -1)
        for mask in (mask for mask in MASKS if mask in graph.nodes[name]):
            of_nodes.setdefault(mask, np.zeros(total, bool))[own] = dense(graph.nodes[name][mask])
    own = {name for values in graph.edges.values() for name in values} - {"edge_index"}
    width = max(
        (dense(values["edge_attr"]).shape[1] for values in graph.edges.values() if "edge_attr" in values), default=0
    )
    rows = []
    for number, (key, values) in enumerate(graph.edges.items()):
        ends = dense(values["edge_index"]).T + np.array([first[key[0]], first[key[2]]])
        rows.append(rows_of(ends, values, number, width))
    names = own | {"edge_type"} if graph.is_typed else own
    types = [*counts.items(), *graph.edges] if graph.is_typed else [total]
    return Flat(types, in_order(np.concatenate(rows)), sorted(names), of_nodes)


def rows_of(ends: np.ndarray, values: dict[str, Any], kind: int = 0, width: int = 0) -> np.ndarray:
    """(E, columns): both ends, type, weight, set and features of edges, with the usual values of those that the graph lacks."""
    size = len(ends)
    usual = {
        "type": np.full(size, kind),
        "weight": np.ones(size),
        "split": np.zeros(size),
        "attr": np.zeros((size, width)),
    }
    given = {name: values.get(f"edge_{name}") for name in usual}
    return np.column_stack((ends, *(usual[name] if each is None else dense(each) for name, each in given.items())))


def in_order(edges: np.ndarray) -> np.ndarray:
    edges = np.asarray(edges, np.float64)
    return edges[np.lexsort(edges.T[::-1])]


def merged(edges: np.ndarray) -> np.ndarray:
    """Edges (E, columns) with equal ends and types as one, whose weights and features are the sums."""
    found: dict[tuple[float, ...], np.ndarray] = {}
    for row in edges:
        if (before := found.get((*row[:3],))) is not None:
            row = np.concatenate((row[:3], [row[3] + before[3], min(row[4], before[4])], row[5:] + before[5:]))
        found[(*row[:3],)] = row
    return np.array([*found.values()]).reshape(-1, edges.shape[1])


def reverse(edges: np.ndarray) -> np.ndarray:
    """The reverses of edges; those of links that are held out have the set 3."""
    return np.column_stack((edges[:, 1::-1], edges[:, 2:4], np.where(edges[:, 4] > 0, 3, 0), edges[:, 5:]))


def changed(cell: Cell, wanted: Flat) -> Flat:
    """The graph after the option of the cell."""
    edges, x = wanted.edges, wanted.of_nodes.get("x")
    if cell.option in ("undirected", "drop_duplicates"):
        edges = merged(np.concatenate((edges, reverse(edges))) if cell.option == "undirected" else edges)
    if "edge_weight" not in wanted.columns:
        edges[:, 3] = 1
    if cell.option == "self_loops":
        nodes = edges[:, :2].astype(int).flat if cell.nodes == "named" else range(wanted.types[0])
        missing = sorted({*nodes} - {*edges[edges[:, 0] == edges[:, 1], 0].astype(int).tolist()})
        edges = np.concatenate((edges, [[node, node, 0, 1, 0] for node in missing])) if missing else edges
    if cell.option == "inverse":
        edges = np.concatenate((edges, reverse(edges)))
        edges[:, 2] = 2 * edges[:, 2] + (np.arange(len(edges)) >= len(edges) // 2)
        keys = [each for each in wanted.types if len(each) == 3] if cell.nodes == "typed" else []
        both = [way for key in keys for way in (key, (key[2], f"rev_{key[1]}", key[0]))]
        wanted.types = [each for each in wanted.types if each not in keys] + both
    if cell.option == "row_normalise" and x is not None:
        sums = np.abs(x).sum(axis=1, keepdims=True)
        wanted.of_nodes["x"] = x / np.where(sums == 0, 1, sums)
    wanted.edges = in_order(edges)
    return wanted


# -- where a graph is looked at ----------------------------------------------------------------------------------------


def in_memory(path: Path) -> Flat:
    """The graph as ``to_pyg`` gives it."""
    data = hpcgnn.to_pyg(path)
    if hasattr(data, "node_types"):
        nodes = {name: dict(data[name].items()) for name in data.node_types}
        return flat(Graph(nodes, {key: dict(data[key].items()) for key in data.edge_types}))
    values = dict(data.to_dict())
    edges = {name: values.pop(name) for name in [*values] if name.startswith("edge_")}
    return flat(Graph({"": values}, {("", "", ""): edges}))


def on_rank(world: World, path: Path, order: str) -> Flat:
    """The graph as a rank has it; x, y and masks by original ids, with 0 in other rows."""
    graph = hpcgnn.load(path, world, any_ranks=True).reordered(order)
    assert torch.equal(torch.cat((graph.original_ids, graph.halo_ids))[graph.edge_index], graph.original_edge_index)
    assert torch.equal(
        graph.edge_ids, graph.original_edge_index[0] * graph.meta.num_nodes + graph.original_edge_index[1]
    )
    meta, ids, of_nodes = graph.meta, graph.original_ids.numpy(), {}
    for name, values in {"x": graph.x, "y": graph.y, **graph.masks}.items():
        if values is not None:
            rows = dense(values)
            of_nodes[name] = np.zeros((meta.num_nodes, *rows.shape[1:]))
            of_nodes[name][ids] = rows
    of_nodes["owned"] = np.isin(np.arange(meta.num_nodes), ids).astype(float)
    ends = graph.original_edge_index.numpy().T
    values = {f"edge_{name}": getattr(graph, f"edge_{name}") for name in ("type", "weight", "split", "attr")}
    types = [*((each.name, each.count) for each in meta.node_types), *meta.edge_type_names]
    has = sorted(name for name, value in values.items() if value is not None)
    return Flat(types if meta.node_types else [meta.num_nodes], rows_of(ends, values), has, of_nodes)


def on_ranks(cell: Cell, path: Path) -> Flat:
    """The graph of ``parts.h5``, gathered from all ranks."""
    parts = path.with_name("parts.h5")
    partition(one_rank(), str(path), str(parts), PartitionOptions(cell.parts, method="random", plan="none"))
    found = ThreadPool(cell.parts if cell.ranks == "one each" else cell.parts % 4 + 1).run(on_rank, parts, cell.order)
    of_nodes = {name: sum(each.of_nodes[name] for each in found) for name in found[0].of_nodes}
    assert (of_nodes.pop("owned") == 1).all(), "each node has one rank"
    return Flat(found[0].types, in_order(np.concatenate([each.edges for each in found])), found[0].columns, of_nodes)


def check(cell: Cell, found: Flat, wanted: Flat, names: list[str]) -> None:
    """Compare a graph with what was drawn. names: of its nodes, in the order of their numbers."""
    if names:  # nodes without edges have no names
        number = np.array([int(name.rpartition("node")[2].strip("_ ")) for name in names])
        used = np.unique(wanted.edges[:, :2])
        assert sorted(number) == used.tolist()
        found.edges[:, :2] = number[found.edges[:, :2].astype(int)]
        found.edges, found.types = in_order(found.edges), wanted.types
        place = np.argsort(number)
        found.of_nodes = {name: values[place] for name, values in found.of_nodes.items()}
        wanted.of_nodes = {name: values[used.astype(int)] for name, values in wanted.of_nodes.items()}
    assert found.types == wanted.types
    assert found.edges.shape == wanted.edges.shape
    np.testing.assert_array_equal(found.edges, wanted.edges)
    assert not len(wanted.edges) or found.columns == wanted.columns
    assert found.of_nodes.keys() == wanted.of_nodes.keys()
    for name, values in wanted.of_nodes.items():
        np.testing.assert_allclose(found.of_nodes[name], values, rtol=1e-6, err_msg=name)


# -- the property ------------------------------------------------------------------------------------------------------


def _sources(kind: type) -> list[type]:
    return [kind, *(each for below in kind.__subclasses__() for each in _sources(below))]


def in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts, edges and rows are read, sorted and written a few at a time."""
    monkeypatch.setattr(text.blocks, "__defaults__", (20,))
    for kind in _sources(base.Source):
        if "edges" in vars(kind) and kind is not base.Source:
            monkeypatch.setattr(vars(kind)["edges"], "__defaults__", (3,))
    monkeypatch.setattr(conversion, "sort_edges", functools.partial(conversion.sort_edges, group_edges=4))
    monkeypatch.setattr(conversion, "_PIECE_NODES", 3)
    monkeypatch.setattr(graph_file, "_WIDENED_BYTES", 16)
    monkeypatch.setattr(ogb_typed, "_PIECE_VALUES", 4)
    monkeypatch.setattr(webgraph, "_SLAB_BYTES", 1)


def converted(cell: Cell, graph: Graph, folder: Path, path: Path) -> Any:
    """Write the graph in the form of its source, and convert it; return the summary."""
    how: dict[str, Any] = {"named": True} if cell.nodes == "named" else {}
    given = WRITERS[cell.source](as_given(cell, graph), folder, **how)
    options: dict[str, Any] = {cell.option: True}
    if cell.option in ("none", "dense", "inverse"):
        options = {"features": "dense"} if cell.option == "dense" and cell.x != "none" else {}
    queries = ["inverse=yes"] * (cell.option == "inverse") + ["split=1"] * (cell.masks == "splits")
    if isinstance(given, str):
        for query in queries:
            given += ("&" if "?" in given else "?") + query
        return conversion.convert(given, path, ConvertOptions(**options))
    if cell.source == "networkx":
        return hpcgnn.from_networkx(given, path, **options)
    return hpcgnn.from_pyg(given, path, mask_column=1 if cell.masks == "splits" else None, **options)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"cell{cell.number}")
def test_what_goes_in_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: Cell) -> None:
    print(cell.described(AXES))  # which pytest shows of a failure
    if cell.blocks == "small":
        in_small_blocks(monkeypatch)
    path, graph = tmp_path / "out.h5", drawn(cell)
    if sentence := refusal_of(cell):
        with pytest.raises(HpcgnnError, match=sentence) as refused:
            converted(cell, graph, tmp_path, path)
        assert "\n" not in str(refused.value)
        cell = cell.changed(option="none")
        (tmp_path / "accepted").mkdir()
        tmp_path, path = tmp_path / "accepted", tmp_path / "accepted" / "out.h5"
    meta, flat_edges = converted(cell, graph, tmp_path, path).meta, changed(cell, flat(graph)).edges
    keeps_half = cell.x == "float16" and cell.option != "row_normalise"
    assert meta.x_dtype == ("float16" if keeps_half else "float32")
    assert cell.attr != "float16" or meta.edge_attr_dtype == "float16"
    source, target, *_ = read(path)[1].T
    assert (np.lexsort((source, target)) == np.arange(len(source))).all(), "edges are sorted by target and source"
    there = [Counter(map(tuple, flat_edges[:, [*ends, 3]].tolist())) for ends in ((0, 1), (1, 0))]
    assert meta.directed == (there[0] != there[1])
    names = hpcgnn.names(path) if cell.nodes == "named" else []
    looks: list[Callable[[], Flat]] = [lambda: in_memory(path), lambda: on_ranks(cell, path)]
    for look in looks:
        check(cell, look(), changed(cell, flat(graph)), names)
