"""Graphs of networkx: in memory, and from ``graphml:FILE[?x=KEY,KEY&y=KEY&weight=KEY]``, which networkx reads, also compressed;
each of several keys of x is a column. Nodes are numbered in networkx's order. Its other formats are not read: they are pickles,
which can run code, or have only edges, for which there is ``edgelist:FILE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any
from xml.etree.ElementTree import Element, ParseError, iterparse

import numpy as np

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.data.schema import MASKS
from hpcgnn.sources.base import SOURCES, ArraySource, Source, Spec, existing_file, reading
from hpcgnn.sources.text import open_unpacked

X, Y, WEIGHT = "x", "y", "weight"


@SOURCES.register("graphml")
def _open_graphml(spec: Spec, folder: Path) -> Source:
    path = existing_file(spec.name, "graphml")
    try:
        import networkx as nx
    except ImportError as error:
        raise HpcgnnError(f"{spec.text} needs networkx ({error}): pip install networkx") from error
    x = (spec.take("x") or X).split(",")
    y, weight = spec.take("y") or Y, spec.take("weight") or WEIGHT
    with reading(path, "GraphML"):
        try:
            with open_unpacked(path) as file:
                _check_graphml(file, path)
            with open_unpacked(path) as file:
                graph = nx.read_graphml(file)
        except (ParseError, nx.NetworkXError, SyntaxError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error
    return graph_source(graph, str(path), x=x if len(x) > 1 else x[0], y=y, weight=weight)


def _check_graphml(file: IO[bytes], path: Path) -> None:
    """Refuse what networkx would leave out without a word: further graphs, and defaults of keys for both nodes and edges."""
    graphs, parents = 0, list[Element]()
    for event, element in iterparse(file, ("start", "end")):  # noqa: S314 - networkx parses the file in the same way
        tag = element.tag.rpartition("}")[2]
        if event == "start":
            # networkx reads the nodes of the groups that the yEd editor writes, but no other nested graphs
            is_group = bool(parents) and parents[-1].get("yfiles.foldertype") == "group"
            graphs += tag == "graph" and not is_group
            parents.append(element)
            continue
        parents.pop()
        has_default = any(child.tag.rpartition("}")[2] == "default" for child in element)
        if tag == "key" and has_default and element.get("for") in (None, "all"):
            raise HpcgnnError(
                f"{path}: key {quoted(element.get('attr.name'))} has a default for both nodes and edges: write two keys, one "
                'with for="node" and one with for="edge"'
            )
        if tag in ("node", "edge"):
            element.clear()
    if graphs > 1:
        raise HpcgnnError(f"{path} holds {graphs} graphs, but hpcgnn trains on one: write a file for each")


def graph_source(
    graph: Any, where: str, *, x: str | Sequence[str] = X, y: str = Y, weight: str = WEIGHT
) -> ArraySource:
    """The source of a ``networkx`` graph of any of its four classes; :func:`hpcgnn.from_networkx` describes the attributes."""
    usual = _defaults(graph, "node_default")
    nodes = [(name, usual | values) for name, values in graph.nodes(data=True)]
    numbers = {name: number for number, (name, _) in enumerate(nodes)}
    edge_index, weights, notes = _edges(graph, numbers, weight, where)
    masks = {name: mask for name in MASKS if (mask := _mask(nodes, name, where)) is not None}
    features, labels = _features(nodes, x, where), _labels(nodes, y, where)
    return ArraySource(where, len(nodes), edge_index, weight=weights, x=features, y=labels, masks=masks, notes=notes)


def _edges(
    graph: Any, numbers: dict[Any, int], weight: str, where: str
) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    """``(edge_index, weights, notes)``, (2, E) int64 and (E,) float64 or None. Undirected edges are in both directions,
    self-loops once."""
    usual = _defaults(graph, "edge_default")
    found = [(source, target, usual | values) for source, target, values in graph.edges(data=True)]
    ends = np.array([(numbers[source], numbers[target]) for source, target, _ in found], np.int64).reshape(-1, 2).T
    weights, notes = None, []
    without = sum(weight not in values for *_, values in found)
    if weight != WEIGHT and without == len(found):
        raise HpcgnnError(f"{where}: no edge has the attribute {weight!r}, which should be its weight")
    if without < len(found):
        given = [values.get(weight, 1.0) for *_, values in found]
        plain = list(map(_plain, given))
        for (source, target, _), number, value in zip(found, plain, given, strict=True):
            if number is None or number.ndim:
                raise HpcgnnError(
                    f"{where}: {weight} of edge {source!r} -> {target!r} is {quoted(value)}, but it should be a number"
                )
        weights = np.array(plain, np.float64)
        if without:
            notes = [f"{without:,} of {len(found):,} edges have no attribute {weight!r}, and get weight 1"]
    elif others := sorted({str(key) for *_, values in found for key in values}):
        notes = [f"no edge has the attribute {weight!r}, so edges have no weights; not read: {', '.join(others)}"]
    if graph.is_directed():
        return ends, weights, notes
    back = ends[0] != ends[1]
    both = None if weights is None else np.concatenate((weights, weights[back]))
    return np.concatenate((ends, ends[::-1, back]), axis=1), both, notes


def _defaults(graph: Any, kind: str) -> dict[str, Any]:
    """The values of nodes or edges without a value of their own, which GraphML and GEXF declare, and networkx keeps aside."""
    found = getattr(graph, "graph", {}).get(kind)
    return found if isinstance(found, dict) else {}


def _features(nodes: list[tuple[Any, dict[str, Any]]], x: str | Sequence[str], where: str) -> np.ndarray | None:
    """(N, F) values of one attribute, numbers or sequences of numbers, or of several attributes with a number each."""
    keys = [x] if isinstance(x, str) else list(x)
    if not any(key in values for _, values in nodes for key in keys):
        if keys == [X]:
            return None
        raise HpcgnnError(f"{where}: no node has the attribute {keys[0]!r}, which should be a feature")
    columns = []
    for key in keys:
        rows = [_row(values.get(key), key, name, where) for name, values in nodes]
        for row, (name, _) in zip(rows, nodes, strict=True):
            if row.size != rows[0].size:
                raise HpcgnnError(
                    f"{where}: {key} of node {quoted(name)} has {row.size} values, that of the first node has {rows[0].size}"
                )
        columns.append(np.stack(rows))
    return np.concatenate(columns, axis=1)


def _row(value: Any, key: str, name: Any, where: str) -> np.ndarray:
    if value is None:
        raise HpcgnnError(f"{where}: node {quoted(name)} has no attribute {key!r}: give all nodes one, or none")
    row = _plain(value)
    if row is None or row.ndim > 1:
        raise HpcgnnError(
            f"{where}: {key} of node {quoted(name)} is {quoted(value)}, but it should be a number or a row of numbers"
        )
    return row.reshape(-1)


def _labels(nodes: list[tuple[Any, dict[str, Any]]], y: str, where: str) -> np.ndarray | None:
    """(N,) classes or (N, C) labels, NaN for nodes without a label; None if no node has one."""
    found = [values.get(y) for _, values in nodes]
    given = [value for value in found if value is not None]
    if not given:
        if y == Y:
            return None
        raise HpcgnnError(f"{where}: no node has the attribute {y!r}, which should be its label")
    rows = [_plain(value) for value in given]
    wrong = next((value for value, row in zip(given, rows, strict=True) if row is None or row.ndim > 1), None)
    if wrong is not None:
        raise HpcgnnError(f"{where}: the label {quoted(wrong)} should be a number, or a row of numbers")
    widths = {row.shape for row in rows if row is not None}
    if len(widths) != 1:
        raise HpcgnnError(f"{where}: labels have different widths, {' and '.join(map(str, sorted(widths)))}")
    (shape,) = widths
    none = np.full(shape, np.nan)
    return np.stack([none if value is None else np.asarray(value) for value in found])


def _mask(nodes: list[tuple[Any, dict[str, Any]]], mask: str, where: str) -> np.ndarray | None:
    """(N,) bool values of an attribute, for instance ``train_mask`` or ``train``, False where it is missing; None if no node has
    it."""
    for key in (mask, mask.removesuffix("_mask")):
        if any(key in values for _, values in nodes):
            chosen = [values.get(key, False) for _, values in nodes]
            for value, (name, _) in zip(chosen, nodes, strict=True):
                plain = _plain(value)
                if plain is None or plain.ndim or plain not in (0, 1):
                    raise HpcgnnError(
                        f"{where}: {key} of node {quoted(name)} is {quoted(value)}, but it should be True or False"
                    )
            return np.array(chosen, np.bool_)
    return None


def _plain(value: Any) -> np.ndarray | None:
    """The value as an array of numbers, or None if it is not one."""
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (ValueError, TypeError, RuntimeError):  # for instance rows of several lengths
        return None
    return array if array.dtype.kind in "biuf" else None
