"""Nodes that are not alike: versions, MPI libraries, instruction sets, clocks, copies of a file, formats of before and after.

ranks      jobs whose ranks have environments of their own
versions   other versions of hpcgnn, other MPI libraries, launchers of another MPI
machines   other instruction sets, clocks that differ by hours
files      copies of parts.h5 that differ, damage that `hpcgnn check` names, formats of every version
"""

from campaign.wrong_cluster.section import SECTION

__all__ = ["SECTION"]
