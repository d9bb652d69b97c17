"""GraphSAGE (Hamilton et al.)."""

from __future__ import annotations

from hpcgnn.nn.config import register
from hpcgnn.nn.layers import SAGELayer
from hpcgnn.nn.stack import LinearStack


@register("sage")
class SAGE(LinearStack):
    """A stack of :class:`SAGELayer`."""

    aggregation = "mean"
    layer = SAGELayer
    kept_rows = 3
