"""Conversion of any source, or of a graph in memory, to ``graph.h5``: edges are sorted on disk, then node values are written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from hpcgnn.base import whole_file
from hpcgnn.base.arguments import check_path, check_type, check_whole
from hpcgnn.base.byte_sink import LocalFile
from hpcgnn.base.compiled import clock
from hpcgnn.base.errors import HpcgnnError, WrongTypeError
from hpcgnn.base.process import peak_memory_bytes
from hpcgnn.base.version import __version__
from hpcgnn.data import h5, names, sealing
from hpcgnn.data.graph_file import GRAPH_KIND, GRAPH_VERSION
from hpcgnn.data.schema import FULL, GraphMeta, graph_rules, layout, link_rules
from hpcgnn.sources import Source, SourceInfo, open_source
from hpcgnn.sources.base import ArraySource
from hpcgnn.sources.edges import EdgeOptions, SortedEdges, sort_edges
from hpcgnn.sources.node_rules import (
    DENSE,
    Features,
    Rule,
    make_features,
    make_split,
    parse_features,
    parse_labels,
    parse_split,
    relabelled,
    row_normalised,
    written_out,
)
from hpcgnn.sources.node_values import NodeChecker

Progress = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""``progress(description, total)`` is a context with a progress bar; it yields a function that advances the bar. Total None means
that it is unknown."""
Masks = Callable[[int, int], dict[str, np.ndarray] | None]

_PIECE_BYTES = 16 << 20
_PIECE_NODES = 1 << 20
_PARSERS: dict[str, Callable[[str], Rule]] = {"split": parse_split, "features": parse_features, "labels": parse_labels}


@dataclass(frozen=True)
class ConvertOptions:
    """The options of ``hpcgnn convert``. ``split``, ``features`` and ``labels`` are rules (:mod:`hpcgnn.sources.node_rules`) that
    replace values of the source."""

    split: str | None = None
    features: str | None = None
    labels: str | None = None
    row_normalise: bool = False
    undirected: bool = False
    self_loops: bool = False
    drop_duplicates: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_type(name, value, *((str, type(None)) if name in _PARSERS else (bool,)))


@dataclass(frozen=True)
class ConvertSummary:
    """The contents of a new file, and the time and memory of its conversion. split_sizes: nodes in each mask; empty without
    masks. notes: sentences for the user."""

    path: str
    meta: GraphMeta
    split_sizes: dict[str, int]
    seconds: float
    peak_memory_bytes: int
    file_bytes: int
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The summary as one flat JSON object."""
        values = asdict(self)
        return values.pop("meta") | values


def convert(
    source: str, output: str | Path, options: ConvertOptions = ConvertOptions(), progress: Progress | None = None
) -> ConvertSummary:
    """Write the graph that ``source`` names to ``output``. Not collective.

    For generators, text and binary files, and OGB's two largest graphs, memory is bounded whatever the number of edges and the
    width of x. A split needs about 30 bytes a node. Sources that are read whole (npz, PyG, OGB's other graphs) take their size.
    Raises HpcgnnError for anything wrong with the source, the options or the disk; nothing is left behind then.
    """
    check_type("source", source, str)
    name = source.partition(":")[2]
    files = [each for each in (name, name.partition("?")[0]) if each]  # with and without options
    return write_graph(lambda folder: open_source(source, folder), source, output, options, progress, files)


def write_graph(
    opened: Callable[[Path], Source],
    source: str,
    output: str | Path,
    options: ConvertOptions = ConvertOptions(),
    progress: Progress | None = None,
    inputs: Iterable[str] = (),
) -> ConvertSummary:
    """Like :func:`convert`, for the graph that ``opened(folder for temporary files)`` returns. source: the graph's name in
    messages and in the file's provenance. inputs: files that must not be replaced."""
    start = clock()
    check_path("output", output)
    check_type("options", options, ConvertOptions)
    output = Path(output)
    for name, parse in _PARSERS.items():
        if (text := getattr(options, name)) is not None:
            parse(text)
    shown = progress or (lambda description, total: contextlib.nullcontext(lambda count: None))
    with whole_file.replacing(output, force=options.force, inputs=inputs) as temporary:
        graph = opened(temporary.parent)
        own = graph
        _check_typed(own.info, source, options)
        if options.labels is not None:
            graph = relabelled(graph, parse_labels(options.labels), source)
        elif isinstance(graph, ArraySource) and graph.refused is not None:
            raise graph.refused
        with contextlib.closing(_sort(graph, source, options, temporary.parent, shown)) as edges:
            checker, meta = _write(temporary, graph, own, edges, source, options, shown)
            notes = [*graph.info.notes, *_first_id_note(own.info, edges), *checker.finish(meta.has_masks)]
        sealing.seal(temporary)
    return ConvertSummary(
        path=str(output),
        meta=meta,
        split_sizes=checker.split_sizes if meta.has_masks else {},
        seconds=clock() - start,
        peak_memory_bytes=peak_memory_bytes(),
        file_bytes=output.stat().st_size,
        notes=notes,
    )


def _check_typed(info: SourceInfo, where: str, options: ConvertOptions) -> None:
    """Raise HpcgnnError for options that would break the types of a graph's nodes."""
    if not info.node_types:
        return
    if options.undirected and any(each.source != each.destination for each in info.edge_types):
        raise HpcgnnError(
            f"{where} has edges from one type of nodes to another, whose reverses are types of their own: apply PyG's "
            "T.ToUndirected() before, and leave --undirected out"
        )
    if options.labels is not None or options.features not in (None, DENSE):
        raise HpcgnnError(
            f"{where} has types of nodes, for which --features and --labels have no rules: leave them out"
        )


def _sort(graph: Source, where: str, options: ConvertOptions, folder: Path, progress: Progress) -> SortedEdges:
    info = graph.info
    edge_options = EdgeOptions(options.undirected, options.self_loops, options.drop_duplicates)
    with progress("edges", info.num_edges) as advance:
        edges = sort_edges(graph.edges(), info.num_nodes, info.form, edge_options, folder, where, advance)
    if info.both_ways and not edges.symmetric:
        edges.close()
        raise HpcgnnError(
            f"{where} has an edge at one of its ends only, or with another weight there: list each edge at both ends, with the "
            "same weight"
        )
    return edges


def _first_id_note(info: SourceInfo, edges: SortedEdges) -> list[str]:
    """A note about a list of edges whose ids may count from 1; with features or labels, their rows are the nodes."""
    if not edges.smallest or info.fixed_ids or info.num_features or info.num_classes:
        return []
    return [
        f"the smallest node id is {edges.smallest}, so node 0 has no edges: if ids count from {edges.smallest} in this source, "
        f"subtract {edges.smallest} from all of them"
    ]


def _write(
    path: Path,
    graph: Source,
    own: Source,
    edges: SortedEdges,
    where: str,
    options: ConvertOptions,
    progress: Progress,
) -> tuple[NodeChecker, GraphMeta]:
    features = _features(graph, edges, options)
    if options.row_normalise and not features.columns:
        raise HpcgnnError(f"{where} has no features, so that --row-normalise has nothing to do: add --features")
    masks, split = _masks(graph, options, where)
    meta = _meta(graph, edges, features, split, where, options)
    meta = _with_asked(meta, own.asked, where)
    kept = {dataset: each for dataset, each in own.names.items() if dataset != names.CLASSES or options.labels is None}
    schema = {**layout(graph_rules(meta)), **names.layout(kept)}
    offsets = h5.create(path, schema, h5.new_header(GRAPH_KIND, GRAPH_VERSION) | meta.attributes())
    checker = NodeChecker(where, meta.task, meta.num_classes)
    with LocalFile(path) as sink, progress("nodes", meta.num_nodes) as advance:
        writer = h5.SlabWriter(sink, offsets, schema)
        for name, spool in (("indptr", edges.indptr), ("indices", edges.indices)):
            for first, piece in spool.pieces():
                writer.write(f"edges/{name}", first, piece)
        for first, values in () if edges.values is None else edges.values.pieces():
            for name in values.dtype.names or ():
                writer.write(f"edges/{name}", first, values[name])
        chosen = masks if meta.has_masks else None
        _write_nodes(writer, graph, features, chosen, checker, options.row_normalise, advance)
        names.write(writer, kept)
        for name in link_rules(meta):
            ends = np.cumsum([len(table[name]) for table in own.asked])
            for table, end in zip(own.asked, ends.tolist(), strict=True):
                writer.write(name, end - len(table[name]), table[name])
    return checker, meta


def _with_asked(meta: GraphMeta, tables: Sequence[Mapping[str, np.ndarray]], where: str) -> GraphMeta:
    """``meta`` with the number of links that have candidates. Raises HpcgnnError for tables of them that do not fit the graph."""
    if not tables:
        return meta
    columns = (tables[0].get(f"links/{end}_candidates", np.empty((0, 0))) for end in ("source", "target"))
    sources, targets = (each.shape[1] if each.ndim == 2 else 1 for each in columns)
    sizes = [int(np.size(table.get("links/set", ()))) for table in tables]
    meta = replace(meta, num_asked_links=sum(sizes), num_source_candidates=sources, num_target_candidates=targets)
    rules, called = link_rules(meta), f"{where}: links with candidates"
    if not (rules and sources + targets and meta.has_link_split):
        raise HpcgnnError(f"{called} need a set of each (link_set), candidates, and the sets of all edges (edge_split)")
    for table, size in zip(tables, sizes, strict=True):
        if table.keys() != rules.keys():
            raise HpcgnnError(
                f"{called} have {', '.join(sorted(table))}, but this graph needs {', '.join(sorted(rules))}"
            )
        for name, rule in rules.items():
            values, shape = table[name], (size, *rule.shape[1:])
            is_whole = values.shape == shape and values.dtype.kind in "iu"
            if not is_whole or (size and not rule.low <= values.min() <= values.max() <= rule.high):
                told = f"{values.min()} to {values.max()}" if is_whole else f"{values.dtype} of shape {values.shape}"
                wanted = f"whole numbers {rule.low} to {rule.high} of shape {shape}"
                raise HpcgnnError(f"{where}: {name} should be {wanted}, not {told}")
        if problem := meta.wrong_end(table):
            raise HpcgnnError(f"{where}: {problem}")
    return meta


def _features(graph: Source, edges: SortedEdges, options: ConvertOptions) -> Features:
    info = graph.info
    if options.features in (None, DENSE):
        # Normalised values are new ones, which are rounded only once, to float32.
        dtype = FULL if options.row_normalise else info.x_dtype
        given = Features(info.num_features, info.x_nnz, graph.features, dtype, info.x_by_type)
        return given if options.features is None else written_out(given, info.node_types)
    return make_features(parse_features(options.features), info.num_nodes, edges.in_degrees)


def _masks(graph: Source, options: ConvertOptions, where: str) -> tuple[Masks, str | None]:
    """A function that returns masks, and the split's rule if they are made here: by the user's rule, or, without masks, the
    source's."""
    info = graph.info
    split = options.split or (None if info.has_masks else info.default_split)
    if split is None:
        return graph.masks, None
    made = make_split(parse_split(split), graph.labels, info.num_nodes, info.task, where)
    return lambda first, last: {name: mask[first:last] for name, mask in made.items()}, split


def _meta(
    graph: Source, edges: SortedEdges, features: Features, split: str | None, where: str, options: ConvertOptions
) -> GraphMeta:
    info = graph.info
    seeds = {"source": info.seed, "split": parse_split(split).seed if split else None}
    seeds |= {name: _PARSERS[name](text).seed for name in ("features", "labels") if (text := getattr(options, name))}
    chosen = {name: value for name, value in asdict(options).items() if name != "force"} | {"split": split}
    return GraphMeta(
        num_nodes=info.num_nodes,
        num_edges=edges.num_edges,
        num_features=features.columns,
        num_classes=info.num_classes,
        task=info.task,
        directed=not edges.symmetric,
        weighted=info.form.weighted,
        x_nnz=features.nnz if features.columns else None,
        x_dtype=features.dtype,
        has_masks=info.has_masks or split is not None,
        num_edge_types=info.form.num_types,
        num_edge_features=info.form.attr_columns,
        edge_attr_dtype=info.form.attr_dtype,
        node_types=info.node_types,
        edge_types=info.edge_types,
        has_link_split=info.form.split,
        x_by_type=features.by_type and features.columns > 0,
        provenance={"source": where, "options": chosen, "seed": seeds, "hpcgnn": __version__},
    )


def _write_nodes(
    writer: h5.SlabWriter,
    graph: Source,
    features: Features,
    masks: Masks | None,
    checker: NodeChecker,
    normalise: bool,
    advance: Callable[[int], None],
) -> None:
    nonzeros = 0
    for first, last in _pieces(graph.info, features):
        x = features.rows(first, last) if features.columns else None
        if x is not None:
            checker.features(first, x)
            nonzeros = _write_features(
                writer, first, row_normalised(x) if normalise else x, nonzeros, by_type=features.by_type
            )
        if (y := graph.labels(first, last)) is not None:
            checker.labels(first, y)
            writer.write("nodes/y", first, y)
        if (chosen := masks(first, last) if masks else None) is not None:
            checker.masks(first, chosen, y)
            for name, mask in chosen.items():
                writer.write(f"nodes/{name}", first, mask)
        advance(last - first)


def _pieces(info: SourceInfo, features: Features) -> Iterator[tuple[int, int]]:
    """Ranges of nodes, each of one type if features are stored by type, whose dense features are few enough to be in memory."""
    columns = features.columns if features.nnz is None else 0
    kinds = (
        [(each.count, each.columns) for each in info.node_types] if features.by_type else [(info.num_nodes, columns)]
    )
    begin = 0
    for count, width in kinds:
        step = max(1, min(_PIECE_NODES, _PIECE_BYTES // (4 * max(width, 1))))
        yield from ((first, min(first + step, begin + count)) for first in range(begin, begin + count, step))
        begin += count


def _write_features(writer: h5.SlabWriter, first: int, x: Any, nonzeros: int, *, by_type: bool) -> int:
    """Write the rows from ``first`` on, after ``nonzeros`` values of earlier rows in CSR form; returns the number of both."""
    if isinstance(x, np.ndarray) and not by_type:
        writer.write("nodes/x", first, x)
        return 0
    if first == 0:
        writer.write("nodes/x_indptr", 0, np.zeros(1, np.int64))
    ends = np.arange(1, len(x) + 1) * x.shape[1] if by_type else x.indptr[1:].astype(np.int64)
    writer.write("nodes/x_indptr", first + 1, nonzeros + ends)
    if not by_type:
        writer.write("nodes/x_indices", nonzeros, x.indices)
    writer.write("nodes/x_data", nonzeros, x.reshape(-1) if by_type else x.data)
    return nonzeros + (x.size if by_type else x.nnz)


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
        data: a ``torch_geometric.data.Data``, or any object with its attributes: ``edge_index`` (2, E), and optionally
            ``x`` (N, F) dense or sparse, ``y`` (N,) classes, (N, C) of 0 and 1, or (N,) or (N, K) targets of regression
            with NaN for none, ``edge_weight`` (E,), ``edge_type`` (E,) from 0, ``edge_attr`` (E, D) or (E,), ``num_nodes``,
            and ``train_mask``, ``val_mask``, ``test_mask``: (N,), (N, splits), or node numbers, which may also be
            ``train_idx``, ``val_idx``, ``test_idx``. Other attributes are left out. Or a
            ``torch_geometric.data.HeteroData`` with these attributes for its types, each with features of any width or
            none; edges of all types that have ``edge_attr`` are stored with as many columns as the widest.
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
    from hpcgnn.sources.pyg import data_source  # here, as other conversions need neither loaders nor networkx

    if mask_column is not None:
        check_whole("mask_column", mask_column)
    return write_graph(lambda _: data_source(data, _PYG, mask_column), _PYG, path, ConvertOptions(**options))


def from_networkx(
    graph: Any,
    path: str | Path,
    *,
    x: str | Sequence[str] = "x",
    y: str = "y",
    weight: str = "weight",
    **options: Unpack[Options],
) -> ConvertSummary:
    """Write a graph of networkx as ``graph.h5``. Not collective: one process calls it.

    Node k of the file is the k-th of ``list(graph)``. An edge of an undirected graph is stored in both directions. Parallel edges
    are kept, unless ``drop_duplicates`` merges them. This takes some hundred bytes for each edge, as networkx itself does.

    Args:
        graph: a ``Graph``, ``DiGraph``, ``MultiGraph`` or ``MultiDiGraph``. Node attributes ``train_mask``, ``val_mask`` and
            ``test_mask``, or ``train``, ``val`` and ``test``, are True for the nodes of that set.
        path: the file to write.
        x: name of the node attribute with features, a number or a row of numbers, ``x`` by default; or a list of attributes
            with one number each. Either all nodes have it, or none.
        y: name of the node attribute with the class, a whole number from 0, or a row of 0 and 1, or targets of regression;
            ``y`` by default. Nodes without it have no label.
        weight: name of the edge attribute with weights, ``weight`` by default. If only some edges have it, the others have
            weight 1.
        options: as for ``from_pyg``.

    Returns:
        A summary of the new file, as from ``from_pyg``.

    Raises:
        HpcgnnError: for attributes with other values, and for a file that cannot be written. No file is left behind then.
    """
    from hpcgnn.sources.networkx import graph_source

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
