"""A script that partitions the hypergraph in one file, and writes its parts to another; :mod:`hpcgnn.partition.mtkahypar` runs it
in a process of its own.

It imports only mt-KaHyPar. The library's threads, which can be started only once in a process, end with it.
"""

import array
import ctypes
import itertools
import signal
import sys

import mtkahypar

_PR_SET_PDEATHSIG = 1  # in <sys/prctl.h>

WITHIN_NODE, BETWEEN_NODES = 1, 8


def main(
    graph_path: str, parts_path: str, preset: str, parts: str, tolerance: str, seed: str, threads: str, per_node: str
) -> None:
    """Partition the hMETIS file ``graph_path`` and write the part of each node to ``parts_path``, as int32.

    It minimises the connectivity. With several parts a machine node, it minimises the trees that connect a net's parts, in which
    a link between machine nodes costs more than a link within one.
    """
    count, size = int(parts), int(per_node)
    library = mtkahypar.initialize(int(threads), False)
    mtkahypar.set_seed(int(seed))
    context = library.context_from_preset(getattr(mtkahypar.PresetType, preset))
    context.logging = False
    if size == 1:
        context.set_partitioning_parameters(count, float(tolerance) - 1, mtkahypar.Objective.KM1)
    else:
        context.set_mapping_parameters(count, float(tolerance) - 1)
    graph = library.hypergraph_from_file(graph_path, context, mtkahypar.FileFormat.HMETIS)
    if size == 1:
        found = graph.partition(context).get_partition()
    else:
        links = list(itertools.combinations(range(count), 2))
        costs = [WITHIN_NODE if a // size == b // size else BETWEEN_NODES for a, b in links]
        target = library.create_target_graph(context, count, len(links), links, costs)
        found = graph.map_onto_graph(target, context).get_partition()
    with open(parts_path, "wb") as file:
        for first in range(0, len(found), 1 << 20):
            array.array("i", found[first : first + (1 << 20)]).tofile(file)


if __name__ == "__main__":
    if sys.platform == "linux":  # this process ends when the process that started it ends, for whatever reason
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    main(*sys.argv[1:])
