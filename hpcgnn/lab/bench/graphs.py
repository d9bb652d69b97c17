"""The graphs to measure, each kept in a folder, so that several processes read the same one: the CSR matrix of a source's edges
by destination, with ascending sources and parallel edges. The nodes may be in another order, or the matrix may be a *part*, the
inner edges of one of METIS' parts, which ``hpcgnn partition`` makes in the same way."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.kernels import Csr
from hpcgnn.lab.bench.ceilings import last_level_cache_bytes
from hpcgnn.lab.bench.names import HOST_NAME
from hpcgnn.partition.metis import Unusable, load_metis
from hpcgnn.sources import open_source

ORDERS = ("original", "metis", "random")
_ORDER_PARTS = 64  # parts from which the METIS order is made


class Graphs:
    """Makes graphs in ``folder``, and finds those that exist already."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def whole(self, source: str, order: str = "original") -> Path:
        """The folder of the graph from ``source``, with its nodes in ``order``. Raises :class:`HpcgnnError` if it cannot be
        made."""
        folder = self._place(source, order)
        if not (folder / "graph.json").exists():
            src, dst, nodes = _edges(source)
            if order != "original":
                new = np.random.default_rng(0).permutation(nodes)
                if order == "metis":  # the place of each node when nodes are sorted by part
                    new = np.argsort(np.argsort(self.parts(source, _ORDER_PARTS), kind="stable"))
                src, dst = new[src], new[dst]
            write_graph(folder, src, dst, nodes, source if order == "original" else f"{source} in {order} order")
        return folder

    def part(self, source: str, parts: int) -> Path:
        """The folder of the part with most inner edges among ``parts`` parts of the graph from ``source``."""
        folder = self._place(source, f"part-of-{parts}")
        if not (folder / "graph.json").exists():
            part_of = self.parts(source, parts)
            src, dst, _ = _edges(source)
            inner = part_of[src] == part_of[dst]
            largest = int(np.bincount(part_of[src[inner]], minlength=parts).argmax())
            kept = inner & (part_of[src] == largest)
            members = part_of == largest
            local = np.cumsum(members) - 1
            name = f"a METIS part of {parts} of {source}"
            write_graph(folder, local[src[kept]], local[dst[kept]], int(members.sum()), name)
        return folder

    def parts(self, source: str, parts: int) -> np.ndarray:
        """(nodes,) part of each node in METIS' partition."""
        path = self._place(source, f"parts-{parts}.npy")
        if not path.exists():
            src, dst, nodes = _edges(source)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, _metis(src, dst, nodes, parts))
        return np.load(path, allow_pickle=False)

    def _place(self, source: str, name: str) -> Path:
        plain = "".join(letter if letter.isalnum() or letter in "=.-" else "_" for letter in source)
        return self._folder / plain / name


def write_graph(folder: Path, src: np.ndarray, dst: np.ndarray, nodes: int, name: str) -> None:
    """Store the edges of a graph, from ``src`` (E,) to ``dst`` (E,), as the matrix that aggregates over them."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = np.sort(dst * np.int64(nodes) + src)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(keys // max(nodes, 1), minlength=nodes))))
    np.save(folder / "indptr.npy", indptr)
    np.save(folder / "indices.npy", (keys % max(nodes, 1)).astype(np.int32))
    largest = int(np.diff(indptr).max(initial=0))
    about = {"name": name, "nodes": nodes, "entries": int(keys.size), "largest_row": largest}
    (folder / "graph.json").write_text(json.dumps(about))


def read_graph(folder: Path) -> Csr:
    """The matrix that :func:`write_graph` has stored."""
    nodes = json.loads((folder / "graph.json").read_text())["nodes"]
    indptr, indices = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("indptr", "indices"))
    return Csr(indptr, indices, nodes)


def facts(folder: Path, width: int, device: str = HOST_NAME) -> dict[str, Any]:
    """The name, nodes, entries and longest row of a stored graph, and facts about ``width`` columns of float32 features."""
    found = json.loads((folder / "graph.json").read_text())
    feature_bytes = found["nodes"] * width * 4
    beyond_caches = feature_bytes > last_level_cache_bytes(device)
    return found | {"width": width, "feature_bytes": feature_bytes, "beyond_caches": beyond_caches}


def _edges(source: str) -> tuple[np.ndarray, np.ndarray, int]:
    with tempfile.TemporaryDirectory() as folder:
        opened = open_source(source, Path(folder))
        chunks = [(chunk.src, chunk.dst) for chunk in opened.edges()]
        src, dst = (np.concatenate([chunk[side] for chunk in chunks] or [np.zeros(0, np.int64)]) for side in (0, 1))
    if not src.size:
        raise HpcgnnError(f"{source} has no edges, so there is nothing to aggregate: give another --graph")
    return src, dst, opened.info.num_nodes


def _metis(src: np.ndarray, dst: np.ndarray, nodes: int, parts: int) -> np.ndarray:
    try:
        metis = load_metis(2 * src.size)
    except Unusable:
        raise HpcgnnError("--parts needs METIS: install it with pip install pymetis, or give --parts 0") from None
    if nodes < 8 * parts:
        raise HpcgnnError(f"{nodes} nodes are too few for {parts} parts: give fewer --parts, or 0")
    loops = src == dst
    ones = np.ones(int((~loops).sum()), np.int8)
    matrix = sp.csr_matrix((ones, (src[~loops], dst[~loops])), (nodes, nodes))
    both = (matrix + matrix.T).tocsr()
    weights = np.bincount(dst, minlength=nodes)[:, None] + 1
    return metis.partition((both.indptr, both.indices), weights, parts, "cut", seed=0)
