"""GIN (Xu et al.)."""

from __future__ import annotations

from hpcgnn.nn.config import register
from hpcgnn.nn.layers import GINLayer
from hpcgnn.nn.stack import LinearStack


@register("gin")
class GIN(LinearStack):
    """A stack of :class:`GINLayer`."""

    aggregation = "sum"
    layer = GINLayer
    kept_rows = 4
