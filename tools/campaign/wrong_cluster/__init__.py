"""Nodes that differ: versions, MPI libraries, instruction sets, clocks, copies of a file, earlier and later formats.

ranks      jobs whose ranks have different environments
versions   other versions of hpcgnn, other MPI libraries, launchers of another MPI
machines   other instruction sets, clocks that differ by hours
files      copies of parts.h5 that differ, damage that `hpcgnn check` must name, formats of every version
"""

from campaign.wrong_cluster.section import SECTION

__all__ = ["SECTION"]
