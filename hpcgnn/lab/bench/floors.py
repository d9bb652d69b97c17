"""The measurement of ``hpcgnn bench epoch``: the seconds of each phase of a training step, and the least that the machine allows.

Epochs alternate with measurements of the machine's ceilings, on all ranks at once, so that other load and shared cores affect
both. In every second epoch, a :class:`Trace` sees each call of a native kernel and each operation of torch, with its work
(:mod:`hpcgnn.lab.bench.works`). The floor of a call is the longest of three times: its bytes at the rate at which consecutive
rows are read, its multiply-adds at the processor's peak, and the gathering of its rows. Calls that a better program would not
make have a floor as well. The whole epoch and its waits are measured in the epochs without the trace, and what no phase explains
is the interpreter's.
"""

from __future__ import annotations

import contextlib
import functools
import math
import resource
import statistics
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import buffers, library
from hpcgnn.lab.bench import results
from hpcgnn.lab.bench.ceilings import best_distance, gather_at, multiply_call
from hpcgnn.lab.bench.epochs import WARM_UP, bare_trainer
from hpcgnn.lab.bench.names import Advance, CallFloor, Floor, Limits
from hpcgnn.lab.bench.problem import Call
from hpcgnn.lab.bench.works import LOSSES, OPTIMISER, PHASES, Work, of_kernel, of_torch
from hpcgnn.nn.whole_graph import SUMS_OVER_NODES
from hpcgnn.train.run_config import RunConfig
from hpcgnn.train.trainer import Trainer
from hpcgnn.world import World
from hpcgnn.world.buffer import Buffer, Segments

_STREAM_BYTES = (1 << 16, 1 << 18, 1 << 21, 1 << 24, 1 << 27)  # that are read; the rate of the nearest size counts
_STREAM_COLUMNS = 64
_BLOCK_BYTES = 64
REDUCTION, WAITING, POLICIES, INTERPRETER, WIRE = "all-reduce", "waiting", "policies", "interpreter", "wire"
_SHOWN_CALLS = 12
_SUMS = "seconds of sums over nodes"
_NO_PHASE = "none"  # the section of operations that another measurement covers


@dataclass
class Calls:
    """All calls with the same work. seconds: in all traced epochs."""

    name: str
    work: Work
    seconds: float = 0.0
    count: int = 0


class Trace(TorchDispatchMode):
    """Adds up the calls that are made in its context, by kernel and shape. ``section`` is the phase of torch's operations, if it
    is known. Kernels must have been bound in :func:`hpcgnn.kernels.library.called_through`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Hashable, Calls] = {}
        self.section, self._is_on = "", False
        self._seconds = self._seconds_on_core = 0.0  # of all kernels

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's default imports its compiler, which takes seconds and 180 MB."""
        return False

    def __enter__(self) -> Trace:
        self._is_on = True
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._is_on, self.section = False, ""

    def clear(self) -> None:
        """Forget all calls."""
        self.calls.clear()
        self._seconds = self._seconds_on_core = 0.0

    @property
    def crowding(self) -> float:
        """The seconds of kernels, divided by those in which this rank was on a core: 2 where two ranks share each core."""
        return max(1.0, self._seconds / self._seconds_on_core) if self._seconds_on_core else 1.0

    def mark(self, name: str) -> None:
        """The trainer's note that a half of the step begins."""
        self.section = ""

    def within(self, section: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, during which torch's operations belong to ``section``."""

        @functools.wraps(function)
        def run(*given: Any) -> Any:
            before, self.section = self.section, section
            try:
                return function(*given)
            finally:
                self.section = before

        return run

    def around(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """A kernel whose calls are added up."""

        @functools.wraps(kernel, updated=())
        def traced(**given: Any) -> Any:
            if not self._is_on:
                return kernel(**given)
            started, on_core = time.perf_counter(), _core_clock()
            found = kernel(**given)
            seconds = time.perf_counter() - started
            self._seconds_on_core += _core_clock() - on_core
            self._seconds += seconds
            self._add(name, seconds, of_kernel(name, given))
            return found

        return traced

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch's documentation of ``TorchDispatchMode``."""
        started = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        seconds = time.perf_counter() - started
        if self.section != _NO_PHASE:
            name = str(func)
            self._add(name.removeprefix("aten.").rsplit(".", 1)[0], seconds, of_torch(name, args, result, self.section))
        return result

    def _add(self, name: str, seconds: float, work: Work | None) -> None:
        if work is None:
            return
        place = 0 if work.indices is None else work.indices.data_ptr()
        key = name, work.phase, work.shape, work.row_bytes, work.num_bytes, place
        calls = self.calls.setdefault(key, Calls(name, work))
        calls.seconds += seconds
        calls.count += 1


class Ceilings:
    """The limits of the machine. Each :meth:`measure` runs all of them once; medians count, of the seconds in which this rank
    is on a core: a rank that shares one may be on it throughout a short call, and half of the time in an epoch. crowding: that
    of the trace, by which floors are longer."""

    crowding = 1.0

    def __init__(self) -> None:
        self._calls: dict[Hashable, Call] = {}
        self._counts: dict[Hashable, float] = {}
        self.seconds: dict[Hashable, list[float]] = {}
        self._distances: dict[int, int] = {}
        for num_bytes in _STREAM_BYTES:
            x = _ones(num_bytes // (_STREAM_COLUMNS * 4), _STREAM_COLUMNS)
            in_turn = torch.arange(len(x), dtype=torch.int32)
            self._add(num_bytes, functools.partial(gather_at, in_turn, x, best_distance(in_turn, x)), num_bytes)

    def include(self, works: list[Work]) -> None:
        """Add the limits of works that are new, and measure these once."""
        for arithmetic in sorted({work.arithmetic for work in works if work.multiply_adds} - self._calls.keys()):
            call = multiply_call(arithmetic, 0)
            assert call.multiply_adds is not None
            self._add(arithmetic, call, call.multiply_adds)
        gathered = {
            _gather_key(work): (work.indices, work.row_floats)
            for work in works
            if work.indices is not None and work.indices.numel() and _gather_key(work) not in self._calls
        }
        rows = {key: int(indices.max()) + 1 for key, (indices, _) in gathered.items()}
        memory = _ones(max((rows[key] * width for key, (_, width) in gathered.items()), default=0), 1).view(-1)
        for key, (indices, width) in sorted(gathered.items(), key=lambda item: -item[0][1]):
            x = memory[: rows[key] * width].view(rows[key], width)
            if width not in self._distances:  # of the largest matrix
                self._distances[width] = best_distance(indices, x)
            self._add(key, functools.partial(gather_at, indices, x, self._distances[width]), 1)

    def _add(self, key: Hashable, call: Call, count: float) -> None:
        call()  # which warms caches
        self._calls[key], self._counts[key], self.seconds[key] = call, count, [_seconds_on_core(call)]

    def measure(self) -> None:
        """Run each ceiling once."""
        for key, call in self._calls.items():
            self.seconds[key].append(_seconds_on_core(call))

    def _each(self, key: Hashable) -> float:
        """Seconds of one byte, multiply-add or gathering."""
        return statistics.median(self.seconds[key]) / self._counts[key]

    def floor(self, work: Work) -> float:
        """The least seconds of a call."""
        size = min(_STREAM_BYTES, key=lambda each: abs(math.log(each / max(work.num_bytes, 1.0))))
        times = [work.num_bytes * self._each(size)]
        if work.multiply_adds:
            times.append(work.multiply_adds * self._each(work.arithmetic))
        if work.indices is not None and work.indices.numel():
            times.append(self._each(_gather_key(work)))
        return max(times) * self.crowding

    def rates(self) -> dict[str, float]:
        """Bytes that a rank on cores of its own reads in a second by the size of the matrix, and its multiply-adds a second by
        arithmetic."""
        found = {f"bytes of {size >> 10} KiB": 1 / self._each(size) for size in _STREAM_BYTES}
        return found | {key: 1 / self._each(key) for key in self._calls if isinstance(key, str)}


def _core_clock() -> float:
    """The seconds that this thread has been on a core, on a rank of one thread. One of several may sleep while others compute:
    their cores are taken for their own."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _seconds_on_core(call: Call) -> float:
    started = _core_clock()
    call()
    return _core_clock() - started


def _ones(rows: int, width: int) -> torch.Tensor:
    """Memory as kernels have it: in huge pages."""
    return buffers.empty(rows, width, torch.float32, CPU.torch_device).fill_(1)


def _gather_key(work: Work) -> tuple[int, int, int]:
    assert work.indices is not None
    return work.indices.data_ptr(), work.indices.numel(), work.row_floats


@dataclass
class _Links:
    """The exchanges and the reduction of a step on their own, with nothing beside them. counts: (2, P) blocks of 64 bytes to and
    from each rank in each of ``exchanges``."""

    world: World
    exchanges: int
    counts: np.ndarray
    reduced: int  # parameters whose gradients are summed over ranks
    parameters: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {WIRE: [], REDUCTION: []})

    def measure(self) -> None:
        """Run both once. Collective."""
        gradients = np.zeros(self.reduced, np.float32)
        self.world.allreduce(np.zeros(1))
        started = time.perf_counter()
        self.world.allreduce(gradients)
        self.seconds[REDUCTION].append(time.perf_counter() - started)
        total = 0.0
        if self.exchanges:
            sent, received = (
                Segments(Buffer.of(torch.zeros(int(each.sum()), _BLOCK_BYTES, dtype=torch.uint8)), each)
                for each in self.counts
            )
            self.world.allreduce(np.zeros(1))
            started = time.perf_counter()
            for _ in range(self.exchanges):
                self.world.wait(self.world.start_alltoallv(sent, received, "a trial exchange", None))
            total = time.perf_counter() - started
        self.seconds[WIRE].append(total)


def run(graph: LocalGraph, config: RunConfig, rounds: int, advance: Advance) -> dict[str, Any]:
    """Measure ``rounds`` epochs of the training that ``config`` describes, without evaluations and checkpoints; ``advance``
    counts rounds and the start. Collective.

    Raises:
        HpcgnnError: on every rank, for a device other than the CPU, and without the native kernels.
    """
    if graph.device is not CPU or library.load() is None:
        raise HpcgnnError(
            "the floors of an epoch are those of the native kernels on CPUs: pass --device cpu", agreed=True
        )
    trace = Trace()
    with library.called_through(trace.around), _sums_over_nodes(graph.world) as sums:
        trainer = bare_trainer(graph, config)
        for _ in range(WARM_UP):
            trainer.run_epoch()
        _watch(trainer, trace)
        before = trainer.model.messages.traffic.bytes_to.copy()
        _traced(trainer, trace)
        links = _links(trainer, before)
        ceilings = Ceilings()
        ceilings.include([each.work for each in trace.calls.values()])
        advance(1)
        trace.clear()
        records, faults = [], []
        for number in range(rounds):
            # epochs of either kind are odd ones and even ones, which policies may treat differently
            if number % 2:
                _traced(trainer, trace)
            faulted = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            sums.clear()
            records.append(trainer.run_epoch() | {_SUMS: sum(sums)})
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faulted)
            if not number % 2:
                _traced(trainer, trace)
            trainer.model.messages.drain()  # no message is under way beside the measurements, nor when MPI ends
            links.measure()
            ceilings.measure()
            advance(1)
        ceilings.include([each.work for each in trace.calls.values()])  # some epochs have matrices of their own
    ceilings.crowding = trace.crowding
    return _found(graph, config, trace, ceilings, links, records, faults)


@contextlib.contextmanager
def _sums_over_nodes(world: World) -> Iterator[list[float]]:
    """The seconds that this rank spends in each sum over the nodes of all ranks in this context, as norms have them."""
    seconds: list[float] = []

    def timed(*given: Any, **named: Any) -> Any:
        started = time.perf_counter()
        found = type(world).allreduce(world, *given, **named)
        if named.get("what") == SUMS_OVER_NODES:
            seconds.append(time.perf_counter() - started)
        return found

    world.allreduce = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        del world.allreduce


def _watch(trainer: Trainer, trace: Trace) -> None:
    """Tell the trace which part of the step runs."""
    trainer.ledger = trace  # type: ignore[assignment]  # which has the same marks
    model: Any = trainer.model
    model.register_forward_hook(lambda *given: setattr(trace, "section", LOSSES))
    trainer.optimiser.step = trace.within(OPTIMISER, trainer.optimiser.step)  # type: ignore[method-assign]
    trainer.bucket.reduce = trace.within(_NO_PHASE, trainer.bucket.reduce)  # type: ignore[method-assign]


def _traced(trainer: Trainer, trace: Trace) -> None:
    with trace:
        trainer.run_epoch()


def _links(trainer: Trainer, before: np.ndarray) -> _Links:
    """The messages of the last step. before: (P,) bytes sent until then. Collective."""
    traffic, world = trainer.model.messages.traffic, trainer.world
    exchanges = sum(traffic.calls.values())
    blocks = -(-(traffic.bytes_to - before) // (max(exchanges, 1) * _BLOCK_BYTES))
    came, _ = world.alltoallv(blocks, np.ones(world.size, np.int64))
    owned, values = trainer.model.owned_parameters().values(), [each.numel() for each in trainer.model.parameters()]
    shared = sum(values) - sum(each.numel() for each in owned)
    return _Links(world, exchanges, np.stack((blocks, came)), shared, sum(values))


def _found(
    graph: LocalGraph, config: RunConfig, trace: Trace, ceilings: Ceilings, links: _Links,
    records: list[dict[str, Any]], faults: list[int],
) -> dict[str, Any]:  # fmt: skip
    """The result on all ranks. Collective."""
    limits = _limits(graph, trace, ceilings, links, records)
    told = limits.phases | {"epoch": limits.epoch}
    return msgspec.to_builtins(limits) | {
        "graph": str(graph.path), "nodes": graph.meta.num_nodes, "rounds": len(records),
        "settings": {name: str(value) for name, value in config.settings().items()},
        "machine": results.machine(), "versions": results.versions(mpi=graph.world.library),
        "to_floor": limits.epoch.to_floor, "page_faults": statistics.median(faults), "rates": ceilings.rates(),
        "lines": [
            results.line({"part": name}, **msgspec.to_builtins(each), to_floor=each.to_floor) for name, each in told.items()
        ],
    }  # fmt: skip


def _limits(
    graph: LocalGraph, trace: Trace, ceilings: Ceilings, links: _Links, records: list[dict[str, Any]]
) -> Limits:
    world = graph.world
    seconds, floors = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)
    for calls in trace.calls.values():
        seconds[calls.work.phase] += calls.seconds / len(records)
        floors[calls.work.phase] += ceilings.floor(calls.work) * calls.count / len(records)
    # whatever operations do it: weights, gradients and moments are read, and all but gradients are written
    floors[OPTIMISER] = ceilings.floor(Work(OPTIMISER, (), 7.0 * 4 * links.parameters))
    found = [*seconds.values(), *floors.values(), statistics.median(record[_SUMS] for record in records)]
    *means, in_sums = (world.allreduce(np.array(found)) / world.size).tolist()
    mine = np.array([statistics.median(links.seconds[name]) for name in (WIRE, REDUCTION)])
    on_wire, reducing = world.allreduce(mine, "max").tolist()

    def median(key: str) -> float:
        return statistics.median(record[key] for record in records)

    of_phases = zip(PHASES, means[: len(PHASES)], means[len(PHASES) :], strict=True)
    phases = {name: Floor(measured, floor) for name, measured, floor in of_phases}
    compute = sum(each.floor_seconds for each in phases.values())
    phases[REDUCTION] = Floor(median("synchronisation_seconds_mean"), reducing)
    phases[WAITING] = Floor(median("communication_wait_seconds_mean") + in_sums, 0.0)
    phases[POLICIES] = Floor(median("policy_seconds_mean"), 0.0)
    rest = median("seconds_mean") - sum(each.seconds for each in phases.values())
    phases[INTERPRETER] = Floor(max(0.0, rest), 0.0)
    return Limits(
        ranks=world.size,
        threads=torch.get_num_threads(),
        compute=records[-1]["compute"],
        parts_uuid=graph.uuid,
        epoch=Floor(median("seconds"), max(compute, on_wire + reducing)),
        compute_floor_seconds=compute,
        wire_floor_seconds=on_wire + reducing,
        phases=phases,
        wire=Floor(median("wire_seconds"), on_wire),
        calls=_worst(trace, ceilings, len(records)),
    )


def _worst(trace: Trace, ceilings: Ceilings, rounds: int) -> tuple[CallFloor, ...]:
    """The calls of this rank with the most seconds beyond their floor, joined by name and shape."""
    joined: dict[tuple[str, str, tuple[int, ...]], np.ndarray] = {}
    for calls in trace.calls.values():
        key = calls.work.phase, calls.name, calls.work.shape
        each = np.array([calls.count, calls.seconds, ceilings.floor(calls.work) * calls.count]) / rounds
        joined[key] = joined.get(key, 0.0) + each
    ordered = sorted(joined.items(), key=lambda item: item[1][2] - item[1][1])
    return tuple(
        CallFloor(seconds, floor, phase=phase, name=name, shape=shape, calls=count)
        for (phase, name, shape), (count, seconds, floor) in (
            (key, each.tolist()) for key, each in ordered[:_SHOWN_CALLS]
        )
    )
