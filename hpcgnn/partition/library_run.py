"""A script that partitions the graph in one file, and writes its parts to another, for :mod:`hpcgnn.partition.separate_process`.

It imports only the partitioner. So it needs no memory but the partitioner's, and all of it goes back to the system when it
ends, also that of the list in which KaMinPar's Python interface returns the parts; and so do mt-KaHyPar's threads, which can be
started only once in a process.
"""

import array
import ctypes
import itertools
import signal
import sys

_PR_SET_PDEATHSIG = 1  # in <sys/prctl.h>
WITHIN_NODE, BETWEEN_NODES = 1, 8


def by_kaminpar(path: str, context: str, parts: int, tolerance: float, seed: int, threads: int) -> list[int]:
    """The part of each node of the ParHIP file ``path``."""
    import kaminpar

    kaminpar.reseed(seed)
    partitioner = kaminpar.KaMinPar(threads, kaminpar.context_by_name(context))
    graph = kaminpar.load_graph(path, kaminpar.GraphFileFormat.PARHIP, compress=True)
    return list(partitioner.compute_partition(graph, parts, tolerance - 1))


def by_mtkahypar(
    path: str, preset: str, parts: int, tolerance: float, seed: int, threads: int, per_node: int
) -> list[int]:
    """The part of each node of the hMETIS file ``path``, with the least connectivity or, with several parts a machine node,
    the lightest trees that connect a net's parts, in which a link between machine nodes costs more than one within a node."""
    import mtkahypar

    library = mtkahypar.initialize(threads, False)
    mtkahypar.set_seed(seed)
    context = library.context_from_preset(getattr(mtkahypar.PresetType, preset))
    context.logging = False
    if per_node == 1:
        context.set_partitioning_parameters(parts, tolerance - 1, mtkahypar.Objective.KM1)
    else:
        context.set_mapping_parameters(parts, tolerance - 1)
    graph = library.hypergraph_from_file(path, context, mtkahypar.FileFormat.HMETIS)
    if per_node == 1:
        return list(graph.partition(context).get_partition())
    links = list(itertools.combinations(range(parts), 2))
    costs = [WITHIN_NODE if a // per_node == b // per_node else BETWEEN_NODES for a, b in links]
    target = library.create_target_graph(context, parts, len(links), links, costs)
    return list(graph.map_onto_graph(target, context).get_partition())


def main(
    library: str, graph_path: str, parts_path: str, preset: str, parts: str, tolerance: str, *numbers: str
) -> None:
    """Partition ``graph_path`` and write the part of each node to ``parts_path``, as int32. numbers: seed, threads, ..."""
    by = by_kaminpar if library == "kaminpar" else by_mtkahypar
    found = by(graph_path, preset, int(parts), float(tolerance), *map(int, numbers))
    with open(parts_path, "wb") as file:
        for first in range(0, len(found), 1 << 20):
            array.array("i", found[first : first + (1 << 20)]).tofile(file)


if __name__ == "__main__":
    if sys.platform == "linux":  # this process ends when the process that started it ends, for whatever reason
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    main(*sys.argv[1:])
