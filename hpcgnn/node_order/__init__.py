"""Orders of a part's nodes in which aggregation finds more of what it gathers in the caches; which of them is measured."""

from hpcgnn.node_order.choice import NodeOrder, node_order
from hpcgnn.node_order.orders import METHODS

__all__ = ["METHODS", "NodeOrder", "node_order"]
