"""The assumed decisions of policies: the mean epoch is a mixture of different epochs (docs/cost-model.md).

Each policy gets the decisions that its own code makes under a stated assumption, or those of an earlier run. Kinds of epochs:

    fresh     messages are sent and waited for                                 1 - stale of all epochs
    stale     they are sent, and those of an epoch before are used              stale + sent - 1
    reused    none are sent                                                     1 - sent

Fresh epochs follow each other, and so do stale ones with as many reused ones behind each as their shares say; what one kind
leaves to the other under way is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_store import StoredPlan
from hpcgnn.exchange.mailbox import FRESH, REUSED, STALE
from hpcgnn.lab.cost_model.constants import COLUMN, Values, read_toml
from hpcgnn.lab.cost_model.equations import Epoch, EpochKind, Messages, cycle_of
from hpcgnn.lab.cost_model.network import allreduce_seconds
from hpcgnn.lab.cost_model.rows import Parts, Wire
from hpcgnn.lab.cost_model.setup import PIPELINE, Setup, network_of
from hpcgnn.lab.cost_model.workload import Workload
from hpcgnn.policy import config, sylvie
from hpcgnn.policy.adaqp import group_rows
from hpcgnn.policy.assignment import CHOICES, quantization_variance
from hpcgnn.policy.config import AUTO, FALLBACK_BITS, FIXED, OFF
from hpcgnn.policy.row_errors import LEVELS, bits_of_levels, levels_of
from hpcgnn.train.run_config import CONFIG, RunConfig
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.train.summary import bit_shares

PLAIN = "plain"
DECISIONS = "policy"  # the phase of assignments that ranks compute together
# AdaQP's assignments: seconds of a core for each row that a rank groups, and for each group of all ranks that rank 0 solves,
# measured on a server (docs/cost-model.md); bytes of a group that rank 0 gathers.
ASSIGNMENT_ROW_SECONDS, ASSIGNMENT_GROUP_SECONDS, ASSIGNMENT_GROUP_BYTES = 4e-7, 4e-6, 32
# Fewer stale epochs that send than this, for each that reuses, are left out: a cycle with one of them is gone through whole.
_RARELY = 1e-2
_SLOWER = 0.5  # of epochs, those in which the printed rule takes the loss for slower, where nobody says how many
_MOST_RANKS = 64  # whose rows are read: an evenly spread sample of more, which makes the facts estimates
# The policies that are covered
_BITS = (FIXED, "uniform", "adaqp", "sylvie", "pipeqs", AUTO)
_STALENESS = (OFF, PIPELINE, "sylvie", "pipeqs", "sancus", AUTO)
Shares = dict[int, float]


# -- decisions that are known ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assumptions:
    """The known decisions of a run, or None. shares: of the rows, by bits. stale, sent: of the epochs. of: the policies of
    bit-widths and staleness that decided, or None for any. source: the origin of the decisions, in words."""

    shares: Mapping[int, float] | None = None
    stale: float | None = None
    sent: float | None = None
    of: tuple[str, str] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = "as given"

    def check(self) -> None:
        """Raise HpcgnnError for shares that are not allowed."""
        told = {} if self.shares is None else self.shares
        if self.shares is not None and (not abs(sum(told.values()) - 1) <= 1e-3 or min(told.values()) < 0):
            raise HpcgnnError(
                f"shares of bits must add up to 1, as 2:0.7,4:0.2,8:0.1 do, not to {sum(told.values()):g}"
            )
        for name, share in (("stale", self.stale), ("sent", self.sent)):
            if share is not None and not 0 <= share <= 1:
                raise HpcgnnError(f"the {name} share must lie between 0 and 1, not be {share:g}")


def decided_by(path: Path) -> Assumptions:
    """The decisions in the records of the run in the folder ``path``. Raises HpcgnnError if there are none."""
    settings, records = read_toml(path / CONFIG), RunFolder(path).records()
    if not records:
        raise HpcgnnError(f"{path} holds no epochs: give a folder that `hpcgnn train --out` made")
    records = records[1:] or records  # the first epoch sends rows that later ones do not send again
    bits, staleness = str(settings.get("bits", FIXED)), str(settings.get("staleness", OFF))
    own = (
        config.PeriodSettings,
        config.AdaQPSettings,
        config.AgeSettings,
        config.BypassSettings,
        config.StaleSettings,
    )
    names = {setting.name for section in own for setting in fields(section)}
    # exchanges that sent messages: those with bit-widths of their own, or by bytes if all have the same
    started = [len(each["bits"]) for each in records if isinstance(each["bits"], dict)]
    sent = started or [each["bytes_sent"] for each in records]
    return Assumptions(
        shares={int(name): share for name, share in bit_shares([each["bits"] for each in records]).items()},
        stale=sum(float(each["stale"]) for each in records) / len(records),
        sent=sum(each / max(sent) for each in sent) / len(sent) if max(sent) else float(not started),
        of=(FIXED if bits.isdigit() else bits.partition(":")[0], staleness),
        settings={name: value for name, value in settings.items() if name in names},
        source=f"as in {len(records)} epochs of {path}",
    )


# -- facts about the rows of a plan ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowFacts:
    """Facts about rows, which policies use. degrees: (rows,) int64 in-degrees of their nodes (an order of Sylvie's). weights: for
    each direction and rank in the sample, (rows,) peers, ascending, and (rows,) sums of the squared weights with which a row is
    added (AdaQP's assignment). looked_at: number of ranks in the sample."""

    degrees: np.ndarray
    weights: tuple[list[tuple[np.ndarray, np.ndarray]], ...]
    looked_at: int
    ranks: int

    @property
    def in_words(self) -> str:
        """The sample of ranks, in words."""
        return "all rows" if self.looked_at == self.ranks else f"the rows of {self.looked_at} of {self.ranks:,} ranks"

    def by_importance(self, base: int) -> Shares:
        """The share of rows with each bit-width that Sylvie chooses for given base bits."""
        bits = sylvie.class_bits(sylvie.importance(self.degrees, np.unique(self.degrees)), base)
        return _shares(sylvie.CHOICES, bits, np.ones(bits.size))

    def by_error(self, mean: int) -> Shares:
        """The share of rows with each bit-width that Sylvie chooses for ``mean`` bits if the ranges of all rows are alike."""
        rows, bits = [], []
        for each in self.weights:
            beta = np.concatenate([weights for _, weights in each])
            levels = np.bincount(levels_of(beta, beta.max(initial=0.0)), minlength=LEVELS)
            rows.append(levels)
            bits.append(bits_of_levels(levels, mean))
        return _shares(sylvie.CHOICES, np.concatenate(bits), np.concatenate(rows))

    def by_variance(self, weight: float, group_rows_of: int) -> Shares:
        """The share of rows with each bit-width that AdaQP chooses if the ranges of all rows are alike and no rank is a
        straggler. weight: of variance against time."""
        rows, bits = zip(*(_assigned(each, weight, group_rows_of, self.ranks) for each in self.weights), strict=True)
        return _shares(CHOICES, np.concatenate(bits), np.concatenate(rows))


def _assigned(
    weights: Sequence[tuple[np.ndarray, np.ndarray]], weight: float, size: int, ranks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and bit-widths of each group of one direction. Without the maximum over ranks, Eq. 12 separates into groups."""
    grouped = [group_rows(beta, peer, np.ones(ranks), size, np.zeros(beta.size)) for peer, beta in weights]
    beta = np.concatenate([columns[:, 1] for _, columns in grouped])
    rows = np.concatenate([np.bincount(of_row) for of_row, _ in grouped])
    choices = np.array(CHOICES)
    costs = np.zeros((rows.size, choices.size))
    for share, each in ((weight, quantization_variance(beta[:, None], choices)), (1 - weight, rows[:, None] * choices)):
        span = each[:, 0].sum() - each[:, -1].sum()
        costs = costs + (share / abs(span) if span else 0.0) * each
    return rows, choices[costs.argmin(axis=1)]


def _shares(choices: Sequence[int], bits: np.ndarray, rows: np.ndarray) -> Shares:
    counts = {each: float(rows[bits == each].sum()) for each in choices}
    total = sum(counts.values())
    return {each: count / total for each, count in counts.items() if count} if total else {max(choices): 1.0}


def read_facts(file: PartsFile, strategy: str, aggregation: str) -> RowFacts:
    """The facts of an open parts file with the plan of ``strategy``. aggregation: ``mean``, ``gcn`` or ``sum``."""
    plan, ranks = StoredPlan(file, strategy), file.num_parts
    chosen = np.unique(np.linspace(0, ranks - 1, min(ranks, _MOST_RANKS)).astype(int)).tolist()
    degrees: list[np.ndarray] = []
    weights: tuple[list[Any], list[Any]] = ([], [])
    for rank in chosen:
        of_nodes = np.diff(file.edges(*file.part(rank), rank)[0])
        part = plan.part(rank, edges=False)
        send, receive, entries = part.send, part.receive, np.diff(part.receive.indptr)
        # of the sources of post rows that the rank sends, and of the destinations of pre rows that it receives
        degrees.append(of_nodes[send.indices[send.indptr[:-1]]][part.send_to.is_post()])
        destination = np.zeros(receive.num_cols, np.int64)
        destination[receive.indices] = np.repeat(np.arange(of_nodes.size), entries)
        degrees.append(of_nodes[destination][~part.receive_from.is_post()])
        # the factors of nodes' rows after and before the sum, as make_aggregator has them
        left = right = np.ones(of_nodes.size)
        if aggregation == "mean":
            left = 1 / np.maximum(of_nodes, 1)
        elif aggregation == "gcn":
            left = right = (of_nodes + 1.0) ** -0.5
        forward = np.bincount(receive.indices, np.repeat(left**2, entries), receive.num_cols)
        back = np.add.reduceat(right[send.indices] ** 2, send.indptr[:-1]) if send.indices.size else np.zeros(0)
        for found, peers, squares in zip(weights, (part.receive_from, part.send_to), (forward, back), strict=True):
            found.append((np.repeat(peers.peers, peers.rows), squares))
    return RowFacts(np.concatenate(degrees), weights, len(chosen), ranks)


# -- what each policy does ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyMix:
    """The course of a run. shares: (bits, share of the rows sent) pairs. stale, sent: shares of epochs that use stale rows, and
    that send messages. is_delta: whether messages hold differences. repeats_input: whether rows that never change are sent in
    each epoch. period: epochs between two assignments of bit-widths that ranks compute together, or 0, for groups of
    ``group_rows``. assumes: sentences."""

    shares: tuple[tuple[int, float], ...]
    stale: float = 0.0
    sent: float = 1.0
    is_delta: bool = False
    repeats_input: bool = True
    period: int = 0
    group_rows: int = 1
    assumes: tuple[str, ...] = ()


def is_plain(run: RunConfig) -> bool:
    """Return whether the equations cover all decisions of the run, without assumptions."""
    return run.policy.bits == FIXED and run.policy.staleness in (OFF, PIPELINE) and run.messages.message_coding == PLAIN


def course_of(run: RunConfig, facts: Callable[[], RowFacts], decided: Assumptions) -> PolicyMix:
    """The course of a run with these settings. facts: a function that reads facts about rows, which some policies use. Raises
    HpcgnnError for a policy that is not covered."""
    decided.check()
    policy = run.policy
    for name, known in ((policy.bits, _BITS), (policy.staleness, _STALENESS)):
        if name not in known:
            raise HpcgnnError(f"the cost model covers the policies {', '.join(known)}, but not {name}")
    shares, of_bits = _shares_of_bits(run, facts, decided)
    stale, sent, of_epochs = _shares_of_epochs(policy, decided)
    period = policy.section(config.PeriodSettings).bits_period if policy.bits == "adaqp" else 0
    size = policy.section(config.AdaQPSettings).group_rows if period else 1
    of_period = (
        f"an assignment every {period} epochs, for which each rank takes {1e6 * ASSIGNMENT_ROW_SECONDS:g} us of a CPU core for "
        f"each row, and rank 0 takes {1e6 * ASSIGNMENT_GROUP_SECONDS:g} us for each group of rows while an epoch goes on"
    )
    told = (of_bits, of_epochs, of_period if period else "")
    assumes = tuple(f"assumes {each}" for each in told if each)
    is_delta = run.messages.message_coding != PLAIN
    return PolicyMix(tuple(sorted(shares.items())), stale, sent, is_delta, policy.is_off, period, size, assumes)


def _in_words(shares: Mapping[int, float]) -> str:
    return "bit-widths " + ", ".join(f"{bits}: {share:.1%}" for bits, share in sorted(shares.items()))


def _shares_of_bits(run: RunConfig, facts: Callable[[], RowFacts], decided: Assumptions) -> tuple[Shares, str]:
    """The share of rows with each bit-width, and its assumption in words."""
    policy = run.policy
    if policy.bits == FIXED:
        return {run.messages.bits: 1.0}, ""
    if decided.shares is not None:
        total = sum(decided.shares.values())  # 1 but for rounding, which draws of rows do not take
        shares = {bits: share / total for bits, share in decided.shares.items() if share > 0}
        return shares, f"{_in_words(shares)}, {decided.source}"
    if policy.bits == "uniform":
        if policy.epoch_bytes is not None:
            raise HpcgnnError(
                "the shares of the bit-widths of uniform:BYTES follow from a run: give --like or --shares"
            )
        said = f"bit-widths {', '.join(map(str, CHOICES))} in equal shares, drawn at random"
        return dict.fromkeys(CHOICES, 1 / len(CHOICES)), said
    if policy.bits == "pipeqs":
        if policy.section(config.DriftBitsSettings).drift_rule == "error":
            return {CHOICES[0]: 1.0}, f"that rows change so little that {CHOICES[0]} bits, the fewest ones, are enough"
        said = f"that rows change so little that they keep {FALLBACK_BITS} bits, the initial bit-width of PipeQS"
        return {FALLBACK_BITS: 1.0}, said
    found = facts()
    if policy.bits == AUTO:
        shares = found.by_error(CHOICES[0])
        return shares, (
            f"{_in_words(shares)}, because more than {CHOICES[0]} bits on average make epochs longer, as on a slow network, "
            f"for the errors, if all rows have equal ranges, of {found.in_words}"
        )
    if policy.bits == "adaqp":
        own = policy.section(config.AdaQPSettings)
        shares = found.by_variance(own.variance_weight, own.group_rows)
        return shares, (
            f"{_in_words(shares)}: the assignment with a variance weight of {own.variance_weight:g} if all rows have equal "
            f"ranges and no rank is a straggler, by --time-scale span, computed from the plan's weights of {found.in_words}"
        )
    # Sylvie's base bits double in epochs in which the loss falls more slowly and halve in others: a random walk
    slower, of_rows = _slower(policy, decided), policy.section(config.ImportanceSettings)
    walk = min(max(slower, 1e-9), 1 - 1e-9)
    bases = [base for base in sylvie.CHOICES if base >= of_rows.least_bits]
    odds = [(walk / (1 - walk)) ** step for step in range(len(bases))]
    shares = {}
    for base, odd in zip(bases, odds, strict=True):
        of_base = found.by_error(base) if of_rows.importance == "error" else found.by_importance(base)
        for bits, share in of_base.items():
            shares[bits] = shares.get(bits, 0.0) + share * odd / sum(odds)
    order = "errors, if all rows have equal ranges," if of_rows.importance == "error" else "in-degrees"
    return shares, (
        f"{_in_words(shares)}: the result if the descent of the loss slows down in {slower:.0%} of epochs, chosen at random, for "
        f"the {order} of {found.in_words}"
    )


def _slower(policy: config.PolicyConfig, decided: Assumptions) -> float:
    """The share of epochs in which the descent of the loss slows down."""
    if decided.stale is not None:
        return 1 - decided.stale
    return _SLOWER if policy.section(config.DescentSettings).descent_rule == "printed" else 0.0


def _shares_of_epochs(policy: config.PolicyConfig, decided: Assumptions) -> tuple[float, float, str]:
    """The shares of stale epochs and of those that send, and their assumption in words."""
    if policy.staleness in (OFF, PIPELINE):
        return float(policy.staleness == PIPELINE), 1.0, ""
    if policy.staleness == AUTO:
        stale = decided.stale or 0.0
        source = "as where an evaluation follows each epoch" if decided.stale is None else decided.source
        return stale, 1.0, f"that {stale:.0%} of epochs use rows of the epoch before, {source}"
    if policy.staleness == "sylvie":
        usual = "namely those after which the descent of the loss does not slow down"
        stale, source = 1 - _slower(policy, decided), usual if decided.stale is None else decided.source
        return stale, 1.0, f"that {stale:.0%} of epochs use rows of the epoch before, {source}"
    stale = 1.0 if decided.stale is None else decided.stale
    if decided.sent is not None:
        sent = max(decided.sent, 1 - stale)
        return stale, sent, f"that {stale:.0%} of epochs use older rows and {sent:.0%} send any, {decided.source}"
    if policy.section(config.BypassSettings).bypass == "late":
        return stale, 1.0, "that no message is late when the next epoch begins, so that no exchange is skipped"
    turn = policy.section(config.AgeSettings).most_stale_epochs
    if policy.staleness == "sancus":  # fresh rows are used, and then used again
        turn += 1
        stale = 1 - 1 / turn if decided.stale is None else decided.stale
    said = f"that rows change little: each row is sent in one of {turn} epochs and used again in the others"
    return stale, max(1 / turn, 1 - stale), said


# -- the mean epoch ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MeanEpoch:
    """The mean epoch of a run. workload: that of an epoch that sends messages. bytes_sent, rows_sent: (P,) of each rank."""

    epoch: Epoch
    workload: Workload
    bytes_sent: np.ndarray
    rows_sent: np.ndarray


def outcome_of(
    course: PolicyMix, setup: Setup, parts: Parts, values: Values, messages_of: Callable[[Workload], Messages]
) -> MeanEpoch:
    """The mean epoch of a run on these parts. messages_of: a function that returns the seconds of messages."""
    is_read = len(course.shares) == 1 and not course.is_delta
    sending = _with_codecs(
        setup.workload(parts, Wire(course.shares, reads_codes=is_read, repeats_input=course.repeats_input)), course
    )
    kinds: list[tuple[float, Epoch]] = []

    def go_through(*cycle: tuple[float, Workload, str]) -> None:
        turns = [EpochKind(workload, messages_of(workload), freshness) for _, workload, freshness in cycle]
        kinds.extend(zip((share for share, *_ in cycle), cycle_of(turns, values, setup.machine), strict=True))

    if course.stale < 1:
        go_through((1 - course.stale, sending, FRESH))
    if course.stale > 0 and course.sent >= 1:
        go_through((course.stale, sending, STALE))
    elif course.stale > 0:
        reused = _with_codecs(setup.workload(parts, Wire(course.shares, sends=False, reads_codes=False)), course)
        of_sending, of_reusing = course.stale + course.sent - 1, 1 - course.sent
        if of_sending <= _RARELY * of_reusing:
            go_through((course.stale, reused, REUSED))
        else:
            behind_each = max(1, round(of_reusing / of_sending))
            go_through((of_sending, sending, STALE), *[(of_reusing / behind_each, reused, REUSED)] * behind_each)
    none, names = np.zeros(setup.ranks), kinds[0][1].seconds
    phases = {name: sum((weight * epoch.seconds[name] for weight, epoch in kinds), none) for name in names}
    deciding = _decision_seconds(course, setup, sending, values, float(phases["seconds"].max()))
    phases |= {"seconds": phases["seconds"] + deciding, DECISIONS: np.full(setup.ranks, deciding)}
    return MeanEpoch(Epoch(phases), sending, course.sent * sending.bytes_sent(), course.sent * sending.rows_sent())


def _with_codecs(workload: Workload, course: PolicyMix) -> Workload:
    """The workload with the additional encoding and decoding of delta coding."""
    if not course.is_delta:
        return workload
    encode, decode, element = (COLUMN[name] for name in ("encode", "decode", "element"))
    before = [work.copy() for work in workload.before]
    for number in range(len(workload.exchanges)):  # both ends take the difference, and the sender makes it
        sent = before[number][:, encode].copy()
        before[number][:, decode] += sent
        before[number][:, element] += sent
    return replace(workload, before=tuple(before))


def _decision_seconds(
    course: PolicyMix, setup: Setup, workload: Workload, values: Values, epoch_seconds: float
) -> float:
    """Seconds per epoch of AdaQP's assignments: ranks group their rows, rank 0 gathers the groups and hands out their bits, and
    all wait for it where it takes longer than an epoch."""
    if not course.period or setup.ranks == 1:
        return 0.0
    rows = workload.rows_sent()
    groups = int(rows.sum()) // course.group_rows + 1
    network = network_of(setup, values)
    gathered = groups * ASSIGNMENT_GROUP_BYTES / network.node_bandwidth_bytes_per_second
    handed_out = allreduce_seconds(groups, setup.ranks, setup.ranks_per_node, network)
    alone = ASSIGNMENT_ROW_SECONDS * float(rows.max()) * setup.machine.crowd
    waited = max(0.0, ASSIGNMENT_GROUP_SECONDS * groups * setup.machine.crowd - epoch_seconds)
    return (gathered + handed_out + alone + waited) / course.period
