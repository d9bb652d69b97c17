"""``parts.h5``: the graph in part order, and the communication plans.

It has the arrays of ``graph.h5`` (:mod:`hpcgnn.data.graph_file`). Nodes are renumbered so that each part is contiguous, with its
nodes in the order of their original ids; a node's number here is its position, and edges are stored by positions. Further arrays:

    /parts/node_offsets (P+1) int64      part p owns positions [node_offsets[p], node_offsets[p+1])
    /nodes/original_ids (N) int64        position -> original id
    /checksums (arrays, P) uint64        of each part's slab of each array (:mod:`hpcgnn.data.checksums`); not in version 1
    /plan/STRATEGY/...                   see :mod:`hpcgnn.data.plan_store`
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.data import h5
from hpcgnn.data.graph_file import GraphFile, GraphMeta, SlabReader
from hpcgnn.data.schema import Rules, layout, parts_rules

PARTS_KIND, PARTS_VERSION = "hpcgnn-parts", 4
MADE_BY = {"method": str, "objective": str, "balance": str, "seed": int, "ranks_per_node": int, "graph_uuid": str}
"""Attributes that describe the partition, with their types. Older files have no ``ranks_per_node``."""


def parts_schema(meta: GraphMeta, num_parts: int) -> h5.Schema:
    """Dataset names with shapes and dtypes of a parts file without plans and checksums."""
    return layout(parts_rules(meta, num_parts))


class PartsFile(SlabReader):
    """An open ``parts.h5``; its slabs are the parts."""

    KIND, VERSIONS, SLAB = PARTS_KIND, (1, 2, 3, PARTS_VERSION), "part"

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.num_slabs

    @property
    def ranks_per_node(self) -> int:
        """The number of consecutive ranks on each node for which the parts were made; 1 if nobody asked for another."""
        return int(self.attributes.get("ranks_per_node", 1))

    @property
    def node_offsets(self) -> np.ndarray:
        """(P + 1,) int64 first position of each part."""
        return self.bounds

    def part(self, part: int) -> tuple[int, int]:
        """The positions ``[first, last)`` that ``part`` owns."""
        return int(self.node_offsets[part]), int(self.node_offsets[part + 1])

    def _attribute_types(self) -> dict[str, type]:
        with h5.reading(self.path, "its attributes"):
            # These attributes are optional: no array is read with the help of them.
            told = {name: kind for name, kind in MADE_BY.items() if name in self.file.attrs}
        return super()._attribute_types() | {"num_parts": int} | told

    def _rules(self) -> Rules:
        num_parts = self.attributes["num_parts"]
        if num_parts < 1:
            raise h5.damaged(self.path, f"attribute num_parts is {num_parts}")
        if not 1 <= self.ranks_per_node <= num_parts:
            raise h5.damaged(self.path, f"attribute ranks_per_node is {self.ranks_per_node} for {num_parts} parts")
        return parts_rules(self.meta, num_parts)

    def _bounds(self) -> np.ndarray:
        return self.arrays["parts/node_offsets"].read()


def reader_of(path: str | Path) -> type[SlabReader]:
    """The class that reads ``path``: :class:`PartsFile` for ``parts.h5``, and else :class:`GraphFile`."""
    return PartsFile if h5.kind_of(path) == PARTS_KIND else GraphFile
