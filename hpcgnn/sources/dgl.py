"""``dgl:FILE``: a graph that ``dgl.save_graphs`` of DGL 0.4.3 or later has written. DGL itself is not needed.

x, y, weight  names of node values and edge values; by default feat or x, label or y, and edge_weight, weight or w
split         column of the masks train_mask, val_mask, test_mask if they have several; the first by default
graph         number of the graph, from 0, if the file has several
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import MASKS
from hpcgnn.sources.base import SOURCES, ArraySource, agreed_nodes, existing_file, reading
from hpcgnn.sources.dgl_file import DglGraph, KindsError, reading_dgl
from hpcgnn.sources.masks import read_masks
from hpcgnn.sources.spec import Spec

_X, _Y, _WEIGHT = ("feat", "x"), ("label", "y"), ("edge_weight", "weight", "w")


@SOURCES.register("dgl")
def open_dgl(spec: Spec, folder: Path) -> ArraySource:
    """See the module's text."""
    path = existing_file(spec.name, "dgl")
    number, split = spec.take_int("graph", -1, least=-1), spec.take_split()
    names = {key: spec.take(key) for key in ("x", "y", "weight")}
    where = str(path)
    graph = _read(path, number)
    nodes, edges = graph.node_values, graph.edge_values
    x, y = _chosen(nodes, names["x"], _X, where), _chosen(nodes, names["y"], _Y, where)
    weight = _chosen(edges, names["weight"], _WEIGHT, where)
    masks, notes = read_masks(nodes.get, graph.num_nodes, split, where)
    others = {**nodes, **{f"{name} (of edges)": values for name, values in edges.items()}}
    unread = [name for name, each in others.items() if each is not x and each is not y and each is not weight]
    if unread := sorted(set(unread) - set(MASKS)):
        notes.append(f"values that are not read: {', '.join(unread)}")
    source = ArraySource(
        where,
        graph.num_nodes,
        graph.edge_index,
        weight=weight,
        x=x[:, None] if x is not None and x.ndim == 1 else x,
        y=y,
        masks=masks,
        notes=notes,
    )
    is_counted = x is None and y is None and not source.info.has_masks  # no array has a row for each node
    agreed_nodes(where, graph.num_nodes, source.info.num_edges if is_counted else None, spec.take_int("nodes", 0))
    return source


def _read(path: Path, number: int) -> DglGraph:
    """Read graph ``number``; -1 means the only one of the file."""
    with reading(path, "a file of dgl.save_graphs"), reading_dgl(path) as reader:
        if number < 0 and reader.num_graphs != 1:
            raise HpcgnnError(
                f"{path} holds {reader.num_graphs} graphs, but hpcgnn trains on one: choose it with ?graph=K, counted from 0"
            )
        if number >= reader.num_graphs:
            raise HpcgnnError(f"{path}: graph={number} was given, but there are {reader.num_graphs}, counted from 0")
        try:
            return reader.graph(max(number, 0))
        except KindsError as error:
            raise HpcgnnError(
                f"{path} is not a plain graph ({error}): hpcgnn trains on graphs with one kind of nodes and edges"
            ) from error


def _chosen(
    values: Mapping[str, np.ndarray], name: str | None, usual: tuple[str, ...], where: str
) -> np.ndarray | None:
    """The values called ``name``, or, without a name, those with the first of the ``usual`` names that exists; else None."""
    if name is not None and name not in values:
        raise HpcgnnError(f"{where} has no values named {name!r}; it has {', '.join(sorted(values)) or 'none'}")
    return next((values[each] for each in ([name] if name else usual) if each in values), None)
