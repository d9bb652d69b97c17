"""Partitioning: a graph file in, a parts file out, in one process or distributed over MPI ranks."""

from hpcgnn.partition.measure import PartitionReport, measure
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.partitioner import partition

__all__ = ["PartitionOptions", "PartitionReport", "measure", "partition"]
