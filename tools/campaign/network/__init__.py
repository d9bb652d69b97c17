"""The effects of network failures, and of ranks that stop for a while, on training: there must be neither wrong sums nor hangs.

settings   the settings of training that are tried, and the phases of a run
faults     faults of a link or of a rank
verdict    comparison of a run with an undisturbed one
section    the cases
under_faults   the program of each rank, which runs one command after another
"""

from campaign.network.section import SECTION

__all__ = ["SECTION"]
