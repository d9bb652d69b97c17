"""A script that partitions the graph in one file, and writes its parts to another; :mod:`hpcgnn.partition.kaminpar` runs it in a
process of its own.

It imports only KaMinPar. So it needs no memory but the partitioner's, and all of it goes back to the system when it ends, also
that of the list in which KaMinPar's Python interface returns the parts.
"""

import array
import ctypes
import signal
import sys

import kaminpar

_PR_SET_PDEATHSIG = 1  # in <sys/prctl.h>


def main(graph_path: str, parts_path: str, context: str, parts: str, tolerance: str, seed: str, threads: str) -> None:
    """Partition the ParHIP file ``graph_path`` and write the part of each node to ``parts_path``, as int32."""
    kaminpar.reseed(int(seed))
    partitioner = kaminpar.KaMinPar(int(threads), kaminpar.context_by_name(context))
    graph = kaminpar.load_graph(graph_path, kaminpar.GraphFileFormat.PARHIP, compress=True)
    found = partitioner.compute_partition(graph, int(parts), float(tolerance) - 1)
    with open(parts_path, "wb") as file:
        for first in range(0, len(found), 1 << 20):
            array.array("i", found[first : first + (1 << 20)]).tofile(file)


if __name__ == "__main__":
    if sys.platform == "linux":  # this process ends when the process that started it ends, for whatever reason
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    main(*sys.argv[1:])
