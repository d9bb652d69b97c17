"""Eq. 12's assignment by HiGHS: the optimum, for problems that a rank can hold whole."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import numpy as np
from scipy import optimize, sparse

from hpcgnn.comm import World
from hpcgnn.policy.problem import CHOICES, Assignment, NoAssignment, Problem, Scales, evaluated, left_over


def exact(world: World, problem: Problem, by: Scales) -> Assignment:
    """The optimum, by HiGHS on rank 0; every rank holds the whole problem, O(all groups). Collective.

    Raises:
        NoAssignment: on every rank, where HiGHS finds none.
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
    found: np.ndarray | str = ""
    if world.rank == 0:  # alone: there may be several optima, and hosts with different solvers
        try:
            found = _solve(sender, receiver.astype(np.int64), beta, seconds_per_bit, total_fixed, by)
        except ValueError as error:
            found = str(error)
    index = world.broadcast(found, what="an assignment of bits")
    if isinstance(index, str):
        raise NoAssignment(index)
    bits = np.array(CHOICES)[index]
    first = int(counts[: world.rank].sum())
    return evaluated(world, groups, bits[first : first + groups.beta.size], fixed, by, bound=None)


def _solve(
    sender: np.ndarray,
    receiver: np.ndarray,
    beta: np.ndarray,
    seconds_per_bit: np.ndarray,
    fixed: np.ndarray,
    by: Scales,
) -> np.ndarray:
    """(groups,) indices into CHOICES: binaries x[g, b], one of each group's is 1, and Z.

    Seconds are scaled like the objective: the solver's tolerances are absolute, and a bit may cost a nanosecond.
    """
    num_groups, num_ranks, choices = beta.size, fixed.size // 2, np.array(CHOICES)
    variances = by.variance * left_over(beta[:, None], choices)
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
            options={"mip_rel_gap": 0},
        )
    if found.x is None:
        raise ValueError(f"HiGHS found no assignment: {found.message}")
    return found.x[:-1].reshape(num_groups, choices.size).argmax(1)


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """HiGHS prints lines of its debugging on stdout, in the middle of what may be a command's JSON."""
    sys.stdout.flush()
    own, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)
        os.close(nowhere)
