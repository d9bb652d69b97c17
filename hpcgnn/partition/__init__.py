"""Partitioning of a graph file into a parts file, in one process or distributed over MPI ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.base.lazy import attributes

if TYPE_CHECKING:
    from hpcgnn.partition.options import PartitionOptions
    from hpcgnn.partition.partitioner import PartitionReport, partition

__all__ = ["PartitionOptions", "PartitionReport", "partition"]

# Loops that numba compiles are imported with the partitioner, not with the options of a command.
__getattr__ = attributes(__name__)
