"""AdaQP's adaptive bit-widths (§3.3, §4.2): in each period, Eq. 12 is solved for each layer and direction from ranges of rows.

This differs from the published code in three points. Variances stay with their groups. The sum of squared weights is a sum of
squares: the squared column norm of Dl R forward, and of Sᵀ with its scaling backward. The ranges of rows are mean squares over
the messages of a period. Until the first ranges are known, and where there is no assignment, all rows have 8 bits.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import numpy as np
import torch

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import index_array
from hpcgnn.base.typed import MESSAGE_BITS, Count
from hpcgnn.exchange.layout import RowBits
from hpcgnn.kernels.packing import PARAMS_BYTES
from hpcgnn.policy.assignment import NoAssignment, Problem, assign, own_loads
from hpcgnn.policy.base import BitsPolicy, Setup
from hpcgnn.policy.config import BITS_POLICIES, FALLBACK_BITS, AdaQPSettings, PeriodSettings
from hpcgnn.policy.link_costs import CLASSES, LinkCosts, kept_costs, measure_links, rings

_LOG = logging.getLogger("hpcgnn")
_DETAILS = ("objective", "bound", "gap", "seconds", "variance")  # of an assignment, for the records


def group_rows(
    beta: np.ndarray, receiver: np.ndarray, seconds: np.ndarray, size: int, fixed: np.ndarray
) -> tuple[np.ndarray, Problem]:
    """(s,) int64 group of each row sent, and the problem of these groups: ``size`` rows of one receiver with similar beta.

    beta: (s,), by which rows are sorted (§4.2). receiver: (s,) ascending. seconds: (P,) seconds that one more bit of each value
    of a row takes, by receiver. fixed: as in :class:`Problem`.
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
    return of_row, Problem(of_group, np.bincount(of_row, beta), rows * seconds[of_group], fixed)


class AdaQPState(msgspec.Struct):
    """The state of :class:`AdaQPBits`."""

    due: Count | None  # the epoch of the next assignment
    costs: LinkCosts | None


class ChannelState(msgspec.Struct):
    """The state of one exchange on one rank, in a checkpoint."""

    sent: torch.Tensor
    received: torch.Tensor
    squares: torch.Tensor
    messages: Count
    width: Count | None


@BITS_POLICIES.register("adaqp")
class AdaQPBits(BitsPolicy):
    """AdaQP's assignment of 2, 4 or 8 bits."""

    allows_delta = False  # the ranges of rows decide, and those of differences are others
    state_type = AdaQPState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        world, all_facts = setup.world, setup.all_facts
        self._own, self._period = setup.config.section(AdaQPSettings), setup.config.section(PeriodSettings).bits_period
        self.costs: dict[str, Any] | None = None
        self.due: int | None = None
        self._nodes = world.hosts()
        self._receivers = [np.repeat(np.arange(world.size), facts.exchange.send_counts) for facts in all_facts]
        self._weights = [facts.square_weights() for facts in all_facts]
        self._ranges = [facts.exchange.trace_ranges() for facts in all_facts]
        self._fall_back()

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Solve the problems if a period has ended. Returns objective, bound, seconds and variance of each. Collective."""
        if self.due is None:
            self.due = epoch + 1  # this is the first epoch whose ranges are known
        if epoch < self.due:
            return {}
        self.due = epoch + self._period
        try:
            return self._assign([number for number, ranges in enumerate(self._ranges) if ranges.messages])
        except NoAssignment as failure:
            _LOG.warning("epoch %d: all rows have %d bits until the next assignment: %s", epoch, FALLBACK_BITS, failure)
            self._fall_back()
            return {"failure": str(failure)}

    def _fall_back(self) -> None:
        for facts in self.all_facts:
            facts.exchange.row_bits = facts.exchange.uniform_bits(FALLBACK_BITS)

    def _assign(self, numbers: list[int]) -> dict[str, Any]:
        """Assign bit-widths to the exchanges with these numbers. Collective."""
        world, (theta, gamma) = self.setup.world, self._link_seconds()
        groups, problems = [], []
        for number in numbers:
            counts, ranges = self.all_facts[number].exchange.send_counts, self._ranges[number]
            seconds = (counts > 0) * gamma + counts * PARAMS_BYTES * theta
            fixed = own_loads(world, np.arange(world.size), seconds)
            assert ranges.width is not None
            beta = self._weights[number] * ranges.width * ranges.take() / 6  # Eq. 11
            per_bit = theta * ranges.width / 8
            of_row, problem = group_rows(beta, self._receivers[number], per_bit, self._own.group_rows, fixed)
            groups.append(of_row)
            problems.append(problem)
        details: dict[str, Any] = {}
        assignments = assign(world, problems, self._own.variance_weight)
        for number, of_row, assignment in zip(numbers, groups, assignments, strict=True):
            self.all_facts[number].exchange.assign_bits(assignment.bits[of_row].astype(np.uint8))
            details[self.all_facts[number].name] = {name: getattr(assignment, name) for name in _DETAILS}
        return details

    def _measured(self) -> dict[str, Any] | None:
        own, world = self._own, self.setup.world
        if own.link_costs is not None:
            costs = kept_costs(world, own.link_costs, refit=own.refit_links)
        else:
            costs = self.setup.measure_costs() if self.setup.measure_costs else measure_links(world)
        return None if costs is None else msgspec.to_builtins(costs)

    def _link_seconds(self) -> tuple[np.ndarray, np.ndarray]:
        """(P,) seconds per byte and (P,) seconds per message to each rank, measured if no costs are known. Collective."""
        if self.costs is None:
            self.costs = self.setup.clock.observe("link_costs", self._measured)
        if self.costs is None:
            raise NoAssignment("no costs of messages fit the times that were measured on this network")
        # classes of all ranks' links, so all ranks find the same ones missing
        missing = [name for name in rings(self._nodes) if name not in self.costs["seconds_per_byte"]]
        if missing:
            raise NoAssignment(f"the file of link costs has no costs of {missing[0]!r} links: give --refit-links")
        mine = self.setup.world.rank
        kinds = [CLASSES[int(node != self._nodes[mine])] for node in self._nodes]
        theta, gamma = (
            np.array([0.0 if rank == mine else self.costs[name][kind] for rank, kind in enumerate(kinds)])
            for name in ("seconds_per_byte", "seconds_per_message")
        )
        return theta, gamma

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def rank_state(self) -> dict[str, Any]:
        """The bit-widths of all rows, and their ranges since the last assignment."""
        return {
            facts.name: {
                "sent": torch.from_numpy(bits.sent),
                "received": torch.from_numpy(bits.received),
                "squares": ranges.squares,
                "messages": ranges.messages,
                "width": ranges.width,
            }
            for facts, ranges in zip(self.all_facts, self._ranges, strict=True)
            if (bits := facts.exchange.row_bits) is not None
        }

    def check_rank_state(self, state: dict[str, Any], where: str) -> None:
        """As :meth:`BitsPolicy.check_rank_state`: each row needs a bit-width, and each row sent a sum of ranges."""
        found = typed.validated(state, dict[str, ChannelState], f"{where}: policies")
        if found.keys() != {facts.name for facts in self.all_facts}:
            raise HpcgnnError(f"{where}: policies: the exchanges are not those of this model")
        known = torch.tensor(MESSAGE_BITS, dtype=torch.uint8)
        for facts in self.all_facts:
            kept, exchange = found[facts.name], facts.exchange
            rows = [(int(counts.sum()),) for counts in (exchange.send_counts, exchange.receive_counts)]
            shapes = [tuple(each.shape) for each in (kept.sent, kept.received, kept.squares)]
            are_bits = all(
                bits.dtype == torch.uint8 and bool(torch.isin(bits, known).all()) for bits in (kept.sent, kept.received)
            )
            if shapes != [*rows, rows[0]] or not are_bits or kept.squares.dtype != torch.float32:
                raise HpcgnnError(f"{where}: policies: the bit-widths and ranges of {facts.name} do not match its rows")

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Continue from the states; without ranges of these very rows, the next epoch uses 8 bits and measures them."""
        if rank_state is None or {facts.name for facts in self.all_facts} != rank_state.keys():
            return
        self.due, self.costs = state["due"], None if self._own.refit_links else state["costs"]
        for facts, ranges in zip(self.all_facts, self._ranges, strict=True):
            kept = rank_state[facts.name]
            facts.exchange.row_bits = RowBits(index_array(kept["sent"]), index_array(kept["received"]))
            ranges.squares = kept["squares"].to(ranges.squares.device)
            ranges.messages, ranges.width = kept["messages"], kept["width"]
