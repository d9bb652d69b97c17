"""Conversion of graphs that a program has in memory to ``graph.h5``, as ``hpcgnn convert`` converts files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from hpcgnn.base.arguments import check_type, check_whole
from hpcgnn.base.errors import WrongTypeError
from hpcgnn.sources.convert import ConvertOptions, ConvertSummary, write_graph
from hpcgnn.sources.networkx import WEIGHT, X, Y, graph_source
from hpcgnn.sources.pyg import data_source

_PYG, _NETWORKX = "the PyG graph", "the networkx graph"


class Options(TypedDict, total=False):
    """The options of ``hpcgnn convert``: :class:`hpcgnn.sources.convert.ConvertOptions`."""

    split: str | None
    features: str | None
    labels: str | None
    row_normalise: bool
    undirected: bool
    self_loops: bool
    drop_duplicates: bool
    force: bool


def from_pyg(
    data: Any, path: str | Path, *, mask_column: int | None = None, **options: Unpack[Options]
) -> ConvertSummary:
    """Write a graph of PyTorch Geometric as ``graph.h5``. Not collective: one process calls it.

    Edges keep their directions, and nodes keep their numbers. Features that are mostly 0 are stored sparse, as by
    ``hpcgnn convert pyg:NAME``. This takes the memory of the data, and about as much again for dense features.

    Example:
        ``hpcgnn.from_pyg(data, "graph.h5", undirected=True)``, and then ``hpcgnn partition graph.h5 parts.h5 --parts 4``.

    Args:
        data: a ``torch_geometric.data.Data``, or any object with its attributes: ``edge_index`` (2, E), and optionally ``x``
            (N, F) dense or sparse, ``y`` (N,) or (N, C), ``edge_weight`` (E,), ``num_nodes``, and ``train_mask``,
            ``val_mask``, ``test_mask``: (N,), (N, splits), or node numbers, which may also be ``train_idx``, ``val_idx``,
            ``test_idx``. Other attributes, such as ``edge_attr``, are left out.
        path: the file to write.
        mask_column: the number of the split to take, from 0, if masks are (N, splits); the first by default.
        options: the options of ``hpcgnn convert``: ``split``, ``features``, ``labels``, ``row_normalise``,
            ``undirected``, ``self_loops``, ``drop_duplicates``, and ``force``, which overwrites an existing file.

    Returns:
        A summary of the new file, with the attributes ``meta``, ``split_sizes``, ``notes``, ``seconds`` and ``file_bytes``.

    Raises:
        HpcgnnError: for data that are not a plain graph, for wrong values, and for a file that cannot be written. No file is
            left behind then.
    """
    if mask_column is not None:
        check_whole("mask_column", mask_column)
    return write_graph(lambda _: data_source(data, _PYG, mask_column), _PYG, path, ConvertOptions(**options))


def from_networkx(
    graph: Any,
    path: str | Path,
    *,
    x: str | Sequence[str] = X,
    y: str = Y,
    weight: str = WEIGHT,
    **options: Unpack[Options],
) -> ConvertSummary:
    """Write a graph of networkx as ``graph.h5``. Not collective: one process calls it.

    Node k of the file is the k-th of ``list(graph)``. An edge of an undirected graph is stored in both directions. Parallel
    edges are kept, unless ``drop_duplicates`` merges them. This takes some hundred bytes for each edge, as networkx itself
    does.

    Args:
        graph: a ``Graph``, ``DiGraph``, ``MultiGraph`` or ``MultiDiGraph``. Node attributes ``train_mask``, ``val_mask`` and
            ``test_mask``, or ``train``, ``val`` and ``test``, are True for the nodes of that set.
        path: the file to write.
        x: name of the node attribute with features, a number or a row of numbers, ``x`` by default; or a list of attributes
            with one number each. Either all nodes have it, or none.
        y: name of the node attribute with the class, a whole number from 0, or a row of 0 and 1; ``y`` by default. Nodes
            without it have no label.
        weight: name of the edge attribute with weights, ``weight`` by default. If only some edges have it, the others have
            weight 1.
        options: as for ``from_pyg``.

    Returns:
        A summary of the new file, as from ``from_pyg``.

    Raises:
        HpcgnnError: for attributes with other values, and for a file that cannot be written. No file is left behind then.
    """
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise WrongTypeError(f"graph must be a networkx graph, not {type(graph).__name__}")
    for name, value in (("y", y), ("weight", weight)):
        check_type(name, value, str)
    check_type("x", x, str, list, tuple)
    if not x or not all(isinstance(key, str) for key in x):
        raise WrongTypeError("x must be the name of an attribute, or a list of names")
    return write_graph(
        lambda _: graph_source(graph, _NETWORKX, x=x, y=y, weight=weight), _NETWORKX, path, ConvertOptions(**options)
    )
