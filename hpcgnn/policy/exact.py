"""Eq. 12's assignment by HiGHS, optimal or with a bound, for problems that fit into the memory of one rank."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcgnn.policy.problem import CHOICES, Assignment, NoAssignment, Problem, Scales, evaluated, quantization_variance
from hpcgnn.world import World


@dataclass(frozen=True)
class Effort:
    """The limits of HiGHS. gap: relative gap to the optimum. nodes: largest number of nodes of its tree; None: no limit.

    There is no limit in seconds, because the same ranges must give the same bit-widths.
    """

    gap: float = 0.0
    nodes: int | None = None


EXACT = Effort()


def exact(world: World, problem: Problem, by: Scales, effort: Effort = EXACT) -> Assignment:
    """The optimum, computed by HiGHS on rank 0. Every rank holds the whole problem, O(all groups) memory. Collective.

    With a limited ``effort``, the result is an assignment with HiGHS' bound.

    Raises:
        NoAssignment: on every rank, if HiGHS finds none.
    """
    groups, fixed = problem.groups, problem.fixed
    counts = world.allgather(np.array([groups.beta.size]))[:, 0]
    columns = np.stack([groups.receiver.astype(np.float64), groups.beta, groups.seconds_per_bit], axis=1)
    everyones = world.allgather(np.pad(columns, ((0, int(counts.max()) - counts[world.rank]), (0, 0))))
    sender = np.repeat(np.arange(world.size), counts)
    receiver, beta, seconds_per_bit = np.concatenate(
        [rows[:count] for rows, count in zip(everyones, counts, strict=True)]
    ).T
    total_fixed = world.allreduce(fixed)
    found: tuple[np.ndarray, float] | str = ""
    if world.rank == 0:  # alone: there may be several optima, and hosts with different solvers
        try:
            costs = beta, seconds_per_bit, total_fixed
            found = _solve(sender, receiver.astype(np.int64), *costs, by, effort)
        except ValueError as error:
            found = str(error)
    told = world.broadcast(found, what="an assignment of bits")
    if isinstance(told, str):
        raise NoAssignment(told)
    index, bound = told
    bits = np.array(CHOICES)[index]
    first = int(counts[: world.rank].sum())
    own = bits[first : first + groups.beta.size]
    return evaluated(world, groups, own, fixed, by, bound=None if effort is EXACT else bound)


def _solve(
    sender: np.ndarray,
    receiver: np.ndarray,
    beta: np.ndarray,
    seconds_per_bit: np.ndarray,
    fixed: np.ndarray,
    by: Scales,
    effort: Effort = EXACT,
) -> tuple[np.ndarray, float]:
    """(groups,) indices into CHOICES, and a bound of the objective. The variables are binaries x[g, b] and Z.

    Seconds are scaled like the objective, because the solver's tolerances are absolute and a bit may cost a nanosecond.
    """
    from scipy import optimize, sparse  # here, as only rank 0 solves, and the modules take tens of megabytes

    num_groups, num_ranks, choices = beta.size, fixed.size // 2, np.array(CHOICES)
    variances = by.variance * quantization_variance(beta[:, None], choices)
    cost = np.append(variances.ravel(), 1.0)
    rows = np.arange(num_groups).repeat(choices.size)
    entries = np.arange(num_groups * choices.size)
    one_each = sparse.csr_array((np.ones(entries.size), (rows, entries)), (num_groups, cost.size))
    seconds = by.seconds * (seconds_per_bit[:, None] * choices).ravel()
    fixed = by.seconds * (fixed - by.least_seconds)
    z = np.arange(2 * num_ranks)
    within = sparse.csr_array(
        (
            np.concatenate([seconds, seconds, -np.ones(z.size)]),
            (
                np.concatenate([sender[rows], num_ranks + receiver[rows], z]),
                np.concatenate([entries, entries, np.full(z.size, cost.size - 1)]),
            ),
        ),
        (z.size, cost.size),
    )
    with _quiet_stdout():
        found = optimize.milp(
            cost,
            integrality=np.append(np.ones(entries.size), 0),
            bounds=optimize.Bounds(
                np.append(np.zeros(entries.size), -np.inf), np.append(np.ones(entries.size), np.inf)
            ),
            constraints=[optimize.LinearConstraint(one_each, 1, 1), optimize.LinearConstraint(within, -np.inf, -fixed)],
            options={"mip_rel_gap": effort.gap} | ({} if effort.nodes is None else {"node_limit": effort.nodes}),
        )
    if found.x is None:
        raise ValueError(f"HiGHS did not find an assignment: {found.message}")
    bound = found.fun if found.mip_dual_bound is None else found.mip_dual_bound  # None where there is no integer at all
    return found.x[:-1].reshape(num_groups, choices.size).argmax(1), float(bound)


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Hide the debugging output of HiGHS on stdout, which would be in the middle of a command's JSON."""
    sys.stdout.flush()
    own, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)
        os.close(nowhere)
