"""Partitioning of a ``graph.h5``: choose a method, assign nodes to parts, write ``parts.h5`` in part order, and measure it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.arguments import check_path, check_type, check_world
from hpcgnn.base.compiled import clock, njit
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import peak_memory_bytes
from hpcgnn.base.version import __version__
from hpcgnn.data import checksums, h5, names, plan_pieces, plan_store, sealing, shared_file
from hpcgnn.data.graph_file import PARTS_KIND, PARTS_VERSION, GraphFile, PartsFile
from hpcgnn.data.plan_pieces import fitting_jobs, make_pieces
from hpcgnn.data.schema import layout, parts_rules
from hpcgnn.partition.hierarchy import grouped
from hpcgnn.partition.methods import METHODS, choose
from hpcgnn.partition.options import PartitionOptions, check_num_parts
from hpcgnn.partition.part_order import Reordering
from hpcgnn.partition.problem import Advance, Balance, Problem, Slab, edge_chunks, ignore
from hpcgnn.partition.rows import Schedule, refine_rows
from hpcgnn.partition.streaming import LDG_PASSES, fennel_passes
from hpcgnn.partition.work import BEGUN, WRITTEN, Work, Written, kept
from hpcgnn.plan.plan import max_over_mean
from hpcgnn.world import World, raise_on_all_ranks

Progress = Callable[[str, int], AbstractContextManager[Advance]]


def partition(
    world: World,
    graph_path: str | Path,
    parts_path: str | Path,
    options: PartitionOptions,
    progress: Progress | None = None,
) -> PartitionReport:
    """Divide the graph into ``options.num_parts`` parts and write ``parts.h5`` with its plan. Collective.

    progress: ``progress(description, total)`` opens a progress bar for each step and yields ``advance(n)``.

    Raises:
        HpcgnnError: on every rank, if a file cannot be read or written, or the method cannot be used. Nothing is then left
            under the final name.
    """
    check_world(world)
    check_path("graph_path", graph_path)
    check_path("parts_path", parts_path)
    check_type("options", options, PartitionOptions)
    laps = [("", clock())]
    progress = progress or (lambda description, total: contextlib.nullcontext(ignore))
    with contextlib.ExitStack() as stack:
        with raise_on_all_ranks(world, "open the graph"):
            reader = stack.enter_context(GraphFile(graph_path))
            check_num_parts(graph_path, reader.meta.num_nodes, options.num_parts)
            reader.verify(range(world.rank, reader.num_slabs, world.size))
        asked = {name: value for name, value in asdict(options).items() if name not in ("force", "jobs")}
        key = {"version": __version__, "graph": [reader.uuid, reader.fingerprint], "options": asked}
        work = stack.enter_context(kept(world, parts_path, key, force=options.force, inputs=[graph_path]))
        slab = Slab.of(world, reader)
        balance = Balance.of(world, reader, slab, options)
        problem = Problem(world, reader, slab, balance, options, ignore, folder=work.parts.parent)
        parts, method, reason = _assignment(problem, work, progress)
        laps.append(("partition", clock()))
        balanced, note = METHODS[method].balanced(balance.names)
        header: dict[str, object] = {"uuid": work.uuid, "num_parts": options.num_parts, "graph_uuid": reader.uuid}
        header |= {"method": method, "objective": options.objective, "balance": ",".join(balanced)}
        header |= {"seed": options.seed, "ranks_per_node": options.ranks_per_node}
        _write(problem, parts, work, header, progress)
        laps.append(("write", clock()))
        _add_plan(problem, work, progress)
    laps.append(("plan", clock()))
    quality = measure(world, str(parts_path))
    laps.append(("measure", clock()))
    seconds = {step: end - begin for (_, begin), (step, end) in itertools.pairwise(laps)}
    return PartitionReport(
        method=method,
        reason=reason,
        objective=options.objective,
        balance=balanced,
        seed=options.seed,
        ranks_per_node=options.ranks_per_node,
        ranks=world.size,
        quality=quality,
        seconds=seconds | {"total": laps[-1][1] - laps[0][1]},
        peak_memory_bytes=int(world.allreduce(np.array([peak_memory_bytes(or_of_children=True)]), "max")[0]),
        notes=balance.notes + ((note,) if note else ()),
    )


def _assignment(problem: Problem, work: Work, progress: Progress) -> tuple[np.ndarray, str, str]:
    """The result of :func:`_assign`, or the assignment that an interrupted run has stored. Collective."""
    if (left := work.assignment(problem.world, problem.slab)) is not None:
        parts, facts = left
        return parts, facts["method"], f"{facts['reason']}; made by the run that this one continues"
    started = time.perf_counter()
    parts, method, reason = _assign(problem, progress)
    facts = {"method": method, "reason": reason, "seconds": time.perf_counter() - started}
    work.keep_assignment(problem.world, problem.slab, parts, facts)
    return parts, method, reason


def _assign(problem: Problem, progress: Progress) -> tuple[np.ndarray, str, str]:
    """``(parts of this rank's nodes, method, reason)``. Collective."""
    options, nodes, owned = problem.options, problem.reader.meta.num_nodes, problem.slab.num_nodes
    method, reason = choose(problem)
    passes = {"ldg": LDG_PASSES, "fennel": fennel_passes(problem.reader)}
    steps = passes[method] * nodes if method in passes else 2 * owned
    steps += owned if 1 < options.ranks_per_node < options.num_parts else 0
    started = time.perf_counter()
    with progress(f"partitioning with {method}", steps) as advance:
        counted = replace(problem, advance=advance)
        parts = METHODS[method].assign(counted)
        with raise_on_all_ranks(problem.world, "partition"):
            if parts.size and (parts.min() < 0 or parts.max() >= options.num_parts):
                raise HpcgnnError(f"{method} returned a part outside 0 to {options.num_parts - 1}: try --method ldg")
        parts = grouped(parts, counted, method)
    if options.objective == "rows":
        taken = time.perf_counter() - started
        steps = Schedule.of(options.num_parts).passes * nodes
        with progress("moving nodes to send fewer rows", steps) as advance:
            parts, note = refine_rows(problem, parts, taken, advance)
        reason = f"{reason}; {note}"
    return parts, method, reason


def _write(problem: Problem, parts: np.ndarray, work: Work, header: dict[str, object], progress: Progress) -> None:
    """Create the parts file on rank 0 and fill it from all ranks, or complete the file of an interrupted run. Collective."""
    world, reader = problem.world, problem.reader
    with raise_on_all_ranks(world, "read the names"):
        schema = {**layout(parts_rules(reader.meta, problem.options.num_parts)), **names.schema(reader)}
    stage = world.broadcast(work.stage(schema))
    if stage == WRITTEN:
        return
    written = Written(work, world)
    if world.allreduce(np.array([stage == BEGUN and written.rows > 0], dtype=np.int64), "min")[0]:
        attributes = None
    else:
        with raise_on_all_ranks(world, f"write {work.parts} anew"):
            if world.rank == 0:
                work.forget_writing()
        written.rows = 0
        attributes = h5.new_header(PARTS_KIND, PARTS_VERSION) | reader.meta.attributes() | reader.digests | header
    steps, jobs = Reordering.steps(reader) * problem.slab.num_nodes, _jobs(problem)
    opened = shared_file.writing(world, work.parts, schema, attributes)
    with opened as writer, progress("writing parts", steps) as advance:
        Reordering(problem, parts, writer, advance, jobs, written.rows, written.reach).run()
        with raise_on_all_ranks(world, "copy the names and links"):
            if world.rank == 0:
                names.copy(reader, writer)
            share = np.arange(world.rank, world.rank + 2) * reader.meta.num_asked_links // world.size
            for first, columns in reader.links(*share.tolist()):
                for name, rows in columns.items():
                    writer.write(name, first, rows)
    _seal(world, work.parts)
    with raise_on_all_ranks(world, f"write {work.parts}"):
        if world.rank == 0:
            (work.folder / "sealed").touch()


def _seal(world: World, path: Path) -> None:
    """Add the checksums; each rank computes those of its share of the parts, which other ranks may have written. Collective."""
    with raise_on_all_ranks(world, f"read {path}"), PartsFile(path, sealed=False) as written:
        mine = range(world.rank, written.num_parts, world.size)
        table = checksums.of_slabs(written.arrays, written.slab_rows, written.num_slabs, mine)
    # Each checksum is nonzero on one rank only, so the sum over ranks has its bits.
    table = {name: world.allreduce(values.view(np.int64)).view(np.uint64) for name, values in table.items()}
    with raise_on_all_ranks(world, f"write the checksums of {path}"):
        if world.rank == 0:
            with PartsFile(path, "r+", sealed=False) as written:
                sealing.store(written, table)


def _add_plan(problem: Problem, work: Work, progress: Progress) -> None:
    """Compute the plan and store it; each rank or process plans some of the parts, one at a time. Collective."""
    world, strategy = problem.world, problem.options.plan
    mine = range(world.rank, problem.options.num_parts, world.size)
    if strategy == "none":
        return
    doing = raise_on_all_ranks(world, f"plan the parts in {work.folder}")
    with doing, progress("planning parts", len(mine)) as advance:
        paths = {part: plan_pieces.path_of(work.folder, strategy, part) for part in mine if work.continues}
        done = {part for part, path in paths.items() if plan_pieces.is_whole(path, work.uuid, strategy)}
        left = [part for part in mine if part not in done]
        advance(len(mine) - len(left))
        make_pieces(work.parts, strategy, work.folder, left, _jobs(problem), advance)
    with raise_on_all_ranks(world, f"store the plan in {work.parts}"):
        if world.rank == 0:
            (work.folder / "adding").touch()
            plan_store.add_plan(work.parts, strategy, work.folder)


def _jobs(problem: Problem) -> int:
    """Number of processes, or threads, of this rank; 1 if there are several ranks, which already work in parallel."""
    if problem.world.size > 1:
        return 1
    return problem.options.jobs or fitting_jobs(problem.reader.meta.num_edges, problem.options.num_parts)


@dataclass(frozen=True)
class PartQuality:
    """Counts of a partition.

    cut_edges: stored edges between parts. node_balance, edge_balance, train_balance: the largest part's count divided by the
    mean, 1.0 at best, and if the graph has none. halo_total, halo_max: sum and maximum over parts of the halo's size, the
    number of distinct sources on other parts. replication: the mean number of parts in which a node has a row, owned or halo.
    """

    num_parts: int
    num_nodes: int
    num_edges: int
    cut_edges: int
    node_balance: float
    edge_balance: float
    train_balance: float
    halo_total: int
    halo_max: int
    replication: float
    empty_parts: int

    @property
    def cut_fraction(self) -> float:
        """Cut edges divided by all edges, from 0 to 1."""
        return self.cut_edges / max(self.num_edges, 1)


@dataclass(frozen=True)
class PartitionReport:
    """A report about a finished partition. seconds: by step, and ``total``, without numba's compilation. peak_memory_bytes: the
    largest resident memory of any rank, or of a process that a rank has started."""

    method: str
    reason: str
    objective: str
    balance: tuple[str, ...]
    seed: int
    ranks_per_node: int
    ranks: int
    quality: PartQuality
    seconds: dict[str, float]
    peak_memory_bytes: int
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """The report as one JSON object, flat except for ``seconds``."""
        values = asdict(self)
        return values.pop("quality") | {"cut_fraction": self.quality.cut_fraction} | values


def measure(world: World, parts_path: str) -> PartQuality:
    """Measure ``parts.h5``. Rank r reads parts r, r + size, ... in chunks, in memory of one bit a node. Collective."""
    with raise_on_all_ranks(world, "measure the parts"), PartsFile(parts_path) as file:
        meta, num_parts = file.meta, file.num_parts
        nodes = np.diff(file.node_offsets)
        edges, train, halo, cut = (np.zeros(num_parts, dtype=np.int64) for _ in range(4))
        for part in range(world.rank, num_parts, world.size):
            if nodes[part]:
                first, last = file.part(part)
                seen = np.zeros(-(-meta.num_nodes // 8), dtype=np.uint8)
                for chunk in edge_chunks(file, first, last):
                    edges[part] += chunk.sources.size
                    more_cut, more_halo = mark_remote(chunk.sources, first, last, seen)
                    cut[part] += more_cut
                    halo[part] += more_halo
                mask = file.mask("train_mask", first, last)
                train[part] = 0 if mask is None else np.count_nonzero(mask)
    edges, train, halo, cut = (world.allreduce(counts) for counts in (edges, train, halo, cut))
    return PartQuality(
        num_parts=num_parts,
        num_nodes=meta.num_nodes,
        num_edges=meta.num_edges,
        cut_edges=int(cut.sum()),
        node_balance=max_over_mean(nodes),
        edge_balance=max_over_mean(edges),
        train_balance=max_over_mean(train),
        halo_total=int(halo.sum()),
        halo_max=int(halo.max()),
        replication=1 + int(halo.sum()) / max(meta.num_nodes, 1),
        empty_parts=int(np.count_nonzero(nodes == 0)),
    )


@njit(cache=True)
def mark_remote(sources: np.ndarray, first: int, last: int, seen: np.ndarray) -> tuple[int, int]:
    """``(cut edges, sources not seen before)`` among edges into nodes ``[first, last)``. ``seen`` (ceil(N/8),) has a bit for
    each node; the bits of sources outside the range are set."""
    cut = 0
    new = 0
    for source in sources:
        if first <= source < last:
            continue
        cut += 1
        bit = np.uint8(1 << (source & 7))
        if not seen[source >> 3] & bit:
            seen[source >> 3] |= bit
            new += 1
    return cut, new
