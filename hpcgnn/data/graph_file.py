"""``graph.h5``: one whole graph in original ids, readable in slabs.

    /edges/indptr (N+1) int64, /edges/indices (E) int64, [/edges/weight (E) float32]    CSR by destination, sorted rows
    /nodes/x (N, F) float32,  or  /nodes/x_indptr (N+1) int64, x_indices (nnz) int32, x_data (nnz) float32
    /nodes/y (N) int64, -1 = no label,  or (N, C) uint8 multi-label, an all-zero row = no label
    /nodes/train_mask, val_mask, test_mask (N) bool

Arrays a graph does not have are absent. ``parts.h5`` holds the same arrays in part order (:mod:`hpcgnn.data.parts_file`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse as sp

from hpcgnn.data import h5
from hpcgnn.errors import HpcgnnError

GRAPH_KIND, GRAPH_VERSION = "hpcgnn-graph", 1
SINGLE_LABEL, MULTI_LABEL, NO_TASK = "single-label", "multi-label", "none"
MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True)
class GraphMeta:
    """What a graph holds; ``x_nnz`` is None for dense features, else the number of stored feature values."""

    num_nodes: int
    num_edges: int
    num_features: int = 0
    num_classes: int = 0
    task: str = NO_TASK
    directed: bool = True
    weighted: bool = False
    x_nnz: int | None = None
    has_masks: bool = False
    provenance: dict[str, Any] = field(default_factory=dict)

    def attributes(self) -> dict[str, Any]:
        """As HDF5 attributes."""
        stored_nnz = -1 if self.x_nnz is None else self.x_nnz
        return asdict(self) | {"provenance": json.dumps(self.provenance), "x_nnz": stored_nnz}

    @classmethod
    def from_attributes(cls, attributes: Any) -> GraphMeta:
        """The inverse of :meth:`attributes`."""
        values = {name: _plain(attributes[name]) for name in cls.__dataclass_fields__}
        values["provenance"] = json.loads(values["provenance"])
        values["x_nnz"] = None if values["x_nnz"] < 0 else values["x_nnz"]
        return cls(**values)

    def schema(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Dataset names with shapes and dtypes."""
        nodes, edges = self.num_nodes, self.num_edges
        arrays: dict[str, tuple[tuple[int, ...], Any]] = {
            "edges/indptr": ((nodes + 1,), np.int64),
            "edges/indices": ((edges,), np.int64),
        }
        if self.weighted:
            arrays["edges/weight"] = ((edges,), np.float32)
        if self.x_nnz is not None:
            arrays["nodes/x_indptr"] = ((nodes + 1,), np.int64)
            arrays["nodes/x_indices"] = ((self.x_nnz,), np.int32)
            arrays["nodes/x_data"] = ((self.x_nnz,), np.float32)
        elif self.num_features:
            arrays["nodes/x"] = ((nodes, self.num_features), np.float32)
        if self.task == SINGLE_LABEL:
            arrays["nodes/y"] = ((nodes,), np.int64)
        elif self.task == MULTI_LABEL:
            arrays["nodes/y"] = ((nodes, self.num_classes), np.uint8)
        if self.has_masks:
            arrays.update({f"nodes/{mask}": ((nodes,), np.bool_) for mask in MASKS})
        return {name: (shape, np.dtype(dtype)) for name, (shape, dtype) in arrays.items()}


class SlabReader:
    """Rows ``[first, last)`` of the arrays of a graph file or a parts file."""

    def __init__(self, file: h5py.File) -> None:
        self.file = file
        try:
            self.meta = GraphMeta.from_attributes(file.attrs)
        except (KeyError, ValueError) as error:
            raise damaged(file, f"an attribute is missing or wrong: {error}") from error
        self.uuid = str(file.attrs["uuid"])

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, name: str, first: int, last: int) -> np.ndarray:
        """Rows ``[first, last)`` of dataset ``name``."""
        return h5.read_rows(self.file, name, first, last)

    def indptr(self, first: int, last: int, name: str = "edges/indptr") -> np.ndarray:
        """Offsets ``[first, last]`` (n+1) int64 of ``edges/indptr`` or ``nodes/x_indptr``, not rebased; checked to rise."""
        entries = self.meta.num_edges if name == "edges/indptr" else self.meta.x_nnz or 0
        indptr = self.read(name, first, last + 1)
        if indptr.size != last - first + 1 or indptr[0] < 0 or indptr[-1] > entries or (np.diff(indptr) < 0).any():
            raise damaged(self.file, f"{name} is not a rising list of offsets between nodes {first} and {last}")
        return indptr

    def sources(self, first_edge: int, last_edge: int) -> np.ndarray:
        """Sources of edges ``[first_edge, last_edge)``, (m,) int64, checked to be nodes."""
        sources = self.read("edges/indices", first_edge, last_edge)
        if sources.size and not 0 <= sources.min() <= sources.max() < self.meta.num_nodes:
            raise damaged(
                self.file,
                f"one of the edges {first_edge} to {last_edge - 1} comes from a node outside 0 to {self.meta.num_nodes - 1}",
            )
        return sources

    def edges(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """``(indptr, indices)`` of the in-edges of nodes ``[first, last)``, as :meth:`indptr` and :meth:`sources` give them."""
        indptr = self.indptr(first, last)
        return indptr, self.sources(int(indptr[0]), int(indptr[-1]))

    def weights(self, first_edge: int, last_edge: int) -> np.ndarray | None:
        """Weights of edges ``[first_edge, last_edge)``, or None for an unweighted graph."""
        return self.read("edges/weight", first_edge, last_edge) if self.meta.weighted else None

    def features(self, first: int, last: int) -> np.ndarray | sp.csr_matrix | None:
        """Features of nodes ``[first, last)``: (n, F) float32 dense or CSR as stored; None if there are none."""
        if self.meta.x_nnz is not None:
            indptr = self.indptr(first, last, "nodes/x_indptr")
            begin, end = int(indptr[0]), int(indptr[-1])
            columns, data = self.read("nodes/x_indices", begin, end), self.read("nodes/x_data", begin, end)
            if columns.size and not 0 <= columns.min() <= columns.max() < self.meta.num_features:
                raise damaged(self.file, f"nodes/x_indices leaves [0, {self.meta.num_features})")
            return sp.csr_matrix((data, columns, indptr - begin), shape=(last - first, self.meta.num_features))
        return self.read("nodes/x", first, last) if self.meta.num_features else None

    def labels(self, first: int, last: int) -> np.ndarray | None:
        """``y`` of nodes ``[first, last)``, or None."""
        return None if self.meta.task == NO_TASK else self.read("nodes/y", first, last)

    def mask(self, name: str, first: int, last: int) -> np.ndarray | None:
        """``train_mask``, ``val_mask`` or ``test_mask`` of nodes ``[first, last)``, or None."""
        return self.read(f"nodes/{name}", first, last) if self.meta.has_masks else None


class GraphFile(SlabReader):
    """An open ``graph.h5``."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(h5.open_checked(path, GRAPH_KIND, GRAPH_VERSION))


def damaged(file: h5py.File, what: str) -> HpcgnnError:
    """The error for a file whose contents contradict each other."""
    return HpcgnnError(f"{file.filename} is damaged ({what}): make it anew")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
