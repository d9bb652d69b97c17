"""The partitioning methods behind one interface, and the choice between them.

============ ============================= ==================== =============================================
name         runs                          needs                note
============ ============================= ==================== =============================================
kaminpar     one process                   kaminpar             least memory; graph and parts go through files
parmetis     distributed                   libparmetis          research licence: used if found, never required
ptscotch     distributed                   libptscotch          free; balances one combined weight
metis        one process                   pymetis or libmetis  objective ``volume`` too
mtkahypar    one process                   mtkahypar            minimises ``volume``, slow
fennel       one process reads, others wait nothing             streaming, buffered; better than ldg
ldg          one process reads, others wait nothing             streaming, 4 bytes a node of memory
block        anywhere                      nothing              equal ranges of ids
random       anywhere                      nothing              equal chances, keyed by (seed, node id)
============ ============================= ==================== =============================================
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.partition.metis import Metis, PartKway, Unusable, load_metis, load_parmetis, load_ptscotch
from hpcgnn.partition.options import MINIMISED
from hpcgnn.partition.problem import TOLERANCE, Problem
from hpcgnn.partition.separate_process import installed, kaminpar, mtkahypar
from hpcgnn.partition.streaming import assign_blocks, assign_randomly, fennel, stream
from hpcgnn.world import raise_on_all_ranks

# With fewer nodes, METIS and ParMETIS try to bisect empty graphs, print complaints on stdout, and leave parts empty.
_LEAST_NODES_A_PART = 8
_LIBRARIES = ("kaminpar", "metis", "mtkahypar", "parmetis", "ptscotch")


@dataclass(frozen=True)
class Method:
    """A way to assign nodes to parts.

    ``assign(problem)`` returns the part of each node of this rank's slab, (n,) int32; collective. ``obstacle(problem)`` returns
    None, or the reason for which the method cannot solve the problem here, as words that follow its name in a sentence; not
    collective. ``balances``: the method balances ``each`` of the wanted quantities, only their ``sum``, or always ``nodes``.
    """

    assign: Callable[[Problem], np.ndarray]
    obstacle: Callable[[Problem], str | None] = lambda problem: None
    balances: str = "each"

    def balanced(self, wanted: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
        """The quantities that the method balances if ``wanted`` are asked for; and a note for the user, if any."""
        if self.balances == "nodes":
            return ("nodes",), None
        if self.balances == "each" or len(wanted) == 1:
            return wanted, None
        only = f"only the sum of {' and '.join(wanted)} was balanced"
        return wanted, f"{only}, not each of them (kaminpar, metis, parmetis and ldg balance each)"


def _on_rank_0(assign: Callable[[Problem], np.ndarray], problem: Problem) -> np.ndarray:
    """The parts (n,) of this rank's nodes. Rank 0 assigns all nodes, while the others wait. Collective."""
    world = problem.world
    parts, counts = np.zeros(0, dtype=np.int32), np.zeros(world.size, dtype=np.int64)
    with raise_on_all_ranks(world, "partition"):
        if world.rank == 0:
            parts, counts = assign(problem), np.diff(problem.slab.bounds)
    return world.alltoallv(parts, counts)[0]


def _alone_obstacle(problem: Problem) -> str | None:
    if problem.world.size == 1:
        return None
    return f"runs in one process, but this job has {problem.world.size} ranks (start it without mpirun)"


def _package_obstacle(name: str, problem: Problem) -> str | None:
    return _alone_obstacle(problem) or (None if installed(name) else f"is not installed (pip install {name})")


def _library_obstacle(load: Callable[[Problem], Metis | PartKway], problem: Problem) -> str | None:
    try:
        index = load(problem).index
    except Unusable as reason:
        return str(reason)
    largest = problem.largest_count()
    if largest <= np.iinfo(index).max:
        return None
    return f"is a build with {8 * index.itemsize}-bit integers, which cannot count to {largest:,}"


def _load_metis(problem: Problem) -> Metis:
    metis = load_metis(problem.largest_count())
    if metis is None:
        raise Unusable("is not installed (pip install pymetis)")
    return metis


def _load_parmetis(_: Problem) -> PartKway:
    return load_parmetis()


def _load_ptscotch(problem: Problem) -> PartKway:
    return load_ptscotch(wide=problem.largest_count() > np.iinfo(np.int32).max)


def _metis(problem: Problem) -> np.ndarray:
    metis, options = _load_metis(problem), problem.options
    graph, objective = problem.neighbours(metis.index), "cut" if options.objective == "cut" else "volume"
    with stdout_to_stderr():
        parts = metis.partition(
            graph, problem.weights(), options.num_parts, objective=objective, tolerance=TOLERANCE, seed=options.seed
        )
    return parts.astype(np.int32, copy=False)


def _part_kway(load: Callable[[Problem], PartKway], problem: Problem) -> np.ndarray:
    library, options = load(problem), problem.options
    graph, weights = problem.neighbours(library.index), problem.weights()
    if weights.shape[1] > library.max_constraints:
        weights = problem.balance.combined(weights, problem.reader.meta.num_nodes)
    asked = (options.num_parts, TOLERANCE, options.seed)
    with stdout_to_stderr():
        parts = library.partition(problem.world, problem.slab.bounds, graph, weights, *asked)
    return parts.astype(np.int32, copy=False)


def _block(problem: Problem) -> np.ndarray:
    slab = problem.slab
    return assign_blocks(slab.first, slab.last, problem.reader.meta.num_nodes, problem.options.num_parts)


def _random(problem: Problem) -> np.ndarray:
    return assign_randomly(problem.slab.first, problem.slab.last, problem.options.num_parts, problem.options.seed)


METHODS = MappingProxyType(
    {
        "kaminpar": Method(partial(_on_rank_0, kaminpar), partial(_package_obstacle, "kaminpar")),
        "parmetis": Method(partial(_part_kway, _load_parmetis), partial(_library_obstacle, _load_parmetis)),
        "ptscotch": Method(partial(_part_kway, _load_ptscotch), partial(_library_obstacle, _load_ptscotch), "sum"),
        "metis": Method(_metis, lambda problem: _alone_obstacle(problem) or _library_obstacle(_load_metis, problem)),
        "mtkahypar": Method(partial(_on_rank_0, mtkahypar), partial(_package_obstacle, "mtkahypar")),
        "fennel": Method(partial(_on_rank_0, fennel)),
        "ldg": Method(partial(_on_rank_0, stream)),
        "block": Method(_block, balances="nodes"),
        "random": Method(_random, balances="nodes"),
    }
)


def available_methods() -> list[str]:
    """The methods whose libraries can be loaded in this process; those that are best for one process come first."""
    found = ["kaminpar"] if installed("kaminpar") else []
    if load_metis(0) is not None:
        found.append("metis")
    for name, load in (("parmetis", load_parmetis), ("ptscotch", partial(load_ptscotch, wide=False))):
        with contextlib.suppress(Unusable):
            load()
            found.append(name)
    found += ["mtkahypar"] if installed("mtkahypar") else []
    return [*found, "fennel", "ldg", "block", "random"]


def choose(problem: Problem) -> tuple[str, str]:
    """The name of the method to use, and the reason for it. Collective; raises the same :class:`HpcgnnError` on every rank."""
    options, world = problem.options, problem.world
    wanted = options.method
    if wanted != "auto":
        obstacle = _agreed_obstacle(wanted, problem)
        if obstacle:
            raise HpcgnnError(f"--method {wanted} {obstacle}: {_advice(options.objective, wanted)}", agreed=True)
        return _fitting(wanted, "as asked", problem)
    distributed = ("parmetis", "ptscotch", "ldg")
    candidates = ("kaminpar", "metis", *distributed) if world.size == 1 else distributed
    refused: list[str] = []
    for name in candidates:
        obstacle = _agreed_obstacle(name, problem)
        if not obstacle:
            return _fitting(name, "; ".join([*refused, "the best that this run can use"]), problem)
        refused.append(f"{name} {obstacle}")
    raise HpcgnnError(f"no method can do this: {'; '.join(refused)}", agreed=True)


def _fitting(name: str, reason: str, problem: Problem) -> tuple[str, str]:
    """The method ``name``, or a simple one for problems with which the libraries crash or return wrong parts; and the
    reason."""
    nodes, parts, size = problem.reader.meta.num_nodes, problem.options.num_parts, problem.world.size
    if parts == 1 or nodes == 0:
        return "block", "one part needs no partitioner" if parts == 1 else "there are no nodes"
    if name in _LIBRARIES and (nodes < parts * _LEAST_NODES_A_PART or nodes < size):
        few = f"{nodes} nodes for {parts} parts" if nodes >= size else f"{nodes} nodes on {size} ranks"
        return "ldg", f"{few} are too few for {name}"
    return name, reason


def _agreed_obstacle(name: str, problem: Problem) -> str | None:
    """The obstacle of the first rank that has one, because a library may be missing on one host only. Collective."""
    world, objective = problem.world, problem.options.objective
    if objective not in (*MINIMISED[name], "rows"):  # for rows, nodes are moved after any method
        if objective != "volume":
            return f"minimises the {MINIMISED[name][0]} alone"
        others = " and ".join(other for other, minimised in MINIMISED.items() if objective in minimised)
        return f"cannot minimise the volume ({others} can, in one process)"
    obstacle = METHODS[name].obstacle(problem)
    first = int(world.allreduce(np.array([world.rank if obstacle else world.size]), "min")[0])
    return None if first == world.size else world.broadcast(obstacle, root=first)


def _advice(objective: str, method: str) -> str:
    if objective in (*MINIMISED[method], "rows", "volume"):
        return "take another --method, or auto"
    return f"give --objective {MINIMISED[method][0]}"


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect the output of C libraries to stderr, because stdout may have to be one JSON object."""
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
