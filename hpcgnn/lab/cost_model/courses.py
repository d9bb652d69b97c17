"""The mean epoch of a run whose policies decide while it trains: epochs of a few kinds, by how often there is each.

    fresh     messages are sent and waited for                                 1 - stale of all epochs
    stale     they are sent, and those of an epoch before are used              stale + sent - 1
    reused    none are sent                                                     1 - sent

Fresh epochs follow each other, and so do stale ones with as many reused ones behind each as their shares say; what one kind
leaves to the other under way is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.exchange.mailbox import FRESH, REUSED, STALE
from hpcgnn.lab.cost_model.constants import COLUMN, Values
from hpcgnn.lab.cost_model.equations import Epoch, Messages, Turn, cycle_of
from hpcgnn.lab.cost_model.network import allreduce_seconds
from hpcgnn.lab.cost_model.policies import ASSIGNMENT_PAIR_SECONDS, ASSIGNMENT_ROUNDS, Course
from hpcgnn.lab.cost_model.rows import Parts
from hpcgnn.lab.cost_model.setup import Setup, network_of
from hpcgnn.lab.cost_model.wire import Wire
from hpcgnn.lab.cost_model.workload import Workload

DECISIONS = "policy"
# Reading values where messages are compared (PipeQS' Eq. 6), in units of decoding one: each row is decoded, and read for three
# dot products of two rows each.
_READS_OF_A_COMPARISON = 6.0
# Fewer stale epochs that send than this, for each that reuses, are left out: a cycle with one of them is gone through whole.
_RARELY = 1e-2


@dataclass(frozen=True, eq=False)
class Outcome:
    """The mean epoch of a run. epoch: its seconds. workload: that of an epoch that sends messages. bytes_sent, rows_sent:
    (P,) float64 of each rank in a mean epoch."""

    epoch: Epoch
    workload: Workload
    bytes_sent: np.ndarray
    rows_sent: np.ndarray


def outcome_of(
    course: Course, setup: Setup, parts: Parts, values: Values, messages_of: Callable[[Workload], Messages]
) -> Outcome:
    """The mean epoch of a run on these parts. messages_of: a function that returns the seconds of messages."""
    wire = Wire(course.shares, reads_codes=len(course.shares) == 1 and not (course.compares or course.is_delta))
    sending = _with_codecs(setup.workload(parts, wire), course)
    kinds: list[tuple[float, Epoch]] = []
    if course.stale < 1:
        kinds.append((1 - course.stale, _epochs(setup, values, messages_of, [(sending, FRESH)])[0]))
    if course.stale > 0:
        kinds += _stale_epochs(course, setup, parts, values, messages_of, sending)
    phases = {
        phase: sum((weight * epoch.seconds[phase] for weight, epoch in kinds), np.zeros(setup.ranks))
        for phase in kinds[0][1].seconds
    }
    deciding = _decision_seconds(course, setup, sending, values)
    phases = {"seconds": phases.pop("seconds") + deciding, **phases, DECISIONS: np.full(setup.ranks, deciding)}
    return Outcome(Epoch(phases), sending, course.sent * sending.bytes_sent(), course.sent * sending.rows_sent())


def _stale_epochs(
    course: Course,
    setup: Setup,
    parts: Parts,
    values: Values,
    messages_of: Callable[[Workload], Messages],
    sending: Workload,
) -> list[tuple[float, Epoch]]:
    """The cycles of stale epochs and of epochs that reuse rows, with their shares of all epochs."""
    of_sending = course.stale + course.sent - 1
    if course.sent >= 1:
        return [(course.stale, _epochs(setup, values, messages_of, [(sending, STALE)])[0])]
    reused = _with_codecs(setup.workload(parts, Wire(course.shares, sends=False, reads_codes=False)), course)
    if of_sending <= _RARELY * (1 - course.sent):
        return [(course.stale, _epochs(setup, values, messages_of, [(reused, REUSED)])[0])]
    behind_each = max(1, round((1 - course.sent) / of_sending))
    cycle = [(sending, STALE), *[(reused, REUSED)] * behind_each]
    first, *others = _epochs(setup, values, messages_of, cycle)
    share = (1 - course.sent) / behind_each
    return [(of_sending, first), *((share, each) for each in others)]


def _epochs(
    setup: Setup,
    values: Values,
    messages_of: Callable[[Workload], Messages],
    cycle: Sequence[tuple[Workload, str]],
) -> list[Epoch]:
    messages = {id(workload): messages_of(workload) for workload, _ in cycle}
    return cycle_of([Turn(each, messages[id(each)], freshness) for each, freshness in cycle], values, setup.machine)


def _with_codecs(workload: Workload, course: Course) -> Workload:
    """The workload with the additional encoding and decoding of comparisons and of delta coding."""
    encode, decode, element = (COLUMN[name] for name in ("encode", "decode", "element"))
    if not (course.compares or course.is_delta):
        return workload
    before = [work.copy() for work in workload.before]
    for number, exchange in enumerate(workload.exchanges):
        came = workload.parts.pairs.sent() if exchange.is_backward else workload.parts.pairs.received()
        if course.compares:  # rows are decoded where they come and not where they are used
            before[number + 1][:, decode] = 0
            if exchange.sent.nnz:
                before[number + 1][:, decode] = _READS_OF_A_COMPARISON * came * exchange.width
        if course.is_delta:  # both ends take the difference, and the sender makes it
            sent = before[number][:, encode].copy()
            before[number][:, decode] += sent
            before[number][:, element] += sent
    return replace(workload, before=tuple(before))


def _decision_seconds(course: Course, setup: Setup, workload: Workload, values: Values) -> float:
    """Seconds per epoch of the assignments that ranks compute together: those of AdaQP, whose prices are summed over all
    ranks in each round, for all exchanges at once."""
    if not course.period or setup.ranks == 1:
        return 0.0
    exchanges = len(workload.exchanges)
    num_bytes = 8 * exchanges * (4 + 4 * setup.ranks)
    together = allreduce_seconds(num_bytes, setup.ranks, setup.ranks_per_node, network_of(setup, values))
    pairs = max(int(np.diff(each.sent.indptr).max()) for each in workload.exchanges) if exchanges else 0
    alone = ASSIGNMENT_PAIR_SECONDS * pairs * exchanges * setup.machine.crowd
    return ASSIGNMENT_ROUNDS * (together + alone) / course.period
