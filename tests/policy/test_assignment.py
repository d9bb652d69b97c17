"""AdaQP's Eq. 12: exact on small cases, and within its stated bound on large ones, which are solved by prices."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from hpcgnn.policy import assignment
from hpcgnn.policy.assignment import (
    CHOICES,
    Assignment,
    NoAssignment,
    Problem,
    Scales,
    _solve,
    assign,
    by_prices,
    exact,
    scales,
)
from hpcgnn.world.thread_world import ThreadWorld, on_threads

Program = Callable[[ThreadWorld, Problem], Any]


def draw(ranks: int, each: int, seed: int, *, kind: str = "lognormal") -> list[Problem]:
    """Random problems: ``each`` groups on every rank, for random other ranks over links of two speeds."""
    random = np.random.default_rng(seed)
    found = []
    for rank in range(ranks):
        receiver = (rank + random.integers(1, ranks, each)) % ranks
        beta = {"lognormal": random.lognormal(0, 2, each), "equal": np.ones(each), "zero": np.zeros(each)}[kind]
        seconds = random.uniform(0.5, 1.5, each) * np.where(receiver % 2, 1.0, 3.0)
        found.append(Problem(receiver, beta, seconds, np.zeros(2 * ranks)))
    return found


def brute_force(everyones: list[Problem], fixed: np.ndarray, by: Scales) -> float:
    """The smallest objective of all assignments."""
    ranks = len(everyones)
    sender = np.repeat(np.arange(ranks), [one.beta.size for one in everyones])
    receiver, beta, seconds_per_bit = (
        np.concatenate([getattr(one, name) for one in everyones]) for name in ("receiver", "beta", "seconds_per_bit")
    )
    best = np.inf
    for bits in itertools.product(CHOICES, repeat=beta.size):
        seconds = seconds_per_bit * bits
        loads = np.concatenate([np.bincount(who, seconds, ranks) for who in (sender, receiver)]) + fixed
        variance = (beta / (2.0 ** np.array(bits) - 1) ** 2).sum()
        best = min(best, by.variance * variance + by.seconds * (loads.max() - by.least_seconds))
    return best


HIGHS_GAP = 1e-6  # absolute tolerance of HiGHS for the objective, which is of the order of 1


def on_ranks(everyones: list[Problem], program: Program, fixed: np.ndarray | None = None) -> list[Any]:
    """The results of ``program(world, problem)`` with the groups of each rank. fixed: (P, 2P) other seconds; none by default."""
    problems = everyones if fixed is None else list(map(replace_fixed, everyones, fixed))
    return on_threads(len(everyones), lambda world: program(world, problems[world.rank]))


def replace_fixed(problem: Problem, fixed: np.ndarray) -> Problem:
    return replace(problem, fixed=fixed)


def priced(world: ThreadWorld, problem: Problem, by: Scales | None = None) -> Assignment:
    by = scales(world, problem, 0.5) if by is None else by
    return by_prices(world, [(problem, by)])[0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 3), each=st.integers(0, 2), weight=st.floats(0, 1))
def test_small_problems_are_solved_as_by_brute_force(seed: int, ranks: int, each: int, weight: float) -> None:
    everyones = draw(ranks, each, seed)
    fixed = np.random.default_rng(seed).uniform(0, 5, (ranks, 2 * ranks))

    def program(world: ThreadWorld, problem: Problem) -> tuple[Scales, Assignment]:
        by = scales(world, problem, weight)
        return by, assign(world, [problem], weight)[0]

    found = on_ranks(everyones, program, fixed)
    wanted = brute_force(everyones, fixed.sum(0), found[0][0])
    for _, answer in found:
        assert answer.objective == pytest.approx(wanted, rel=1e-9, abs=HIGHS_GAP)
        assert answer.gap == 0


@pytest.mark.parametrize("kind", ["lognormal", "equal", "zero"])
@pytest.mark.parametrize("weight", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("each", [25, 100, 300])
def test_large_problems_are_within_one_percent_of_their_bound(each: int, kind: str, weight: float) -> None:
    ranks = 4
    everyones = draw(ranks, each, 3, kind=kind)
    answers = on_ranks(everyones, lambda world, problem: assign(world, [problem], weight)[0])
    assert len({(answer.objective, answer.bound) for answer in answers}) == 1
    assert 0 <= answers[0].gap < 0.01
    loads = np.zeros(2 * ranks)
    for rank, (groups, answer) in enumerate(zip(everyones, answers, strict=True)):
        assert set(answer.bits) <= set(CHOICES)
        loads[rank] += (groups.seconds_per_bit * answer.bits).sum()
        loads[ranks:] += np.bincount(groups.receiver, groups.seconds_per_bit * answer.bits, ranks)
    assert answers[0].seconds == pytest.approx(loads.max())


def test_the_solver_prints_nothing_on_stdout(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HiGHS sometimes prints there from native code."""
    milp = optimize.milp

    def noisy(*args: Any, **kwargs: Any) -> Any:
        os.write(1, b"debugging\n")
        return milp(*args, **kwargs)

    monkeypatch.setattr(optimize, "milp", noisy)
    groups, fixed = draw(3, 4, 0)[0], np.zeros(6)
    found, _ = _solve(np.zeros(4, np.int64), groups.receiver, groups.beta, groups.seconds_per_bit, fixed, Scales(1, 1))
    assert found.size == 4
    assert capfd.readouterr().out == ""


def test_what_is_written_after_a_solution_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is hidden only while HiGHS runs, and standard error never."""
    sender, receiver = np.array([0, 1]), np.array([1, 0])
    _solve(sender, receiver, np.ones(2), np.ones(2), np.zeros(4), Scales(1, 1))
    os.write(1, b"a result\n")
    os.write(2, b"a warning\n")
    assert capfd.readouterr() == ("a result\n", "a warning\n")


def refused(world: ThreadWorld, problem: Problem) -> str:
    with pytest.raises(NoAssignment) as raised:
        assign(world, [problem], 0.5)
    return str(raised.value)


def test_what_cannot_be_solved_is_no_assignment_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def infeasible(*args: Any) -> Any:
        raise ValueError("HiGHS did not find an assignment: infeasible")

    monkeypatch.setattr(assignment, "_solve", infeasible)
    assert all("HiGHS did not find an assignment" in sentence for sentence in on_ranks(draw(3, 4, 0), refused))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_ranges_that_are_no_numbers_on_one_rank_are_no_assignment(wrong: float) -> None:
    everyones = draw(3, 40, 0)
    everyones[2].beta[7] = wrong
    assert all("not finite numbers" in sentence for sentence in on_ranks(everyones, refused))


@pytest.mark.slow
def test_bounds_are_true() -> None:
    """Both solve the same problem, by prices and by HiGHS."""

    def program(world: ThreadWorld, problem: Problem) -> tuple[Assignment, Assignment]:
        by = scales(world, problem, 0.5)
        return priced(world, problem, by), exact(world, problem, by)

    for seed in range(10):
        by_prices_alone, best = on_ranks(draw(3, 12, seed), program)[0]
        assert by_prices_alone.bound <= best.objective * (1 + 1e-9)
        assert best.objective <= by_prices_alone.objective * (1 + 1e-9)


def test_the_best_assignment_of_all_rounds_is_near_the_bound() -> None:
    ranks, groups, rng = 4, 300, np.random.default_rng(3)
    everyones = []
    for rank in range(ranks):
        receiver = (rank + rng.integers(1, ranks, groups)) % ranks
        costs = rng.lognormal(0, 2, groups), rng.uniform(0.5, 3, groups)
        everyones.append(Problem(receiver, *costs, np.zeros(2 * ranks)))
    for found in on_ranks(everyones, priced, np.full((ranks, 2 * ranks), 50.0)):
        assert 0 <= found.gap < 0.01


def test_more_weight_on_variance_never_leaves_more_of_it() -> None:
    everyones, found = draw(4, 100, 5), []
    for weight in (0.1, 0.3, 0.5, 0.7, 0.9):
        found.append(on_ranks(everyones, lambda world, problem, by=weight: assign(world, [problem], by)[0])[0])
    assert all(a.variance >= b.variance * 0.99 for a, b in itertools.pairwise(found))
    assert all(a.seconds <= b.seconds * 1.01 for a, b in itertools.pairwise(found))


def test_ten_thousand_groups_of_six_exchanges_take_less_than_two_seconds() -> None:
    def program(world: ThreadWorld, problem: Problem) -> float:
        started = time.process_time()
        assign(world, [problem] * 6, 0.5)
        return time.process_time() - started  # of all threads, as on one core

    assert max(on_ranks(draw(4, 2500, 7), program)) < 2
