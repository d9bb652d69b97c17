"""GATv2 (Brody et al.)."""

from __future__ import annotations

from hpcgnn.nn.attention import GATv2Layer
from hpcgnn.nn.attention_stack import AttentionStack
from hpcgnn.nn.config import register


@register("gatv2")
class GATv2(AttentionStack):
    """A stack of :class:`GATv2Layer`."""

    layer = GATv2Layer
