"""Run by :mod:`hpcgnn.partition.kaminpar` in a process of its own: partition the graph in one file into another.

It imports KaMinPar and nothing else: what it needs is then the partitioner's memory, and all of it goes back to the system
when it ends, also the list that KaMinPar's Python interface returns the parts in.
"""

import array
import ctypes
import signal
import sys

import kaminpar

_PR_SET_PDEATHSIG = 1  # in <sys/prctl.h>


def main(graph_path: str, parts_path: str, context: str, parts: str, tolerance: str, seed: str, threads: str) -> None:
    """Partition the ParHIP file ``graph_path`` and write an int32 a node to ``parts_path``."""
    kaminpar.reseed(int(seed))
    partitioner = kaminpar.KaMinPar(int(threads), kaminpar.context_by_name(context))
    graph = kaminpar.load_graph(graph_path, kaminpar.GraphFileFormat.PARHIP, compress=True)
    found = partitioner.compute_partition(graph, int(parts), float(tolerance) - 1)
    with open(parts_path, "wb") as file:
        for first in range(0, len(found), 1 << 20):
            array.array("i", found[first : first + (1 << 20)]).tofile(file)


if __name__ == "__main__":
    if sys.platform == "linux":  # end with the process that started this one, however that ends
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    main(*sys.argv[1:])
