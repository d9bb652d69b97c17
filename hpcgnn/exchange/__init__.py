"""Messages between ranks: the boundary exchange, its codecs, and what stale rows keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.base.lazy import attributes

if TYPE_CHECKING:
    from hpcgnn.exchange.codecs import QuantizedRows
    from hpcgnn.exchange.exchange import Exchange, choose_links
    from hpcgnn.exchange.message_config import MessageConfig
    from hpcgnn.exchange.messages import Messages
    from hpcgnn.exchange.traffic import BYTES, PHASES, Timings

__all__ = ["BYTES", "PHASES", "Exchange", "MessageConfig", "Messages", "QuantizedRows", "Timings", "choose_links"]

# Exchanges need torch, so names are imported when they are used.
__getattr__ = attributes(__name__)
