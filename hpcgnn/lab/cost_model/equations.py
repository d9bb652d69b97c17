"""Seconds of an epoch from what ranks do and send: a clock for each rank, which exchanges and the reduction bring together.

    work        w = sum over kinds of work of (constant * amount), in core-seconds
    cores       ranks of a machine share its cores: while n of them compute, each gets min(t, C / n) cores
    exchange k  begins at s = clock; r has its rows at a_r = max over its senders, and r, of s, + seconds of its messages on links
                and of their copies; clock = max(s + work beside it, copies and a lag, a_r): what a rank waits is what its work
                beside the exchange leaves
    pipeline    the same exchange of the epoch before is waited for where this one begins; messages stand in one queue a link
    reduction   all wait for the last rank, then for the all-reduce of gradients; then the optimiser

Everything here is a pure function of arrays. Shapes: P ranks, T kinds of work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.exchange.mailbox import FRESH, REUSED, STALE
from hpcgnn.lab.cost_model.constants import AGGREGATION, OTHER, QUANTIZATION, WORK, Values
from hpcgnn.lab.cost_model.workload import Exchange, Workload

PHASES = ("aggregation", "communication_wait", "wire", "quantization", "synchronisation", "other")
COMPUTED = (AGGREGATION, QUANTIZATION, OTHER)
IN_PHASES = np.array([[float(constant.phase == phase) for phase in COMPUTED] for constant in WORK])
_IS_MEMORY_BOUND = np.array([constant.is_memory_bound for constant in WORK])
# Of ranks and of bytes, from which on an all-reduce goes round a ring (Open MPI's libnbc).
_LEAST_RING, _LEAST_RING_BYTES = 4, 1 << 16
# Epochs that are gone through, as what an epoch finds under way the ones before it have left: some more where rows travel across
# epochs, until as many stand in a link's queue as there will be; and at least two cycles of epochs.
_STEADY_EPOCHS, _STEADY_STALE_EPOCHS = 3, 6


@dataclass(frozen=True)
class Machine:
    """A machine, with the number of ranks that share its cores, and the threads of each rank."""

    cores: int
    ranks: int
    threads: int = 1

    @property
    def busy_cores(self) -> int:
        """The number of busy cores while all ranks compute."""
        return min(self.cores, self.ranks * self.threads)

    @property
    def crowd(self) -> float:
        """Threads per core, at least 1."""
        return max(1.0, self.ranks * self.threads / self.cores)


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of a network. exchange: (P,) seconds of one exchange that all ranks begin at the same time. reduction:
    seconds of an all-reduce of a number of bytes. network_bytes: (P,) bytes of an exchange that each rank sends to other
    nodes and receives from them. burst_seconds: seconds of a link's time that pass at once after a pause."""

    exchange: Callable[[Exchange], np.ndarray]
    reduction: Callable[[int], float]
    network_bytes: Callable[[Exchange], tuple[np.ndarray, np.ndarray]]
    burst_seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Epoch:
    """Seconds of a training step. seconds: (P,) by phase of :data:`PHASES`, and ``seconds`` of the whole step. ``wire``
    overlaps the other phases."""

    seconds: dict[str, np.ndarray]

    @property
    def total(self) -> float:
        """Seconds of the slowest rank."""
        return float(self.seconds["seconds"].max())

    def largest(self) -> dict[str, float]:
        """Seconds of the slowest rank in each phase."""
        return {name: float(values.max()) for name, values in self.seconds.items()}

    def mean(self) -> dict[str, float]:
        """Mean seconds over ranks in each phase."""
        return {name: float(values.mean()) for name, values in self.seconds.items()}


def prices(values: Values, machine: Machine) -> np.ndarray:
    """(T,) core-seconds of each kind of work. Memory-bound work takes ``contention`` times as long with all cores busy, and
    proportionally less with fewer."""
    others = (machine.busy_cores - 1) / max(machine.cores - 1, 1)
    slower = np.where(_IS_MEMORY_BOUND, 1 + (values["contention"] - 1) * others, 1.0)
    return np.array([values[constant.name] for constant in WORK]) * slower


def lag_of(work: np.ndarray, values: Values, machine: Machine) -> float:
    """Seconds until ranks that have met continue, if each shares its core with others, which run first: as long as ranks have
    worked since they met, (P,) core-seconds, and at most ``turn``. The share ``crowding`` of this time is lost."""
    return values["crowding"] * (machine.crowd - 1) * min(values["turn"], float(work.mean()) / machine.threads)


def shared_cores(work: np.ndarray, machine: Machine) -> np.ndarray:
    """(P,) seconds until each rank has done its (P,) core-seconds, if the ranks of a machine begin together. While n of them
    work, each has min(threads, cores / n) cores."""
    ranks = max(machine.ranks, 1)
    if ranks * machine.threads <= machine.cores:
        return work / machine.threads
    padded = np.zeros(-(-work.size // ranks) * ranks)
    padded[: work.size] = work
    of_machines = padded.reshape(-1, ranks)
    order = np.argsort(of_machines, axis=1, kind="stable")
    ascending = np.take_along_axis(of_machines, order, axis=1)
    speed = np.minimum(machine.threads, machine.cores / np.arange(ranks, 0, -1))
    ends = np.cumsum(np.diff(ascending, axis=1, prepend=0) / speed, axis=1)
    seconds = np.empty_like(ends)
    np.put_along_axis(seconds, order, ends, axis=1)
    return seconds.ravel()[: work.size]


def last_start(starts: np.ndarray, exchange: Exchange) -> np.ndarray:
    """(P,) time at which the last of a rank's senders, or the rank itself, begins an exchange. starts: (P,) seconds."""
    last = starts.copy()
    np.maximum.at(last, exchange.sent.indices, starts[exchange.senders])
    return last


class _Clocks:
    """The (P,) clocks of all ranks, in seconds since the epoch began. link_free: time at which each rank's link has sent all
    queued bytes. credit: seconds of a link's time that pass at once. coming: by exchange, when the messages under way arrive.
    since: core-seconds of work since ranks met."""

    def __init__(self, turn: EpochKind, values: Values, machine: Machine) -> None:
        self.values, self.machine, self.burst = values, machine, turn.messages.burst_seconds
        self.price = prices(values, machine)[:, None] * IN_PHASES
        self.now, self.link_free, self.credit, self.since = (np.zeros(turn.workload.num_ranks) for _ in range(4))
        self.spent: dict[str, np.ndarray] = {}
        self.coming: dict[int, np.ndarray] = {}

    def epoch_of(self, turn: EpochKind) -> Epoch:
        """Go through an epoch, which all ranks begin together."""
        workload, end = turn.workload, float(self.now.max())
        self.coming = {number: arrived - end for number, arrived in self.coming.items()}
        self.link_free -= end
        self.now = np.zeros_like(self.now)
        self.spent = {phase: np.zeros_like(self.now) for phase in PHASES}
        for before, beside, exchange in zip(workload.before, workload.beside, workload.exchanges, strict=False):
            self._compute(before)
            self._exchange(turn, exchange, beside)
        self._compute(workload.before[-1])
        self._reduce(turn)
        return Epoch({**self.spent, "seconds": self.now.copy()})

    def _take(self, until: np.ndarray, phase: str) -> None:
        self.spent[phase] += until - self.now
        self.now = until

    def _arrival(self, begun: np.ndarray, wire: np.ndarray) -> np.ndarray:
        """(P,) arrival of messages that may begin at ``begun`` and take ``wire`` seconds of a link without bursts."""
        first = np.maximum(begun, self.link_free)
        credit = np.minimum(self.burst, self.credit + first - self.link_free)
        taken = np.minimum(credit, wire)
        self.credit = credit - taken
        self.link_free = first + wire - taken
        return self.link_free

    def _arrival_beside(self, begun: np.ndarray, wire: np.ndarray) -> np.ndarray:
        """As :meth:`_arrival`, for messages that share the link with queued ones, so each gets half of it."""
        queued = np.maximum(self.link_free - begun, 0.0)
        if not queued.any():
            return self._arrival(begun, wire)
        self.link_free = np.maximum(self.link_free, begun) + wire
        return begun + wire + np.minimum(queued, wire)

    def _compute(self, work: np.ndarray, extra: np.ndarray | float = 0.0) -> np.ndarray:
        """Go through work, with ``extra`` core-seconds of messages beside it; returns when these are done as well."""
        begun, of_phases = self.now, work @ self.price
        own = of_phases.sum(axis=1)
        self.since = self.since + own
        computing = shared_cores(own, self.machine)
        shares = np.divide(computing, own, out=np.zeros_like(own), where=own > 0)
        for phase, seconds in zip(COMPUTED, of_phases.T, strict=True):
            self._take(self.now + seconds * shares, phase)
        return begun + shared_cores(own + extra, self.machine)

    def _exchange(self, turn: EpochKind, exchange: Exchange, beside: np.ndarray) -> None:
        if turn.workload.num_ranks == 1:
            self._compute(beside)
            return
        if exchange.number in self.coming:  # one message of an exchange is under way at a time
            self._take(np.maximum(self.now, self.coming.pop(exchange.number)), "communication_wait")
        if turn.freshness == REUSED:
            self._compute(beside)
            return
        begun, values, network = self.now, self.values, np.add(*turn.messages.network_bytes(exchange))
        within = np.add(*exchange.bytes_of_ranks) - network
        moved = (
            values["byte"] * network + values["shared_byte"] * within + values["message"] * exchange.messages_of_ranks
        )
        copied = shared_cores(moved, self.machine)
        arrived = self._arrival(last_start(begun, exchange), turn.messages.exchange(exchange)) + copied
        done = self._compute(beside, moved)
        if turn.freshness == STALE:
            self.coming[exchange.number] = arrived = np.maximum(arrived, done)
        else:
            done = arrived = np.maximum(arrived, done + self._meet())
        self.spent["wire"] += arrived - begun
        self._take(np.maximum(self.now, done), "communication_wait")

    def _meet(self) -> float:
        """Ranks wait for each other: the seconds until they run again."""
        lag, self.since = lag_of(self.since, self.values, self.machine), np.zeros_like(self.since)
        return lag

    def _reduce(self, turn: EpochKind) -> None:
        workload, together = turn.workload, np.full_like(self.now, self.now.max())
        if workload.num_ranks > 1:
            wire = np.full_like(self.now, turn.messages.reduction(workload.reduced_bytes))
            copied = shared_cores(reduction_work(workload, turn.messages, self.values), self.machine)
            arrived = self._arrival_beside(together, wire) + copied
            together = np.maximum(arrived, together + copied + self._meet())
        self._take(np.full_like(self.now, together.max()), "synchronisation")
        seconds = shared_cores((workload.optimiser @ self.price).sum(axis=1), self.machine)
        self._take(self.now + seconds, "other")


@dataclass(frozen=True, eq=False)
class EpochKind:
    """An epoch of a cycle. freshness: that of all its exchanges, a value of :mod:`hpcgnn.exchange.mailbox`."""

    workload: Workload
    messages: Messages
    freshness: str = FRESH


def epoch_of(turn: EpochKind, values: Values, machine: Machine) -> Epoch:
    """Seconds of a training step in the middle of a run of such steps, which are stale with ``--staleness pipeline``."""
    fresh = _STEADY_EPOCHS if turn.messages.burst_seconds else 1
    return cycle_of([turn], values, machine, _STEADY_STALE_EPOCHS if turn.freshness == STALE else fresh)[0]


def cycle_of(turns: Sequence[EpochKind], values: Values, machine: Machine, cycles: int = 0) -> list[Epoch]:
    """Seconds of each epoch of a cycle, in the middle of a run that repeats the cycle. cycles: number that is gone through."""
    clocks, cycles = _Clocks(turns[0], values, machine), cycles or max(2, -(-_STEADY_STALE_EPOCHS // len(turns)))
    return [[clocks.epoch_of(turn) for turn in turns] for _ in range(cycles)][-1]


def reduction_work(workload: Workload, messages: Messages, values: Values) -> np.ndarray:
    """(P,) core-seconds of the messages of the all-reduce: the bytes of each rank pass in and out, in rounds of one message in
    each direction. Few ranks and few bytes use a tree; more use a ring, as in Open MPI."""
    ranks, num_bytes = workload.num_ranks, workload.reduced_bytes
    is_ring = ranks >= _LEAST_RING and num_bytes >= _LEAST_RING_BYTES
    rounds = 2 * (ranks - 1) if is_ring else 2 * np.log2(ranks)
    moved = 4 * num_bytes * (ranks - 1) / ranks
    sent = sum(float(each.sent.sum()) for each in workload.exchanges)
    away = sum(float(messages.network_bytes(each)[0].sum()) for each in workload.exchanges)
    byte = values["shared_byte"] + (values["byte"] - values["shared_byte"]) * (away / sent if sent else 1.0)
    return np.full(ranks, byte * moved + values["message"] * 2 * rounds)


def memory_of(workload: Workload, factors: Sequence[float]) -> np.ndarray:
    """(P,) bytes of each rank. factors: fixed bytes, bytes per rank of the job, and the factors of the memory kept for gradients
    and of messages."""
    fixed, per_rank, kept, travelling = factors
    held, of_gradients, of_messages = workload.memory.T
    return fixed + per_rank * workload.num_ranks + held + kept * of_gradients + travelling * of_messages
