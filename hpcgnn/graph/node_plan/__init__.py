"""The plan of ranks that share nodes: a row travels once between two nodes, however many of their ranks send to it or need it."""

from hpcgnn.graph.node_plan.build import NodePlan, Route, build_node_plan, rows_if_placed
from hpcgnn.graph.node_plan.count import NodeRows, count_between, count_pairs
from hpcgnn.graph.node_plan.cover import NodeEdges, RowsOfNodes, rows_between

__all__ = [
    "NodeEdges",
    "NodePlan",
    "NodeRows",
    "Route",
    "RowsOfNodes",
    "build_node_plan",
    "count_between",
    "count_pairs",
    "rows_between",
    "rows_if_placed",
]
