"""Writers of each source of graphs, made from the descriptions of their formats, without the code under test.

A :class:`Graph` has the arrays of each type of nodes and edges by PyG's names; without types, there is one of each, named "".
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from bv_writer import Writer as BvWriter
from requires import require_module

from hpcgnn.data.schema import MASKS

Key = tuple[str, str, str]


@dataclass
class Graph:
    """nodes: ``num_nodes`` and others of each type. edges: ``edge_index`` (2, E), ids from 0 in each type, and others."""

    nodes: dict[str, dict[str, Any]]
    edges: dict[Key, dict[str, Any]]

    @property
    def is_typed(self) -> bool:
        return "" not in self.nodes

    @property
    def plain(self) -> dict[str, Any]:
        """The arrays of a graph without types, in one dictionary."""
        return self.nodes[""] | self.edges["", "", ""]


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """Write rows of numbers or words as a gzipped csv table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(",".join(map(str, row)) + "\n" for row in rows).encode()))


# -- arrays ------------------------------------------------------------------------------------------------------------


def npz(graph: Graph, folder: Path) -> str:
    if graph.is_typed:
        stores = graph.nodes | {"__".join(key): values for key, values in graph.edges.items()}
        arrays = {f"{name}/{key}": value for name, values in stores.items() for key, value in values.items()}
    else:
        arrays = dict(graph.plain)
        if sp.issparse(x := arrays.get("x")):
            del arrays["x"]
            arrays |= {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": x.shape}
    np.savez(folder / "g.npz", **arrays)
    return f"npz:{folder / 'g.npz'}"


def _tensors(values: dict[str, Any]) -> dict[str, Any]:
    def tensor(value: Any) -> Any:
        if sp.issparse(value):
            parts = (torch.from_numpy(part) for part in (value.indptr, value.indices, value.data))
            return torch.sparse_csr_tensor(*parts, size=value.shape)
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    return {name: tensor(value) for name, value in values.items()}


def pyg(graph: Graph, folder: Path) -> Any:
    data = require_module("torch_geometric.data")
    if not graph.is_typed:
        return data.Data(**_tensors(graph.plain))
    found = data.HeteroData()
    for key, values in (graph.nodes | graph.edges).items():
        found[key].update(_tensors(values))
    return found


def attributes(graph: Graph, folder: Path) -> Any:
    return SimpleNamespace(**graph.plain)


def networkx(graph: Graph, folder: Path) -> Any:
    nx, values = require_module("networkx"), graph.plain
    found = nx.MultiDiGraph()
    of_nodes = {name: values[name] for name in ("x", "y", *MASKS) if name in values}
    for node in range(values["num_nodes"]):
        found.add_node(node, **{name: each[node].tolist() for name, each in of_nodes.items()})
    if "y" in of_nodes:
        for node in np.flatnonzero(np.reshape(of_nodes["y"] == -1, (len(of_nodes["y"]), -1)).all(axis=1)).tolist():
            del found.nodes[node]["y"]
    weights = values.get("edge_weight")
    for number, (source, target) in enumerate(values["edge_index"].T.tolist()):
        found.add_edge(source, target, **({} if weights is None else {"weight": weights[number].item()}))
    return found


def graphml(graph: Graph, folder: Path) -> str:
    found, columns = networkx(graph, folder), 0
    for values in found.nodes.values():
        row = values.pop("x", [])
        values |= {f"x{column}": value for column, value in enumerate(row)}
        columns = len(row)
    require_module("networkx").write_graphml(found, folder / "g.graphml")
    return f"graphml:{folder / 'g.graphml'}" + "?x=" * bool(columns) + ",".join(f"x{each}" for each in range(columns))


# -- DGL ---------------------------------------------------------------------------------------------------------------

_MAGIC = {"file": 0xDD2E4FF046B4A13F, "graph": 0xDD589FBE35224ABF, "types": 0xDD3C5FFE20046ABF, "unit": 0xDD2E60F0F6B4A127,
          "csr": 0xDD6CD31205DFF127, "coo": 0xDD61FFD305DFF127, "array": 0xDD5E40F096B4A13F}  # fmt: skip


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def _text(word: str) -> bytes:
    return _numbers(len(word)) + word.encode()


def _array(values: Any) -> bytes:
    values = np.ascontiguousarray(values)
    values = values.astype(np.uint8) if values.dtype == np.bool_ else values
    kind = struct.pack("<iBBH", values.ndim, "iuf".index(values.dtype.kind), 8 * values.itemsize, 1)
    return _numbers(_MAGIC["array"], 0, 0) + kind + _numbers(*values.shape, values.nbytes) + values.tobytes()


def _frame(values: dict[str, Any], names: dict[str, str]) -> bytes:
    kept = {names.get(name, name): each for name, each in values.items() if name not in ("num_nodes", "edge_index")}
    return _numbers(len(kept)) + b"".join(_text(name) + _array(each) for name, each in kept.items())


def dgl(graph: Graph, folder: Path) -> str:
    kinds, edges = list(graph.nodes), list(graph.edges.items())
    ends = np.array([[kinds.index(key[0]), kinds.index(key[2])] for key, _ in edges])
    nothing = np.empty(0, np.int64)
    of_source = np.argsort(ends[:, 0], kind="stable")
    offsets = np.searchsorted(ends[of_source, 0], np.arange(len(kinds) + 1))
    types = _numbers(_MAGIC["types"], _MAGIC["csr"], len(kinds), len(kinds))
    types += _array(offsets) + _array(ends[of_source, 1]) + _array(of_source) + b"\1"
    content = _numbers(_MAGIC["graph"]) + types + _numbers(len(edges))
    for key, values in edges:
        rows, columns = (graph.nodes[end]["num_nodes"] for end in (key[0], key[2]))
        content += _numbers(_MAGIC["unit"], 1 << 32 | 1, 0) + _numbers(_MAGIC["types"], _MAGIC["csr"], 1, 1)
        content += _array(np.array([0, 1])) + _array(np.zeros(1, int)) + _array(nothing) + b"\1"
        content += _numbers(_MAGIC["coo"], columns, rows)
        content += b"".join(map(_array, (*values["edge_index"], nothing))) + b"\0\0"
    content += _numbers(len(kinds), *(each["num_nodes"] for each in graph.nodes.values()))
    named_type = ("etype", "_TYPE")[len(edges[0][1]) % 2]  # dgl.to_homogeneous names types _TYPE
    of_edges = {"edge_attr": "feat", "edge_type": named_type, "edge_weight": "w"}
    for stores, names in ((graph.nodes, {"x": "feat", "y": "label"}), (graph.edges, of_edges)):
        content += _numbers(len(stores)) + b"".join(_frame(values, names) for values in stores.values())
    for names in (kinds, [key[1] for key in graph.edges]):
        content += _numbers(len(names)) + b"".join(map(_text, names))
    header = _numbers(_MAGIC["file"], 2, 2, 1).ljust(4096, b"\0")
    before = _numbers(0, 0)
    places = _numbers(1, len(header + before))
    (folder / "g.bin").write_bytes(header + before + content + places + _numbers(len(places)))
    return f"dgl:{folder / 'g.bin'}?nodes={sum(each['num_nodes'] for each in graph.nodes.values())}".partition(
        "?" if graph.is_typed else "\0"
    )[0]


# -- tables of edges ---------------------------------------------------------------------------------------------------

_COLUMNS = {"edge_type": "type", "edge_weight": "weight", "edge_attr": "attr"}


def _table(values: dict[str, Any], *, named: bool) -> dict[str, list[Any]]:
    """The columns of a table of edges; with ``named``, nodes have names."""
    source, target = values["edge_index"].tolist()
    columns: dict[str, list[Any]] = {"src": source, "dst": target}
    if named:
        columns = {name: [f"node {node}" for node in nodes] for name, nodes in columns.items()}
    for name, own in _COLUMNS.items():
        for number, column in enumerate(np.atleast_2d(values[name].T) if name in values else ()):
            columns[own + str(number) * (name == "edge_attr")] = column.tolist()
    return columns


def edgelist(graph: Graph, folder: Path, kind: str = "edgelist", *, named: bool = False) -> str:
    columns = _table(graph.plain, named=named)
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "g.csv").write_text("\n".join(rows) + "\n")
    return f"{kind}:{folder / 'g.csv'}" + ("" if named else f"?nodes={graph.plain['num_nodes']}")


def folder_of_links(graph: Graph, folder: Path, *, named: bool = False) -> str:
    values = graph.plain
    for number, name in enumerate(("train", "valid", "test")):
        chosen = values["edge_split"] == number
        own = {key: each[..., chosen] if key == "edge_index" else each[chosen] for key, each in values.items()
               if key.startswith("edge_")}  # fmt: skip
        (folder / "sets").mkdir(exist_ok=True)
        edgelist(Graph({"": {"num_nodes": 0}}, {("", "", ""): own}), folder, named=named)
        (folder / "g.csv").rename(folder / "sets" / f"{name}.csv")
    return f"edgelist:{folder / 'sets'}" + ("" if named else f"?nodes={values['num_nodes']}")


def parquet(graph: Graph, folder: Path, *, named: bool = False) -> str:
    pa = require_module("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table(_table(graph.plain, named=named)), folder / "g.parquet", row_group_size=7)
    return f"parquet:{folder / 'g.parquet'}" + ("" if named else f"?nodes={graph.plain['num_nodes']}")


def rdf(graph: Graph, folder: Path, *, named: bool = True) -> str:
    values = graph.plain
    edges = zip(*values["edge_index"].tolist(), values["edge_type"].tolist(), strict=True)
    triples = [f"<n:node_{source}> <r:{kind}> <n:node_{target}> ." for source, target, kind in edges]
    (folder / "g.nt").write_text("\n".join(triples) + "\n")
    options = []
    for mask in MASKS if "y" in values else ():
        rows = [f"n:node_{node}\tclass {values['y'][node]}" for node in np.flatnonzero(values[mask])]
        (folder / f"{mask}.tsv").write_text("\n".join(["node\tlabel", *rows]) + "\n")
        options.append(f"{mask.removesuffix('_mask')}={folder / mask}.tsv")
    return f"rdf:{folder / 'g.nt'}" + "?" * bool(options) + "&".join(options)


# -- edges alone -------------------------------------------------------------------------------------------------------


def mtx(graph: Graph, folder: Path) -> str:
    """A matrix of numbers, or a pattern; a symmetric one has the entries below the diagonal only."""
    values = graph.plain
    weights = values.get("edge_weight", np.full(values["edge_index"].shape[1], ""))
    entries = list(zip(*values["edge_index"].tolist(), weights.tolist(), strict=True))
    is_symmetric = sorted(entries) == sorted((target, source, weight) for source, target, weight in entries)
    entries = [each for each in entries if not is_symmetric or each[0] >= each[1]]
    field = "pattern" if "edge_weight" not in values else "real" if weights.dtype.kind == "f" else "integer"
    kind = f"{field} {'symmetric' if is_symmetric else 'general'}"
    rows = [f"%%MatrixMarket matrix coordinate {kind}", f"{values['num_nodes']} {values['num_nodes']} {len(entries)}"]
    rows += [f"{source + 1} {target + 1} {weight}" for source, target, weight in entries]
    (folder / "g.mtx").write_text("\n".join(rows) + "\n")
    return f"mtx:{folder / 'g.mtx'}"


def metis(graph: Graph, folder: Path) -> str:
    """Each node has the size 9 and, where edges have weights, 7 and 8 as its own, otherwise 7 alone."""
    values = graph.plain
    weights = values.get("edge_weight")
    lines = [[9, 7] if weights is None else [9, 7, 8] for _ in range(values["num_nodes"])]
    for number, (source, target) in enumerate(values["edge_index"].T.tolist()):
        lines[source] += [target + 1] + ([] if weights is None else [weights[number]])
    flags = ("110", 1) if weights is None else ("111", 2)
    size = values["num_nodes"], values["edge_index"].shape[1] // 2, *flags
    (folder / "g.graph").write_text(
        "% a comment\n" + "".join(" ".join(map(str, line)) + "\n" for line in [size, *lines])
    )
    return f"metis:{folder / 'g.graph'}"


def binedges(graph: Graph, folder: Path) -> str:
    graph.plain["edge_index"].T.astype("<u4").tofile(folder / "g.bin")
    return f"binedges:{folder / 'g.bin'}?dtype=uint32&nodes={graph.plain['num_nodes']}"


def bvgraph(graph: Graph, folder: Path) -> str:
    successors: list[list[int]] = [[] for _ in range(graph.plain["num_nodes"])]
    for source, target in sorted(graph.plain["edge_index"].T.tolist()):
        successors[source].append(target)
    BvWriter().write(folder / "g", successors)
    return f"bvgraph:{folder / 'g'}"


# -- OGB ---------------------------------------------------------------------------------------------------------------


def ogb_tables(graph: Graph, folder: Path) -> str:
    """The folder ``ogbn_mag`` as OGB's archive has it."""
    base, counts = folder / "ogbn_mag", {name: each["num_nodes"] for name, each in graph.nodes.items()}
    raw, split = base / "raw", base / "split" / "time"
    write_csv(raw / "num-node-dict.csv.gz", [counts, counts.values()])
    write_csv(raw / "triplet-type-list.csv.gz", graph.edges)
    for number, (key, values) in enumerate(graph.edges.items()):
        there, edges = raw / "relations" / "___".join(key), values["edge_index"].T.tolist()
        write_csv(there / "edge.csv.gz", edges)
        write_csv(there / "num-edge-list.csv.gz", [[len(edges)]])
        write_csv(there / "edge_reltype.csv.gz", [[number]] * len(edges))
    labelled = [name for name, values in graph.nodes.items() if "y" in values]
    for table in (raw / "nodetype-has-label.csv.gz", split / "nodetype-has-split.csv.gz"):
        write_csv(table, [counts, [name in labelled for name in counts]])
    for name, values in graph.nodes.items():
        if "x" in values:
            write_csv(raw / "node-feat" / name / "node-feat.csv.gz", values["x"].tolist())
        if "y" in values:
            write_csv(raw / "node-label" / name / "node-label.csv.gz", values["y"][:, None].tolist())
        for mask, own in zip(MASKS, ("train", "valid", "test"), strict=True):
            if mask in values:
                write_csv(split / name / f"{own}.csv.gz", np.flatnonzero(values[mask])[:, None].tolist())
    (base / "processed").mkdir()
    (base / "RELEASE_v2.txt").touch()
    return f"ogb:ogbn-mag?root={folder}"


WRITERS: dict[str, Callable[..., Any]] = {
    "npz": npz, "pyg": pyg, "attributes": attributes, "networkx": networkx, "graphml": graphml, "dgl": dgl, "ogb": ogb_tables,
    "edgelist": edgelist, "folder": folder_of_links, "parquet": parquet, "rdf": rdf, "mtx": mtx, "metis": metis,
    "binedges": binedges, "bvgraph": bvgraph, "arclist": lambda graph, folder, **how: edgelist(graph, folder, "arclist", **how),
}  # fmt: skip
