"""Orders of a part's nodes in which aggregation finds more of the rows that it gathers in the caches, and a choice among them
by measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.base.lazy import attributes

if TYPE_CHECKING:
    from hpcgnn.graph.node_order.choice import NodeOrder, node_order
    from hpcgnn.graph.node_order.methods import METHODS

__all__ = ["METHODS", "NodeOrder", "node_order"]

__getattr__ = attributes(
    __name__,
    {
        "METHODS": "hpcgnn.graph.node_order.methods",
        "NodeOrder": "hpcgnn.graph.node_order.choice",
        "node_order": "hpcgnn.graph.node_order.choice",
    },
)
