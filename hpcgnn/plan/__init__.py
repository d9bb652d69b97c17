"""The communication plan: the rows that travel, and the sums before and after (SuperGCN §3.3.1)."""

from hpcgnn.plan.build import ReceiverPlan, SendRows, plan_receiver, sender_matrix
from hpcgnn.plan.plan import STRATEGIES, AggregationPlan, PeerRows, SparseMatrix

__all__ = [
    "STRATEGIES",
    "AggregationPlan",
    "PeerRows",
    "ReceiverPlan",
    "SendRows",
    "SparseMatrix",
    "plan_receiver",
    "sender_matrix",
]
