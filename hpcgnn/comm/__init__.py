"""Ranks and what moves between them: the MPI world and the boundary exchange."""

from hpcgnn.comm.exchange import Exchange
from hpcgnn.comm.links import choose_links
from hpcgnn.comm.messages import MessageConfig, Messages
from hpcgnn.comm.timings import PHASES, Timings
from hpcgnn.comm.world import World

__all__ = ["PHASES", "Exchange", "MessageConfig", "Messages", "Timings", "World", "choose_links"]
