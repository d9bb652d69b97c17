"""Ranks and the messages between them: worlds, and the boundary exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.lazy import attributes

if TYPE_CHECKING:
    from hpcgnn.comm.agreement import raise_on_all_ranks, same_everywhere
    from hpcgnn.comm.buffer import Buffer
    from hpcgnn.comm.codecs import Codes
    from hpcgnn.comm.exchange import Exchange
    from hpcgnn.comm.links import choose_links
    from hpcgnn.comm.message_config import MessageConfig
    from hpcgnn.comm.messages import Messages
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
    "raise_on_all_ranks",
    "same_everywhere",
    "whole_job",
]

# Exchanges need torch. The ranks of `hpcgnn partition` do not, and save the memory that importing it takes.
__getattr__ = attributes(
    __name__,
    {
        "BYTES": "hpcgnn.comm.traffic",
        "PHASES": "hpcgnn.comm.timings",
        "Buffer": "hpcgnn.comm.buffer",
        "Codes": "hpcgnn.comm.codecs",
        "Exchange": "hpcgnn.comm.exchange",
        "MessageConfig": "hpcgnn.comm.message_config",
        "Messages": "hpcgnn.comm.messages",
        "MpiWorld": "hpcgnn.comm.mpi_world",
        "Segments": "hpcgnn.comm.segments",
        "Timings": "hpcgnn.comm.timings",
        "World": "hpcgnn.comm.world",
        "check_alike": "hpcgnn.comm.startup",
        "choose_links": "hpcgnn.comm.links",
        "same_everywhere": "hpcgnn.comm.agreement",
        "raise_on_all_ranks": "hpcgnn.comm.agreement",
        "whole_job": "hpcgnn.comm.mpi_world",
    },
)
