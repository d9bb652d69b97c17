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

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.partition.metis import Metis, PartKway, Unusable, load_metis, load_parmetis, load_ptscotch
from hpcgnn.partition.options import MINIMISED
from hpcgnn.partition.problem import Problem
from hpcgnn.partition.separate_process import installed, kaminpar, mtkahypar
from hpcgnn.partition.streaming import assign_blocks, assign_randomly, fennel, stream

# With fewer nodes, METIS and ParMETIS try to bisect empty graphs, print complaints on stdout, and leave parts empty.
_LEAST_NODES_A_PART = 8
_LIBRARIES = ("kaminpar", "metis", "mtkahypar", "parmetis", "ptscotch")


@dataclass(frozen=True)
class Method:
    """A way to assign nodes to parts.

    ``assign(problem)`` returns the part of each node of this rank's slab, (n,) int32; collective. ``lack(largest)`` returns
    None, or why the method's library cannot be used here, for counts up to ``largest``. alone: it runs in jobs of one rank
    only. ``balances``: the method balances ``each`` of the wanted quantities, only their ``sum``, or always ``nodes``.
    """

    assign: Callable[[Problem], np.ndarray]
    lack: Callable[[int], str | None] = lambda largest: None
    alone: bool = False
    balances: str = "each"

    def obstacle(self, problem: Problem) -> str | None:
        """None, or the reason for which the method cannot solve the problem here, as words that follow its name in a
        sentence. Not collective."""
        if self.alone and problem.world.size > 1:
            return f"runs in one process, but this job has {problem.world.size} ranks (start it without mpirun)"
        return self.lack(problem.largest_count())

    def balanced(self, wanted: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
        """The quantities that the method balances if ``wanted`` are asked for; and a note for the user, if any."""
        if self.balances == "nodes":
            return ("nodes",), None
        if self.balances == "each" or len(wanted) == 1:
            return wanted, None
        only = f"only the sum of {' and '.join(wanted)} was balanced"
        return wanted, f"{only}, not each of them (kaminpar, metis, parmetis and ldg balance each)"


def _on_rank_0(assign: Callable[[Problem], np.ndarray], **options: Any) -> Method:
    return Method(lambda problem: problem.on_rank_0("partition", lambda: assign(problem)), **options)


def _by_package(name: str, assign: Callable[[Problem], np.ndarray]) -> Method:
    """A method that runs in one process, with a package of Python."""

    def lack(_: int) -> str | None:
        return None if installed(name) else f"is not installed (pip install {name})"

    return _on_rank_0(assign, lack=lack, alone=True)


def _by_library(load: Callable[[int], Metis | PartKway], **options: Any) -> Method:
    """A method of a C library, which ``load(largest)`` finds."""

    def lack(largest: int) -> str | None:
        try:
            index = load(largest).index
        except Unusable as reason:
            return str(reason)
        if largest <= np.iinfo(index).max:
            return None
        return f"is a build with {8 * index.itemsize}-bit integers, which cannot count to {largest:,}"

    return Method(lambda problem: load(problem.largest_count()).assign(problem), lack, **options)


def _block(problem: Problem) -> np.ndarray:
    slab = problem.slab
    return assign_blocks(slab.first, slab.last, problem.reader.meta.num_nodes, problem.options.num_parts)


def _random(problem: Problem) -> np.ndarray:
    return assign_randomly(problem.slab.first, problem.slab.last, problem.options.num_parts, problem.options.seed)


# Those that are best for one process come first.
METHODS = MappingProxyType(
    {
        "kaminpar": _by_package("kaminpar", kaminpar),
        "metis": _by_library(load_metis, alone=True),
        "parmetis": _by_library(load_parmetis),
        "ptscotch": _by_library(load_ptscotch, balances="sum"),
        "mtkahypar": _by_package("mtkahypar", mtkahypar),
        "fennel": _on_rank_0(fennel),
        "ldg": _on_rank_0(stream),
        "block": Method(_block, balances="nodes"),
        "random": Method(_random, balances="nodes"),
    }
)


def available_methods() -> list[str]:
    """The methods whose libraries can be loaded in this process; those that are best for one process come first."""
    return [name for name, method in METHODS.items() if method.lack(0) is None]


def choose(problem: Problem) -> tuple[str, str]:
    """The name of the method to use, and the reason for it. Collective; raises the same :class:`HpcgnnError` on every rank."""
    options, world = problem.options, problem.world
    wanted = options.method
    if wanted != "auto":
        obstacle = _agreed_obstacle(wanted, problem)
        if obstacle:
            fits = options.objective in (*MINIMISED[wanted], "rows", "volume")
            advice = "take another --method, or auto" if fits else f"give --objective {MINIMISED[wanted][0]}"
            raise HpcgnnError(f"--method {wanted} {obstacle}: {advice}", agreed=True)
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
    """The method ``name``, or a simple one where the libraries crash or return wrong parts; and the reason."""
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
