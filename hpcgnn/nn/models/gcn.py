"""GCN (Kipf & Welling)."""

from __future__ import annotations

from hpcgnn.nn.config import register
from hpcgnn.nn.layers import GCNLayer
from hpcgnn.nn.stack import LinearStack


@register("gcn")
class GCN(LinearStack):
    """A stack of :class:`GCNLayer`."""

    layer = GCNLayer
    kept_rows = 2
