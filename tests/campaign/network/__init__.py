"""What a network that fails, and ranks that stop for a while, do to training: wrong sums and hangs, which there must be none of.

settings   the ways of training that are tried, and the phases of a run
faults     what happens to a link or to a rank
verdict    what a run must have in common with an undisturbed one
section    the cases
"""

from campaign.network.section import SECTION

__all__ = ["SECTION"]
