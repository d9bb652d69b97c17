"""Ranks and what moves between them: worlds, and the boundary exchange."""

from hpcgnn.comm.agreement import same_everywhere, together
from hpcgnn.comm.buffer import Buffer
from hpcgnn.comm.codecs import Codes
from hpcgnn.comm.exchange import Exchange
from hpcgnn.comm.links import choose_links
from hpcgnn.comm.messages import MessageConfig, Messages
from hpcgnn.comm.mpi_world import MpiWorld
from hpcgnn.comm.segments import Segments
from hpcgnn.comm.timings import PHASES, Timings
from hpcgnn.comm.world import World

__all__ = [
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
    "choose_links",
    "same_everywhere",
    "together",
]
