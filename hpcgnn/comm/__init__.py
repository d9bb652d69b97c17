"""Ranks and the messages between them: worlds, and the boundary exchange."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcgnn.comm.agreement import same_everywhere, together
    from hpcgnn.comm.buffer import Buffer
    from hpcgnn.comm.codecs import Codes
    from hpcgnn.comm.exchange import Exchange
    from hpcgnn.comm.links import choose_links
    from hpcgnn.comm.messages import MessageConfig, Messages
    from hpcgnn.comm.mpi_world import MpiWorld, whole_job
    from hpcgnn.comm.segments import Segments
    from hpcgnn.comm.startup import check_alike
    from hpcgnn.comm.timings import PHASES, Timings
    from hpcgnn.comm.traffic import BYTES
    from hpcgnn.comm.world import World

__all__ = [
    "BYTES",
    "PHASES",
    "Buffer",
    "Codes",
    "Exchange",
    "MessageConfig",
    "Messages",
    "MpiWorld",
    "Segments",
    "Timings",
    "World",
    "check_alike",
    "choose_links",
    "same_everywhere",
    "together",
    "whole_job",
]

# Imported at first use: exchanges need torch, and the ranks of `hpcgnn partition` do without the memory that it takes.
_HOMES = {
    "BYTES": "traffic",
    "PHASES": "timings",
    "Buffer": "buffer",
    "Codes": "codecs",
    "Exchange": "exchange",
    "MessageConfig": "messages",
    "Messages": "messages",
    "MpiWorld": "mpi_world",
    "Segments": "segments",
    "Timings": "timings",
    "World": "world",
    "check_alike": "startup",
    "choose_links": "links",
    "same_everywhere": "agreement",
    "together": "agreement",
    "whole_job": "mpi_world",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hpcgnn.comm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hpcgnn.comm.{_HOMES[name]}"), name)
