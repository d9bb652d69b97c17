"""AdaQP's adaptive bit-widths (§3.3, §4.2): in each period, Eq. 12 is solved for each layer and direction from ranges of rows.

This differs from the published code in these points. Variances stay with their groups. The sum of squared weights is a sum of
squares: the squared column norm of Dl R forward, of Sᵀ with its scaling backward, and of the coefficients of an epoch for
attention. The ranges of rows are mean squares over the messages of a period. Seconds are weighed against those of an epoch.

At the end of a period, rank 0 gathers the groups of all ranks and solves the problem while training goes on. The bits are handed
out one epoch later, so that runs repeat. Until the first bits are known, and where there is no assignment, all rows have 8 bits.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import index_array
from hpcgnn.base.typed import MESSAGE_BITS, Count, NotNegative
from hpcgnn.exchange.layout import RowBits
from hpcgnn.kernels.packing import PARAMS_BYTES
from hpcgnn.policy import link_costs
from hpcgnn.policy.assignment import GATHERED_GROUPS, Aim, NoAssignment, Problem, own_loads, solve
from hpcgnn.policy.base import BitsPolicy, ExchangeFacts, Observation, Setup
from hpcgnn.policy.config import BITS_POLICIES, FALLBACK_BITS, AdaQPSettings, PeriodSettings
from hpcgnn.policy.link_costs import LinkCosts, measure_links, median_costs, read_costs, write_costs
from hpcgnn.policy.row_errors import RowErrors, RowState, check_rows, rows_differ

_LOG = logging.getLogger("hpcgnn")
# of an assignment, for the records
_DETAILS = ("objective", "bound", "gap", "seconds", "least_seconds", "variance", "beta")
_FIRST_EPOCHS = 2  # before the first problem: the first epoch also makes memory, so its seconds say little
# Of the seconds of a period, the share in which messages that measure links may begin; and of its bytes at 8 bits, the share that
# each of them has. There are at least five of them for each of up to three partners, so they have 1.25 % of the bytes or more.
_PROBE_SECONDS, _PROBE_BYTES = 0.0025, 0.0025 / 3
_KEPT_COSTS = 3  # of which the median counts


def group_rows(
    beta: np.ndarray, receiver: np.ndarray, seconds: np.ndarray, size: int, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(s,) int64 group of each row sent, and (G, 4) float64 columns of these groups: receiver, beta, seconds_per_bit and bits_now
    of a Problem. A group has ``size`` rows of one receiver with similar beta.

    beta: (s,), by which rows are sorted (§4.2). receiver: (s,) ascending. seconds: (P,) seconds that one more bit of each value
    of a row takes, by receiver. bits: (s,) up to now.
    """
    order = np.lexsort((-beta, receiver))
    counts = np.bincount(receiver, minlength=seconds.size)
    within = np.arange(beta.size) - np.repeat(np.cumsum(counts) - counts, counts)
    per_receiver = -(-counts // size)
    in_order = (np.cumsum(per_receiver) - per_receiver)[receiver] + within // size
    of_row = np.empty(beta.size, np.int64)
    of_row[order] = in_order
    of_group = np.repeat(np.arange(seconds.size), per_receiver)
    rows = np.bincount(of_row)
    mean_bits = np.bincount(of_row, bits) / rows
    return of_row, np.stack((of_group, np.bincount(of_row, beta), rows * seconds[of_group], mean_bits), axis=1)


def problems_of(columns: np.ndarray, counts: np.ndarray, fixed: np.ndarray, ranks: np.ndarray) -> list[Problem]:
    """The problems of E exchanges. columns: those of ``ranks`` (n,), one rank after the other, and in each one exchange after the
    other. counts: (n, E) groups of each. fixed: (E, 2P)."""
    exchange = np.repeat(np.tile(np.arange(counts.shape[1]), ranks.size), counts.ravel())
    sender = np.repeat(np.repeat(ranks, counts.shape[1]), counts.ravel())
    found = []
    for number, own_fixed in enumerate(fixed):
        own = exchange == number
        receiver, beta, seconds, bits = columns[own].T
        found.append(Problem(sender[own], receiver.astype(np.int64), beta, seconds, bits, own_fixed))
    return found


class Answer(msgspec.Struct):
    """The bit-widths of the groups of all ranks, by exchange, with details for the records; or the reason why there are none."""

    bits: list[np.ndarray] = []
    details: list[dict[str, float]] = []
    failure: str = ""


def answer_to(problems: list[Problem], aim: Aim) -> Answer:
    """The solution of the gathered problems."""
    try:
        found = solve(problems, aim)
    except NoAssignment as failure:
        return Answer(failure=str(failure))
    details = [{name: getattr(each, name) for name in _DETAILS} for each in found]
    return Answer([each.bits for each in found], details)


@dataclass
class Waiting:
    """The exchanges, by their numbers, whose bits are handed out in the next epoch. groups: (s,) of the rows of each. first:
    number of this rank's first group of each. answer: on rank 0, which solves the problem meanwhile."""

    numbers: list[int]
    groups: list[np.ndarray]
    first: list[int]
    answer: Future[Answer] | None


class AdaQPState(msgspec.Struct):
    """The state of :class:`AdaQPBits`."""

    due: Count | None  # the epoch of the next assignment
    costs: LinkCosts | None
    recent: list[LinkCosts] = []  # those that were measured last, of which ``costs`` is the median
    is_measured: bool = False  # False: ``costs`` are those of a file
    seconds: NotNegative | None = None  # the least of an epoch with the present bits
    changed: Count = 0  # the first epoch with them


class ChannelState(RowState):
    """The bit-widths of an exchange's rows, and their ranges. groups, first, bits, details, failure: of bits that were not handed
    out yet."""

    groups: torch.Tensor | None = None
    first: Count = 0
    bits: torch.Tensor | None = None
    details: dict[str, float] = msgspec.field(default_factory=dict)
    failure: str = ""


@BITS_POLICIES.register("adaqp")
class AdaQPBits(BitsPolicy):
    """AdaQP's assignment of 2, 4 or 8 bits."""

    allows_delta = False  # the ranges of rows decide, and those of differences are others
    needs_clock = True
    state_type = AdaQPState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        world, all_facts = setup.world, setup.all_facts
        self._own, self._period = setup.config.section(AdaQPSettings), setup.config.section(PeriodSettings).bits_period
        self.costs: LinkCosts | None = None
        self.recent: list[LinkCosts] = []
        self.due: int | None = None
        self.seconds: float | None = None
        self.changed = 0
        self.is_measured = False
        self._nodes = world.hosts()
        self._receivers = [np.repeat(np.arange(world.size), facts.exchange.send_counts) for facts in all_facts]
        self._errors = RowErrors(all_facts)
        self._waiting: Waiting | None = None
        self._fall_back()

    def observe(self, seen: Observation) -> None:
        """Keep the seconds of the fastest epoch with the present bits: other work on a host only adds to them."""
        self._errors.observe()
        before = seen.seconds if self.seconds is None or seen.epoch <= self.changed else self.seconds
        self.seconds = min(before, seen.seconds)

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Hand out bits that were asked for an epoch ago, and ask for others if a period has ended. Returns objective, bound,
        seconds and variance of each problem. Collective."""
        if self.due is None:
            self.due = epoch + _FIRST_EPOCHS
        try:
            details = {}
            if self._waiting is not None:
                details, self.changed = self._handed_out(), epoch
            numbers = [each for each, of in enumerate(self._errors.ranges) if of.messages]
            if epoch >= self.due and numbers:
                self.due = epoch + self._period
                details = {**details, **self._ask(numbers)}
        except NoAssignment as failure:
            _LOG.warning("epoch %d: all rows have %d bits until the next assignment: %s", epoch, FALLBACK_BITS, failure)
            self._waiting = None
            self._fall_back()
            return {"failure": str(failure)}
        return details

    def _fall_back(self) -> None:
        for facts in self.all_facts:
            facts.exchange.row_bits = facts.exchange.uniform_bits(FALLBACK_BITS)

    # -- a problem ----------------------------------------------------------------------------------------------------

    def _ask(self, numbers: list[int]) -> dict[str, Any]:
        """Gather the problems of the exchanges with these numbers, and begin to solve them. Returns details if they are solved at
        once, because rank 0 could not hold them. Collective."""
        world, rank = self.setup.world, self.setup.world.rank
        theta, gamma = self._link_seconds()
        groups, columns, fixed = zip(*(self._grouped(each, theta, gamma) for each in numbers), strict=True)
        aim = Aim(self._own.variance_weight, self.seconds if self._own.time_scale == "epoch" else None)
        all_fixed = world.allreduce(np.stack(fixed), what="loads of an assignment")
        counts = world.allgather(np.array([each.shape[0] for each in columns]))  # (P, E)
        first = (counts[:rank].sum(axis=0)).tolist()
        own = np.concatenate(columns)
        if counts.sum() > GATHERED_GROUPS:
            problems = problems_of(own, counts[rank : rank + 1], all_fixed, np.array([rank]))
            found = solve(
                problems, aim, lambda values: world.broadcast_into(world.allreduce(values, what="bits of groups"))
            )
            details = [{name: getattr(each, name) for name in _DETAILS} for each in found]
            return self._assign(numbers, list(groups), [each.bits for each in found], details)
        gathered, answer = world.to_rank_0(own), None
        if rank == 0:
            problems = problems_of(gathered, counts, all_fixed, np.arange(world.size))
            solver = ThreadPoolExecutor(1)
            answer = solver.submit(answer_to, problems, aim)
            solver.shutdown(wait=False)
        self._waiting = Waiting(numbers, list(groups), first, answer)
        return {}

    def _grouped(self, number: int, theta: np.ndarray, gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The (s,) group of each row of an exchange, the (G, 4) columns of the groups, and (2P,) seconds at any bit-width.
        Collective where weights change."""
        facts, ranges, world = self.all_facts[number], self._errors.ranges[number], self.setup.world
        counts = facts.exchange.send_counts
        seconds = (counts > 0) * gamma + counts * PARAMS_BYTES * theta
        fixed = own_loads(world.size, world.rank, np.arange(world.size), seconds)
        assert ranges.width is not None
        assert facts.exchange.row_bits is not None
        beta = self._errors.take(number)
        per_bit = theta * ranges.width / 8
        bits = facts.exchange.row_bits.sent
        return *group_rows(beta, self._receivers[number], per_bit, self._own.group_rows, bits), fixed

    def _handed_out(self) -> dict[str, Any]:
        """Wait for the answer of rank 0, and give the rows their bits. Returns the details. Collective."""
        waiting, self._waiting = self._waiting, None
        assert waiting is not None
        mine = None if waiting.answer is None else waiting.answer.result()
        answer: Answer = self.setup.world.broadcast(mine, what="an assignment of bits")
        if answer.failure:
            raise NoAssignment(answer.failure)
        bits = [all_bits[first:] for all_bits, first in zip(answer.bits, waiting.first, strict=True)]
        return self._assign(waiting.numbers, waiting.groups, bits, answer.details)

    def _assign(
        self, numbers: list[int], groups: list[np.ndarray], bits: list[np.ndarray], details: list[dict[str, float]]
    ) -> dict[str, Any]:
        """Give the rows of the exchanges with these numbers the bits of their groups. Returns the details by exchange.
        Collective."""
        for number, of_row, of_group in zip(numbers, groups, bits, strict=True):
            self.all_facts[number].exchange.assign_bits(of_group[of_row])
        return {self.all_facts[number].name: each for number, each in zip(numbers, details, strict=True)}

    # -- costs of links -----------------------------------------------------------------------------------------------

    def _link_seconds(self) -> tuple[np.ndarray, np.ndarray]:
        """(P,) seconds per byte and (P,) seconds per message to each rank. Collective."""
        seen = self.setup.clock.observe("link_costs", self._looked_up)
        if seen is not None:
            self.recent = [*self.recent, msgspec.convert(seen, LinkCosts)][-_KEPT_COSTS:]
            self.costs = median_costs(self.recent)
        if self.costs is None:
            raise NoAssignment("the costs of messages on this network are not known")
        # classes of all ranks' links, so all ranks find the same ones missing
        classes = {kind for kind, _ in link_costs.pairings(self._nodes)}
        missing = sorted(classes - self.costs.seconds_per_byte.keys())
        if missing:
            raise NoAssignment(f"the file of link costs has no costs of {missing[0]!r} links: give --refit-links")
        return self.costs.to_ranks(self._nodes, self.setup.world.rank)

    def _looked_up(self) -> dict[str, Any] | None:
        """The costs in the file, or measured ones, which are then written to it. Collective."""
        own, world = self._own, self.setup.world
        costs = None
        if own.link_costs is not None and not own.refit_links and not self.is_measured:
            costs = read_costs(world, own.link_costs)
        self.is_measured = costs is None
        if costs is None:
            costs = self.setup.measure_costs() if self.setup.measure_costs else self._measured()
            if own.link_costs is not None and costs is not None:
                write_costs(world, own.link_costs, costs)
        return None if costs is None else msgspec.to_builtins(costs)

    def _measured(self) -> LinkCosts:
        """Costs by messages about as large as those of an exchange, which take a small share of a period. Collective."""
        all_facts, period = self.all_facts, self._period
        sent = sum(
            float(facts.exchange.send_counts.sum()) * (ranges.width or 0)
            for facts, ranges in zip(all_facts, self._errors.ranges, strict=True)
        )
        most = self.setup.world.allreduce(np.array([sent]), "max", "costs of links")[0]
        size = int(np.clip(_PROBE_BYTES * most * period, link_costs.LEAST_LARGE, link_costs.MOST_LARGE))
        return measure_links(self.setup.world, size, _PROBE_SECONDS * period * (self.seconds or 0.0))

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def rank_state(self) -> dict[str, Any]:
        """The bit-widths of all rows, their ranges since the last assignment, and bits that are not handed out yet. Rank 0 waits
        for these. Collective."""
        found: dict[str, dict[str, Any]] = {
            facts.name: {
                "sent": torch.from_numpy(bits.sent),
                "received": torch.from_numpy(bits.received),
            }
            | self._errors.row_state(number)
            for number, facts in enumerate(self.all_facts)
            if (bits := facts.exchange.row_bits) is not None
        }
        if (waiting := self._waiting) is None:
            return found
        answer = None if waiting.answer is None else waiting.answer.result()
        for place, (number, groups) in enumerate(zip(waiting.numbers, waiting.groups, strict=True)):
            kept = found[self.all_facts[number].name]
            kept |= {"groups": torch.from_numpy(groups), "first": waiting.first[place]}
            if answer is not None and answer.failure:
                kept["failure"] = answer.failure
            elif answer is not None:
                kept |= {"bits": torch.from_numpy(answer.bits[place]), "details": answer.details[place]}
        return found

    def check_rank_state(self, state: dict[str, Any], where: str) -> None:
        """As :meth:`BitsPolicy.check_rank_state`: each row needs a bit-width, and each row sent a sum of ranges."""
        found = typed.validated(state, dict[str, ChannelState], f"{where}: policies")
        check_rows(found, self.all_facts, where)
        known = torch.tensor(MESSAGE_BITS, dtype=torch.uint8)
        for facts in self.all_facts:
            kept = found[facts.name]
            if not all(bool(torch.isin(bits, known).all()) for bits in (kept.sent, kept.received)):
                raise HpcgnnError(f"{where}: policies: {rows_differ(facts.name)}")
            if kept.groups is not None:
                self._check_waiting(facts, kept, f"{where}: policies: the groups of {facts.name} do not match its rows")

    def _check_waiting(self, facts: ExchangeFacts, kept: ChannelState, problem: str) -> None:
        """Raise HpcgnnError with ``problem`` unless ``kept`` can hold bits that were not handed out yet."""
        groups, rows = kept.groups, int(facts.exchange.send_counts.sum())
        assert groups is not None
        is_wrong = groups.dtype != torch.int64 or tuple(groups.shape) != (rows,) or bool((groups < 0).any())
        if not is_wrong and self.setup.world.rank == 0 and not kept.failure:
            bits = torch.zeros(0) if kept.bits is None else kept.bits
            known, last = torch.tensor(MESSAGE_BITS, dtype=torch.uint8), int(groups.max()) if rows else -1
            is_wrong = bits.dtype != torch.uint8 or bits.dim() != 1 or bits.numel() <= kept.first + last
            is_wrong = is_wrong or not bool(torch.isin(bits, known).all())
        if is_wrong:
            raise HpcgnnError(problem)

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Continue from the states; without ranges of these very rows, the next epoch uses 8 bits and measures them."""
        if rank_state is None or {facts.name for facts in self.all_facts} != rank_state.keys():
            return
        kept_state = typed.validated(state, AdaQPState, "the state of a policy")
        self.due, self.seconds, self.changed = kept_state.due, kept_state.seconds, kept_state.changed
        if not self._own.refit_links:
            self.costs, self.recent, self.is_measured = kept_state.costs, kept_state.recent, kept_state.is_measured
        for number, facts in enumerate(self.all_facts):
            kept = rank_state[facts.name]
            facts.exchange.row_bits = RowBits(index_array(kept["sent"]), index_array(kept["received"]))
            self._errors.load_rows(number, kept)
        self._load_waiting(rank_state)

    def _load_waiting(self, rank_state: dict[str, Any]) -> None:
        kept = {
            number: each
            for number, facts in enumerate(self.all_facts)
            if (each := rank_state[facts.name]).get("groups") is not None
        }
        if not kept:
            return
        answer: Future[Answer] | None = None
        if self.setup.world.rank == 0:
            failure = next((each["failure"] for each in kept.values() if each.get("failure")), "")
            bits = [] if failure else [index_array(each["bits"]) for each in kept.values()]
            answer = Future()
            answer.set_result(Answer(bits, [each.get("details", {}) for each in kept.values()], failure))
        groups = [index_array(each["groups"]) for each in kept.values()]
        self._waiting = Waiting(list(kept), groups, [each["first"] for each in kept.values()], answer)
