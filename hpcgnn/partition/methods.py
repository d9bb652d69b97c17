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
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition import kaminpar, mtkahypar
from hpcgnn.partition.balance import Balance
from hpcgnn.partition.native_metis import load_metis
from hpcgnn.partition.native_parmetis import PartKway, Unusable, load_parmetis, load_ptscotch
from hpcgnn.partition.options import MINIMISED, PartitionOptions
from hpcgnn.partition.slabs import Advance, Slab, symmetric_neighbours
from hpcgnn.partition.streaming import assign_blocks, assign_randomly, stream
from hpcgnn.world import World, raise_on_all_ranks

TOLERANCE = 1.05
# With fewer nodes, METIS and ParMETIS try to bisect empty graphs, print complaints on stdout, and leave parts empty.
_LEAST_NODES_A_PART = 8
_LIBRARIES = ("kaminpar", "metis", "mtkahypar", "parmetis", "ptscotch")


@dataclass(frozen=True)
class Problem:
    """The input of a method: this rank's ``slab`` of the graph of ``reader``, and the options.

    Temporary files are in ``folder``, or in the system's folder for them if it is None.
    """

    world: World
    reader: SlabReader
    slab: Slab
    balance: Balance
    options: PartitionOptions
    advance: Advance
    folder: Path | None = None

    def largest_count(self) -> int:
        """The largest number that a partitioner's integers must hold; both directions of an edge are stored."""
        meta = self.reader.meta
        return max(meta.num_nodes, meta.num_edges * (2 if meta.directed else 1), int(self.balance.totals.max()))

    def neighbours(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """This rank's rows of the symmetric graph, as (indptr, indices) of ``dtype``. Collective."""
        return symmetric_neighbours(self.world, self.reader, self.slab, dtype, self.advance)

    def weights(self) -> np.ndarray:
        """(n, C) int64 quantities of this rank's nodes that are to be balanced. Collective."""
        with raise_on_all_ranks(self.world, "read the graph"):
            return self.balance.weights(self.reader, self.slab.first, self.slab.indptr)


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
        """The quantities that the method balances if ``wanted`` are asked for, and a note for the user if it balances their
        sum."""
        if self.balances == "nodes":
            return ("nodes",), None
        if self.balances == "sum" and len(wanted) > 1:
            return (
                wanted,
                f"only the sum of {' and '.join(wanted)} was balanced, not each of them (kaminpar, metis, parmetis and ldg "
                "balance each)",
            )
        return wanted, None


def _alone_obstacle(problem: Problem) -> str | None:
    if problem.world.size == 1:
        return None
    return f"runs in one process, but this job has {problem.world.size} ranks (start it without mpirun)"


def _kaminpar_obstacle(problem: Problem) -> str | None:
    return _alone_obstacle(problem) or (None if kaminpar.installed() else "is not installed (pip install kaminpar)")


def _kaminpar(problem: Problem) -> np.ndarray:
    with raise_on_all_ranks(problem.world, "partition"):
        return kaminpar.assign(
            problem.reader, problem.balance, problem.options, TOLERANCE, problem.folder, problem.advance
        )


def _mtkahypar_obstacle(problem: Problem) -> str | None:
    return _alone_obstacle(problem) or (None if mtkahypar.installed() else "is not installed (pip install mtkahypar)")


def _mtkahypar(problem: Problem) -> np.ndarray:
    with raise_on_all_ranks(problem.world, "partition"):
        return mtkahypar.assign(
            problem.reader, problem.balance, problem.options, TOLERANCE, problem.folder, problem.advance
        )


def _metis_obstacle(problem: Problem) -> str | None:
    alone = _alone_obstacle(problem)
    if alone:
        return alone
    metis = load_metis(problem.largest_count())
    return "is not installed (pip install pymetis)" if metis is None else _too_large(problem, metis.index)


def _metis(problem: Problem) -> np.ndarray:
    metis = load_metis(problem.largest_count())
    if metis is None:
        raise HpcgnnError("metis is not installed (pip install pymetis)")
    graph, options = problem.neighbours(metis.index), problem.options
    with stdout_to_stderr():
        parts = metis.partition(
            graph,
            problem.weights(),
            options.num_parts,
            objective="cut" if options.objective == "cut" else "volume",
            tolerance=TOLERANCE,
            seed=options.seed,
        )
    return parts.astype(np.int32, copy=False)


def _load_parmetis(problem: Problem) -> PartKway:
    return load_parmetis()


def _load_ptscotch(problem: Problem) -> PartKway:
    return load_ptscotch(wide=problem.largest_count() > np.iinfo(np.int32).max)


def _part_kway_obstacle(load: Callable[[Problem], PartKway], problem: Problem) -> str | None:
    try:
        return _too_large(problem, load(problem).index)
    except Unusable as reason:
        return str(reason)


def _part_kway(load: Callable[[Problem], PartKway], problem: Problem) -> np.ndarray:
    library, options = load(problem), problem.options
    graph, weights = problem.neighbours(library.index), problem.weights()
    if weights.shape[1] > library.max_constraints:
        weights = problem.balance.combined(weights, problem.reader.meta.num_nodes)
    with stdout_to_stderr():
        parts = library.partition(
            problem.world,
            problem.slab.bounds,
            graph,
            weights,
            options.num_parts,
            tolerance=TOLERANCE,
            seed=options.seed,
        )
    return parts.astype(np.int32, copy=False)


def _on_rank_0(problem: Problem, assign: Callable[[], np.ndarray]) -> np.ndarray:
    """The parts (n,) of this rank's nodes. Rank 0 assigns all nodes, while the others wait. Collective."""
    world = problem.world
    parts, counts = np.zeros(0, dtype=np.int32), np.zeros(world.size, dtype=np.int64)
    with raise_on_all_ranks(world, "partition"):
        if world.rank == 0:
            parts, counts = assign(), np.diff(problem.slab.bounds)
    return world.alltoallv(parts, counts)[0]


def _ldg(problem: Problem) -> np.ndarray:
    """Stream on rank 0, which keeps one int32 a node in memory, and never all edges."""

    def assign() -> np.ndarray:
        return stream(problem.reader, problem.balance, problem.options.num_parts, TOLERANCE, problem.advance)

    return _on_rank_0(problem, assign)


def _fennel(problem: Problem) -> np.ndarray:
    """Stream on rank 0, as :func:`_ldg` does."""
    from hpcgnn.partition.streaming import fennel

    def assign() -> np.ndarray:
        options = problem.options
        return fennel(problem.reader, problem.balance, options.num_parts, TOLERANCE, options.seed, problem.advance)

    return _on_rank_0(problem, assign)


def _block(problem: Problem) -> np.ndarray:
    slab = problem.slab
    return assign_blocks(slab.first, slab.last, problem.reader.meta.num_nodes, problem.options.num_parts)


def _random(problem: Problem) -> np.ndarray:
    return assign_randomly(problem.slab.first, problem.slab.last, problem.options.num_parts, problem.options.seed)


METHODS = MappingProxyType(
    {
        "kaminpar": Method(_kaminpar, _kaminpar_obstacle),
        "parmetis": Method(partial(_part_kway, _load_parmetis), partial(_part_kway_obstacle, _load_parmetis)),
        "ptscotch": Method(
            partial(_part_kway, _load_ptscotch), partial(_part_kway_obstacle, _load_ptscotch), balances="sum"
        ),
        "metis": Method(_metis, _metis_obstacle),
        "mtkahypar": Method(_mtkahypar, _mtkahypar_obstacle),
        "fennel": Method(_fennel),
        "ldg": Method(_ldg),
        "block": Method(_block, balances="nodes"),
        "random": Method(_random, balances="nodes"),
    }
)


def available_methods() -> list[str]:
    """The methods whose libraries can be loaded in this process; those that are best for one process come first."""
    found = ["kaminpar"] if kaminpar.installed() else []
    if load_metis(0) is not None:
        found.append("metis")
    for name, load in (("parmetis", load_parmetis), ("ptscotch", partial(load_ptscotch, wide=False))):
        with contextlib.suppress(Unusable):
            load()
            found.append(name)
    found += ["mtkahypar"] if mtkahypar.installed() else []
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
    """The method ``name``, or a simple one for problems with which the libraries crash or return wrong parts; and the reason."""
    nodes, parts, size = problem.reader.meta.num_nodes, problem.options.num_parts, problem.world.size
    if parts == 1 or nodes == 0:
        return "block", "one part needs no partitioner" if parts == 1 else "there are no nodes"
    if name not in _LIBRARIES:
        return name, reason
    if nodes < parts * _LEAST_NODES_A_PART or nodes < size:
        few = f"{nodes} nodes for {parts} parts" if nodes >= size else f"{nodes} nodes on {size} ranks"
        return "ldg", f"{few} are too few for {name}"
    return name, reason


def _agreed_obstacle(name: str, problem: Problem) -> str | None:
    """The obstacle of the first rank that has one, because a library may be missing on one host only. Collective."""
    world, method = problem.world, METHODS[name]
    if problem.options.objective not in (*MINIMISED[name], "rows"):  # for rows, nodes are moved after any method
        return _cannot_minimise(problem.options.objective, name)
    obstacle = method.obstacle(problem)
    first = int(world.allreduce(np.array([world.rank if obstacle else world.size]), "min")[0])
    return None if first == world.size else world.broadcast(obstacle, root=first)


def _cannot_minimise(objective: str, method: str) -> str:
    others = " and ".join(name for name, minimised in MINIMISED.items() if objective in minimised)
    if objective == "volume":
        return f"cannot minimise the volume ({others} can, in one process)"
    return f"minimises the {MINIMISED[method][0]} alone"


def _advice(objective: str, method: str) -> str:
    """The advice for a method that cannot do what was asked."""
    if objective in (*MINIMISED[method], "rows", "volume"):
        return "take another --method, or auto"
    return f"give --objective {MINIMISED[method][0]}"


def _too_large(problem: Problem, index: np.dtype) -> str | None:
    largest = problem.largest_count()
    if largest <= np.iinfo(index).max:
        return None
    return f"is a build with {8 * index.itemsize}-bit integers, which cannot count to {largest:,}"


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
