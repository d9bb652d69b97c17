"""``parts.h5``: the graph in part order, and the communication plans.

The arrays of ``graph.h5`` (:mod:`hpcgnn.data.graph_file`) with nodes renumbered so that each part is contiguous (its
nodes in ascending original id); edge endpoints are positions. Beside them:

    /parts/node_offsets (P+1) int64      part p owns positions [node_offsets[p], node_offsets[p+1])
    /nodes/original_ids (N) int64        position -> original id
    /plan/STRATEGY/...                   see :mod:`hpcgnn.data.plan_store`
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.data import h5
from hpcgnn.data.graph_file import GraphMeta, SlabReader, damaged

PARTS_KIND, PARTS_VERSION = "hpcgnn-parts", 1


def parts_schema(meta: GraphMeta, num_parts: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Dataset names with shapes and dtypes of a parts file without plans."""
    return meta.schema() | {
        "parts/node_offsets": ((num_parts + 1,), np.dtype(np.int64)),
        "nodes/original_ids": ((meta.num_nodes,), np.dtype(np.int64)),
    }


class PartsFile(SlabReader):
    """An open ``parts.h5``."""

    def __init__(self, path: str | Path, mode: str = "r") -> None:
        super().__init__(h5.open_checked(path, PARTS_KIND, PARTS_VERSION, mode))
        self.num_parts = int(self.file.attrs.get("num_parts", 0))
        self.node_offsets: np.ndarray = self.read("parts/node_offsets", 0, self.num_parts + 1)
        ends = self.node_offsets[[0, -1]].tolist() if self.node_offsets.size == self.num_parts + 1 else None
        if self.num_parts < 1 or ends != [0, self.meta.num_nodes] or (np.diff(self.node_offsets) < 0).any():
            raise damaged(self.file, "parts/node_offsets does not divide the nodes")

    def part(self, part: int) -> tuple[int, int]:
        """The positions ``[first, last)`` that ``part`` owns."""
        return int(self.node_offsets[part]), int(self.node_offsets[part + 1])
