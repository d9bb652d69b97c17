"""From ``graph.h5`` to ``parts.h5``: choose a method, assign nodes to parts, write the graph in part order, measure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from hpcgnn import shared_file
from hpcgnn.comm import World, together
from hpcgnn.data import h5, plan_store, sealing
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.data.parts_file import PARTS_KIND, PARTS_VERSION, PartsFile, parts_schema
from hpcgnn.errors import HpcgnnError
from hpcgnn.memory import peak_memory_bytes
from hpcgnn.partition.balance import Balance
from hpcgnn.partition.measure import PartitionReport, measure
from hpcgnn.partition.methods import METHODS, Problem, choose
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.part_order import Reordering
from hpcgnn.partition.slabs import Advance, Slab
from hpcgnn.partition.streaming import LDG_PASSES

Progress = Callable[[str, int], AbstractContextManager[Advance]]


def partition(
    world: World,
    graph_path: str | Path,
    parts_path: str | Path,
    options: PartitionOptions,
    progress: Progress | None = None,
) -> PartitionReport:
    """Divide the graph into ``options.num_parts`` parts and write ``parts.h5`` with its plan. Collective.

    ``progress(description, total)`` opens a bar for each step and yields ``advance(n)``. Raises :class:`HpcgnnError` on
    every rank, leaving nothing under the final name, if a file cannot be read or written or the method cannot be used.
    """
    clock = _Clock()
    progress = progress or _silent
    with contextlib.ExitStack() as stack:
        with together(world, "open the graph"):
            reader = stack.enter_context(GraphFile(graph_path))
            reader.verify(range(world.rank, reader.num_slabs, world.size))
        replacing = shared_file.replacing(world, parts_path, force=options.force, inputs=[graph_path])
        temporary = stack.enter_context(replacing)
        slab = Slab.of(world, reader)
        parts, problem, method, reason = _assign(world, reader, slab, options, progress)
        clock.lap("partition")
        balanced, note = METHODS[method].balanced(problem.balance.names)
        header = {
            "num_parts": options.num_parts,
            "graph_uuid": reader.uuid,
            "method": method,
            "objective": options.objective,
            "balance": ",".join(balanced),
            "seed": options.seed,
        }
        _write(world, problem, parts, temporary, header, progress)
        clock.lap("write")
        _add_plan(world, temporary, options, progress)
    clock.lap("plan")
    quality = measure(world, str(parts_path))
    clock.lap("measure")
    return PartitionReport(
        method=method,
        reason=reason,
        objective=options.objective,
        balance=balanced,
        seed=options.seed,
        ranks=world.size,
        quality=quality,
        seconds=clock.seconds(),
        peak_memory_bytes=int(world.allreduce(np.array([peak_memory_bytes()]), "max")[0]),
        notes=problem.balance.notes + ((note,) if note else ()),
    )


def _assign(
    world: World, reader: GraphFile, slab: Slab, options: PartitionOptions, progress: Progress
) -> tuple[np.ndarray, Problem, str, str]:
    """``(parts of this rank's nodes, the problem solved, method, reason)``. Collective."""
    balance = Balance.of(world, reader, slab, options.balance)
    problem = Problem(world, reader, slab, balance, options, advance=_ignore)
    method, reason = choose(problem)
    steps = LDG_PASSES * reader.meta.num_nodes if method == "ldg" else 2 * slab.num_nodes
    with progress(f"partitioning with {method}", steps) as advance:
        problem = Problem(world, reader, slab, balance, options, advance)
        parts = METHODS[method].assign(problem)
    with together(world, "partition"):
        if parts.size and (parts.min() < 0 or parts.max() >= options.num_parts):
            raise HpcgnnError(f"{method} returned a part outside 0 to {options.num_parts - 1}: try --method ldg")
    return parts, problem, method, reason


def _write(
    world: World, problem: Problem, parts: np.ndarray, temporary: Path, header: dict[str, object], progress: Progress
) -> None:
    """Create ``temporary`` on rank 0 and fill it from all ranks. Collective."""
    reader, num_parts = problem.reader, problem.options.num_parts
    schema = parts_schema(reader.meta, num_parts)
    attributes = h5.new_header(PARTS_KIND, PARTS_VERSION) | reader.meta.attributes() | header
    steps = Reordering.steps(reader) * problem.slab.num_nodes
    with (
        shared_file.writing(world, temporary, schema, attributes) as writer,
        progress("writing parts", steps) as advance,
    ):
        Reordering(world, reader, problem.slab, parts, num_parts, writer, advance).run()
    _seal(world, temporary)


def _seal(world: World, temporary: Path) -> None:
    """Add the checksums: each rank makes those of its share of the parts, from what all ranks have written. Collective."""
    with together(world, "read the parts that were written"), PartsFile(temporary, sealed=False) as written:
        mine = range(world.rank, written.num_parts, world.size)
        table = sealing.slab_checksums(written, mine)
    # Zeros but for the rank that made one: sums, of bits as they are.
    table = {name: world.allreduce(values.view(np.int64)).view(np.uint64) for name, values in table.items()}
    with together(world, "write the checksums of the parts"):
        if world.rank == 0:
            with PartsFile(temporary, "r+", sealed=False) as written:
                sealing.store(written, table)


def _add_plan(world: World, temporary: Path, options: PartitionOptions, progress: Progress) -> None:
    """Store the plan. Collective.

    On rank 0, part by part: memory O(edges of the largest part), time O(edges of the graph). For a graph where that is
    too long, plan ``none`` leaves it to the ranks that train, which plan all parts at once.
    """
    with together(world, "store the plan"):
        if world.rank == 0 and options.plan != "none":
            with progress("planning parts", options.num_parts) as advance:
                plan_store.add_plans(temporary, [options.plan], advance)


class _Clock:
    """Seconds of consecutive steps."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, step: str) -> None:
        now = time.perf_counter()
        self._laps[step], self._last = now - self._last, now

    def seconds(self) -> dict[str, float]:
        """Of each step, and in ``total``."""
        return self._laps | {"total": self._last - self._started}


def _ignore(_: int) -> None:
    """Progress that nobody watches."""


@contextlib.contextmanager
def _silent(_description: str, _total: int) -> Iterator[Advance]:
    yield _ignore
