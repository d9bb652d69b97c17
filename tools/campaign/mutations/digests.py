"""A short text for the result of reading a file, to compare results."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

# These attributes differ between two conversions of one file.
_OF_ITS_OWN = {"uuid", "provenance", "parts_uuid"}


def digest(*parts: Any) -> str:
    """The digest of arrays, with their types and shapes, and of plain values."""
    total = hashlib.sha1(usedforsecurity=False)
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = part.detach().numpy()
        if isinstance(part, np.ndarray):
            total.update(f"{part.dtype.str}{part.shape}".encode())
            total.update(np.ascontiguousarray(part).tobytes())
        else:
            total.update(repr(part).encode())
    return total.hexdigest()[:16]


def of_edges(num_nodes: int, edges: list[tuple[int, int, float]], *, weighted: bool) -> str:
    """The digest of a graph that has only edges, in any order; weights are float32."""
    rows = sorted((s, d, float(np.float32(w)) if weighted else 1.0) for s, d, w in edges)
    return digest("edges", num_nodes, weighted, rows)


def of_graph_file(path: Path) -> str:
    """The digest of a graph file: as :func:`of_edges` if it has only edges, else of all its arrays."""
    with h5py.File(path, "r") as file:
        if "nodes" in file and len(file["nodes"]):
            return of_hdf5(path)
        indptr, indices = file["edges/indptr"][:], file["edges/indices"][:]
        weighted = "weight" in file["edges"]
        weights = file["edges/weight"][:] if weighted else np.ones(indices.size, np.float32)
    targets = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    edges = list(zip(indices.tolist(), targets.tolist(), weights.tolist(), strict=True))
    return of_edges(indptr.size - 1, edges, weighted=weighted)


def of_hdf5(path: Path) -> str:
    """The digest of all datasets, and of all attributes that do not belong to the file itself."""
    parts: list[Any] = []

    def add(name: str, item: Any) -> None:
        parts.append((name, *((k, str(v)) for k, v in sorted(item.attrs.items()) if not _is_own(k))))
        if isinstance(item, h5py.Dataset) and not _is_own(name):
            parts.append(item[()])

    with h5py.File(path, "r") as file:
        add("", file)
        file.visititems(add)
    return digest(*parts)


def _is_own(name: str) -> bool:
    return name in _OF_ITS_OWN or "checksum" in name


def of_run(path: Path) -> str:
    """The digest of a training: losses, metrics and weights of a run."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    learned = [(line["epoch"], line.get("loss"), line.get("test_metric")) for line in lines]
    last = torch.load(path / "checkpoints" / "last.pt", weights_only=True)
    return digest(learned, last["next_epoch"], *(item for pair in sorted(last["model"].items()) for item in pair))
