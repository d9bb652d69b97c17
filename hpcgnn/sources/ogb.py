"""``ogb:NAME``: a node data set of the Open Graph Benchmark (ogbn-arxiv, ogbn-products, ogbn-proteins with its features of
edges), or a data set of links (ogbl-wikikg2, ogbl-biokg, ogbl-collab, ...), through its own loader. ogbn-mag, whose nodes have
types, is read from its raw files in bounded memory (:mod:`hpcgnn.sources.ogb_typed`); ``?inverse=yes`` adds the reverse of each
edge, of a type of its own.

Links keep OGB's sets, and those of ogbl-citation2, ogbl-wikikg2 and ogbl-biokg their fixed negatives. Triples have types. The
nodes of ogbl-biokg have types, in alphabetical order, and each type of its edges joins two of them.

``root`` is the folder that ``NodePropPredDataset`` takes as its argument. ``?download=yes`` answers its question about a large
download, for jobs without a terminal. The published split is kept.

``ogb:ogbn-papers100M`` and ``ogb:mag240m``, the two graphs of 10^8 nodes, are read in slabs from their raw files, without the ogb
package, whose loaders would take some hundred GB of memory. ``root`` may also be the data set's own folder. Of MAG240M, the
graph of papers that cite papers is read, or with ``?types=yes`` also authors and institutions, each as a type of its own;
``inverse=yes`` is as above. Features stay float16. Edges are as published, from the citing to the cited paper. Some test labels
are not published, and nodes without a label are in no split.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import FULL, HALF, MASKS, EdgeType, NodeType
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, ArraySource, Source, Spec, check_edge_index
from hpcgnn.sources.edges import REVERSE, EdgeChunk
from hpcgnn.sources.loaders import default_root, loading, warnings_off
from hpcgnn.sources.node_values import Rows, as_float32, mask_of
from hpcgnn.sources.ogb_typed import TRIPLETS, open_tables
from hpcgnn.sources.slabs import SlabArray, check_file, one_line, open_member, open_npy
from hpcgnn.sources.triples import take_yes
from hpcgnn.sources.typed_nodes import Get, typed_source

_TORCH_SWITCH = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_SPLIT_NAMES = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}
_TYPED = "ogbn-mag"
_LINE_BYTES = 21  # the most bytes of a whole number of 64 bits, with its sign and the line's end


class SlabSource(ArraySource):
    """A graph whose edges (2, E) and features (N, F) are read in slabs. y: (N,) or (N, 1). splits: the nodes of each mask, (k,)
    integers, without those that have no label."""

    def __init__(
        self, where: str, edges: SlabArray, x: SlabArray, y: SlabArray, splits: Mapping[str, np.ndarray], nodes: int
    ) -> None:
        for array, columns in ((x, x.shape[1] if len(x.shape) == 2 else -1), (y, 1)):
            if array.shape not in ((nodes, columns), (nodes,)) or (array is x and columns < 0):
                raise HpcgnnError(
                    f"{array.where} has shape {array.shape}, but it should have a row for each of {nodes:,} nodes"
                )
        check_edge_index(edges, edges.where)
        labels = y.rows(0, nodes).reshape(-1)
        known = labels >= 0
        masks = {name: mask_of(np.asarray(split).reshape(-1), name, nodes, where) for name, split in splits.items()}
        is_labelled = bool(known.any())
        super().__init__(
            where, nodes, np.empty((2, 0), np.int64), y=labels if is_labelled else None,
            masks={name: mask & known for name, mask in masks.items()} if is_labelled else None,
        )  # fmt: skip
        self._slabs, self._rows = edges, x
        dtype = HALF if x.dtype == np.float16 else FULL
        self.info = replace(self.info, num_edges=edges.shape[1], num_features=x.shape[1], x_dtype=dtype)

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        num_edges = self._slabs.shape[1]
        for first in range(0, num_edges, chunk_edges):
            src, dst = self._slabs.columns(first, min(first + chunk_edges, num_edges))
            yield EdgeChunk(src.astype(np.int64, copy=False), dst.astype(np.int64, copy=False))

    def features(self, first: int, last: int) -> Rows | None:
        x = self._rows.rows(first, last)
        return x if x.dtype == np.float16 else as_float32(x)


# -- papers100M --------------------------------------------------------------------------------------------------------


def open_papers(where: str, root: Path) -> SlabSource:
    """Open ogbn-papers100M. where: its name in errors. root: the folder to look in."""
    folder = _folder(where, root, ("ogbn_papers100M", "papers100M-bin"), Path("raw", "data.npz"))
    data = folder / "raw" / "data.npz"
    nodes, edges = (_one_number(open_member(data, f"num_{name}_list")) for name in ("nodes", "edges"))
    edge_index = open_member(data, "edge_index", num_readers=2)
    if edge_index.shape != (2, edges):
        raise HpcgnnError(f"{edge_index.where} has shape {edge_index.shape}, but num_edges_list says (2, {edges})")
    times = folder / "split" / "time"
    splits = {name: _numbers(times / f"{own}.csv.gz", nodes) for name, own in _SPLIT_NAMES.items()}
    labels = open_member(folder / "raw" / "node-label.npz", "node_label")
    return SlabSource(where, edge_index, open_member(data, "node_feat"), labels, splits, nodes)


def _one_number(array: SlabArray) -> int:
    if array.shape != (1,) or array.dtype.kind not in "iu":
        raise HpcgnnError(f"{array.where} is {array.dtype} of shape {array.shape}, but it should be one whole number")
    return int(array.rows(0, 1)[0])


def _numbers(path: Path, most: int) -> np.ndarray:
    """The whole numbers, one on each line, of a gzipped text that has at most ``most`` of them."""
    check_file(path)
    try:
        with gzip.open(path, "rb") as file:
            text = file.read(most * _LINE_BYTES + 1)
        if len(text) > most * _LINE_BYTES:
            raise ValueError(f"it has more numbers than there are nodes, {most:,}")
        words = text.split()
        return np.array(words, dtype=np.int64) if words else np.empty(0, np.int64)
    except (OSError, EOFError, ValueError, OverflowError, zlib.error) as error:
        raise HpcgnnError(f"{path} cannot be read as gzipped numbers of nodes, one a line: {error}") from error


# -- MAG240M -----------------------------------------------------------------------------------------------------------


_MAG_EDGES = (("author", "affiliated_with", "institution"), ("author", "writes", "paper"), ("paper", "cites", "paper"))


def open_mag(where: str, root: Path, *, types: bool = False, inverse: bool = False) -> Source:
    """Open MAG240M-LSC: the graph of its papers and their citations, or with ``types`` all nodes and edges. where: its name in
    errors. root: the folder to look in. inverse: as of :func:`hpcgnn.sources.typed_nodes.typed_source`."""
    folder = _folder(where, root, ("mag240m_kddcup2021", "mag240m"), Path("processed", "paper", "node_feat.npy"))
    papers, counts = folder / "processed" / "paper", _loaded(folder / "meta.pt")
    names = ("paper", "author", "institution")
    for name in names if types else names[:1]:
        if not isinstance(counts.get(name), int) or counts[name] < 0:
            raise HpcgnnError(f"{folder / 'meta.pt'} does not have the number of {name}s under {name!r}")
    found = _loaded(folder / "split_dict.pt")
    own = ("train", "valid", "test" if "test" in found else "test-dev")
    if missing := [name for name in own if not isinstance(found.get(name), np.ndarray)]:
        raise HpcgnnError(
            f"{folder / 'split_dict.pt'} has no array {missing[0]!r}; it has {', '.join(map(str, found))}"
        )
    splits = {mask: found[name] for mask, name in zip(MASKS, own, strict=True)}
    edges = {key: open_npy(folder / "processed" / "___".join(key) / "edge_index.npy")
             for key in (_MAG_EDGES if types else _MAG_EDGES[-1:])}  # fmt: skip
    x, labels = open_npy(papers / "node_feat.npy"), open_npy(papers / "node_label.npy")
    if not types:
        return SlabSource(where, edges[_MAG_EDGES[-1]], x, labels, splits, counts["paper"])
    y = labels.rows(0, labels.shape[0]).reshape(-1)
    of_papers: dict[str, Any] = {"num_nodes": np.array(counts["paper"]), "x": x, "y": y}
    for mask, split in splits.items():
        chosen = mask_of(split.reshape(-1), mask, counts["paper"], where)
        of_papers[mask] = chosen & (y >= 0) if y.size == chosen.size else chosen
    nodes: dict[str, Get] = {"paper": of_papers.get}
    nodes |= {name: {"num_nodes": np.array(counts[name])}.get for name in names[1:]}
    of_edges: dict[tuple[str, str, str], Get] = {key: {"edge_index": each}.get for key, each in edges.items()}
    return typed_source(where, nodes, of_edges, inverse=inverse)


def _loaded(path: Path) -> dict[str, Any]:
    """A dictionary of numbers and arrays that torch saved; other objects are refused, and no code of the file is run."""
    import torch

    check_file(path)

    array, scalar = np.empty(0).__reduce__()[0], np.float64().__reduce__()[0]
    types: list[Any] = [np.ndarray, np.dtype, *(type(np.dtype(kind)) for kind in ("i4", "i8", "f4", "f8"))]
    for module in ("numpy.core", "numpy._core"):  # names in numpy 1, with which these files were written, and numpy 2
        types += [(array, f"{module}.multiarray._reconstruct"), (scalar, f"{module}.multiarray.scalar")]
    try:
        with torch.serialization.safe_globals(types), warnings_off():
            found = torch.load(path, weights_only=True)
    except Exception as error:  # pickles raise errors of many types
        raise HpcgnnError(f"{path} cannot be read as numbers that torch saved: {one_line(error)[:120]}") from error
    if not isinstance(found, dict):
        raise HpcgnnError(f"{path} holds a {type(found).__name__}, but it should be a dictionary")
    tensors = {key: value.numpy() for key, value in found.items() if isinstance(value, torch.Tensor)}
    return found | tensors | {key: value.item() for key, value in found.items() if isinstance(value, np.generic)}


def _folder(where: str, root: Path, names: tuple[str, ...], inside: Path) -> Path:
    """The data set's folder, which has the file ``inside``: a folder in ``root`` with one of OGB's ``names``, or ``root``."""
    for folder in (*(root / name for name in names), root):
        if (folder / inside).is_file():
            return folder
    raise HpcgnnError(
        f"{where}: there is no {root / names[0] / inside}: download the data set and name the folder with ?root=DIR"
    )


@SOURCES.register("ogb")
def _open_ogb(spec: Spec, folder: Path) -> Source:
    root_text = spec.take("root")
    root = Path(root_text).expanduser() if root_text else default_root("ogb")
    if spec.name.lower() == "ogbn-papers100m":
        return open_papers(spec.text, root)
    if spec.name.lower() in ("mag240m", "mag240m-lsc"):
        return open_mag(spec.text, root, types=take_yes(spec, "types"), inverse=take_yes(spec, "inverse"))
    download, is_link = take_yes(spec, "download"), spec.name.startswith("ogbl-")
    base = root / spec.name.replace("-", "_")
    if spec.name == _TYPED and (base / "raw" / TRIPLETS).exists():
        return _tables(spec, base, folder)
    try:
        with warnings_off():
            from ogb.linkproppred import LinkPropPredDataset
            from ogb.nodeproppred import NodePropPredDataset
    except ImportError as error:
        raise HpcgnnError(f"{spec.text} needs the ogb package ({error}): pip install 'hpcgnn[ogb]'") from error
    with loading(spec.text, root, may_download=download), _whole_pickles():
        if is_link:
            links = LinkPropPredDataset(spec.name, str(root))
            both_ways = str(links.meta_info.get("add_inverse_edge")) == "True"
            return _links(spec.text, links[0], links.get_edge_split(), both_ways=both_ways)
        dataset = NodePropPredDataset(spec.name, str(root))
        if dataset.is_hetero:  # it has downloaded the files
            return _tables(spec, base, folder)
        graph, labels = dataset[0]
        num_nodes, split = int(graph["num_nodes"]), dataset.get_idx_split()
        masks = {
            mask: mask_of(np.asarray(split[name]), name, num_nodes, spec.text) for mask, name in _SPLIT_NAMES.items()
        }
        return ArraySource(
            spec.text,
            num_nodes,
            graph["edge_index"],
            edge_attr=graph.get("edge_feat"),
            x=graph["node_feat"],
            y=labels,
            masks=masks,
        )


def _tables(spec: Spec, base: Path, folder: Path) -> Source:
    return open_tables(spec.text, base, folder, inverse=take_yes(spec, "inverse"))


_ENDS = (("edge",), ("head", "tail"), ("source_node", "target_node"))  # names of ends in OGB's splits


def _links(where: str, graph: dict[str, Any], split: dict[str, dict[str, Any]], *, both_ways: bool) -> ArraySource:
    """All links of a data set of links, with their sets. graph: it has the training links, with ``both_ways`` also their
    reverses. split: OGB's, with the held-out links."""
    graph = _with_kinds(graph) if "num_nodes_dict" in graph else graph
    edges, types, weights = [np.asarray(graph["edge_index"])], [graph.get("edge_reltype")], [graph.get("edge_weight")]
    sets, notes, attr = [np.zeros(edges[0].shape[1], np.uint8)], list[str](), graph.get("edge_feat")
    asked = []
    if attr is not None:
        notes.append("the links are those of the training set, because OGB has no features of the others")
    for number, name in enumerate(("valid", "test") if attr is None else (), 1):
        ends, kind, weight, table = _held_out(split[name], graph)
        if table:
            table |= {"links/source": ends[0], "links/target": ends[1], "links/set": np.full(ends.shape[1], number)}
            asked.append(table if kind is None else table | {"links/type": kind})
        for way, its_set in ((ends, number), (ends[::-1], REVERSE))[: 1 + both_ways]:
            edges, types, weights = [*edges, way], [*types, kind], [*weights, weight]
            sets.append(np.full(way.shape[1], its_set, np.uint8))
    return ArraySource(
        where,
        int(graph["num_nodes"]),
        np.concatenate(edges, axis=1),
        weight=None if weights[0] is None else np.concatenate([np.asarray(each).reshape(-1) for each in weights]),
        edge_attr=attr,
        edge_type=None if types[0] is None else np.concatenate([np.asarray(each).reshape(-1) for each in types]),
        edge_split=np.concatenate(sets) if attr is None else None,
        x=graph.get("node_feat"),
        notes=notes,
        node_types=graph.get("node_types", ()),
        edge_types=graph.get("edge_types", ()),
        asked=asked,
    )


def _held_out(
    links: dict[str, Any], graph: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, dict[str, np.ndarray]]:
    """Ends (2, m), types (m,) or None, and weights (m,) of the links of one of OGB's sets, and (m, K) candidates by name."""
    names = next(names for names in _ENDS if names[0] in links)
    negatives = {
        f"links/{end}_candidates": np.asarray(links[f"{name}_neg"])
        for end, name in zip(("source", "target"), names if len(names) == 2 else (), strict=False)
        if f"{name}_neg" in links
    }
    found = [np.asarray(links[name]) for name in names]
    ends = found[0].T if len(found) == 1 else np.stack([each.reshape(-1) for each in found])
    types = np.asarray(links["relation"]).reshape(-1) if "relation" in links else None
    if "first" in graph:
        first = np.array([[graph["first"][kind] for kind in links[f"{end}_type"]] for end in ("head", "tail")])
        ends = ends + first
        negatives = {name: each + first[int("target" in name)][:, np.newaxis] for name, each in negatives.items()}
        types = np.searchsorted(graph["numbers"], np.asarray(types))
    return ends, types, np.asarray(links.get("weight", np.ones(ends.shape[1]))).reshape(-1), negatives


def _with_kinds(graph: dict[str, Any]) -> dict[str, Any]:
    """A graph with several kinds of nodes as one whose nodes have types: ids of a kind follow those of the kind before. first:
    the first id of each kind. numbers: OGB's ascending numbers of the types of edges."""
    counts = {kind: int(graph["num_nodes_dict"][kind]) for kind in sorted(graph["num_nodes_dict"])}
    kinds, first = list(counts), dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
    numbers = {triplet: int(np.asarray(each).flat[0]) for triplet, each in graph["edge_reltype"].items()}
    triplets = sorted(numbers, key=numbers.__getitem__)
    ends = np.array([[first[head], first[tail]] for head, _, tail in triplets])[:, :, np.newaxis]
    edges = [np.asarray(graph["edge_index_dict"][each]) + begin for each, begin in zip(triplets, ends, strict=True)]
    return {
        "num_nodes": sum(counts.values()),
        "edge_index": np.concatenate(edges, axis=1),
        "edge_reltype": np.repeat(np.arange(len(triplets)), [each.shape[1] for each in edges]),
        "node_types": tuple(NodeType(kind, count) for kind, count in counts.items()),
        "edge_types": tuple(EdgeType(kinds.index(head), name, kinds.index(tail)) for head, name, tail in triplets),
        "first": first,
        "numbers": sorted(numbers.values()),
    }


@contextlib.contextmanager
def _whole_pickles() -> Iterator[None]:
    """Let torch 2.6 or later read ogb's cache, a pickle that it refuses by default; :func:`loading` refuses pickles with code."""
    before = os.environ.get(_TORCH_SWITCH)
    os.environ[_TORCH_SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TORCH_SWITCH]
        else:
            os.environ[_TORCH_SWITCH] = before
