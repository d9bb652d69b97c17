"""AdaQP's Eq. 12: assignments are near the best ones, within their stated bound, and follow the network."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from requires import EVERYTHING
from scipy import optimize, sparse

from hpcgnn.policy.assignment import CHOICES, Aim, Assignment, NoAssignment, Problem, quantization_variance, solve
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

PAPER = Aim(0.5)


def draw(ranks: int, each: int, seed: int, *, kind: str = "lognormal", fixed: float = 0.0) -> Problem:
    """A random problem: ``each`` groups on every rank, for random other ranks over links of two speeds."""
    random, count = np.random.default_rng(seed), ranks * each
    sender = np.repeat(np.arange(ranks), each)
    receiver = (sender + random.integers(1, max(ranks, 2), count)) % ranks
    beta = {"lognormal": random.lognormal(0, 2, count), "equal": np.ones(count), "zero": np.zeros(count)}[kind]
    seconds = random.uniform(0.5, 1.5, count) * np.where(receiver % 2, 1.0, 3.0)
    return Problem(sender, receiver, beta, seconds, np.full(count, 8.0), random.uniform(0, fixed, 2 * ranks))


def loads_of(problem: Problem, bits: np.ndarray) -> np.ndarray:
    """(2P,) seconds of sending and of receiving of each rank."""
    ranks, seconds = problem.fixed.size // 2, problem.seconds_per_bit * bits
    each = [np.bincount(who, seconds, ranks) for who in (problem.sender, problem.receiver)]
    return np.concatenate(each) + problem.fixed


def objective_of(problem: Problem, bits: np.ndarray, weight: float) -> float:
    """Eq. 12 with the paper's scales."""
    (least, z_0), (most, z), (mine, longest) = (
        (quantization_variance(problem.beta, np.asarray(each)).sum(), loads_of(problem, each).max())
        for each in (np.full(problem.beta.size, 8), np.full(problem.beta.size, 2), bits)
    )
    z, z_0 = z_0, z
    variance = weight * mine / (most - least) if most > least else 0.0
    return variance + ((1 - weight) * (longest - z_0) / (z - z_0) if z > z_0 else 0.0)


def optimum(problem: Problem, weight: float) -> float:
    """The least objective, by HiGHS."""
    groups, ranks, choices = problem.beta.size, problem.fixed.size // 2, np.array(CHOICES)
    cost = [objective_of(problem, np.full(groups, bits), weight) for bits in choices]
    if not groups or max(cost) == 0:
        return min(cost, default=0.0)
    slim, wide = (loads_of(problem, np.full(groups, bits)).max() for bits in (2, 8))
    variances = quantization_variance(problem.beta[:, None], choices)
    span = (variances[:, 0] - variances[:, -1]).sum()
    unit = (1 - weight) / (wide - slim) if wide > slim else 0.0
    rows, entries = np.arange(groups).repeat(3), np.arange(3 * groups)
    seconds = unit * (problem.seconds_per_bit[:, None] * choices).ravel()
    one_each = sparse.csr_array((np.ones(3 * groups), (rows, entries)), (groups, 3 * groups + 1))
    z = np.arange(2 * ranks)
    values = np.concatenate([seconds, seconds, -np.ones(z.size)])
    places = (
        np.concatenate([problem.sender[rows], ranks + problem.receiver[rows], z]),
        np.concatenate([entries, entries, np.full(z.size, 3 * groups)]),
    )
    found = optimize.milp(
        np.append((weight / span if span > 0 else 0.0) * variances.ravel(), 1.0),
        integrality=np.append(np.ones(3 * groups), 0),
        bounds=optimize.Bounds(np.append(np.zeros(3 * groups), -np.inf), np.append(np.ones(3 * groups), np.inf)),
        constraints=[
            optimize.LinearConstraint(one_each, 1, 1),
            optimize.LinearConstraint(
                sparse.csr_array((values, places), (z.size, 3 * groups + 1)), -np.inf, unit * (slim - problem.fixed)
            ),
        ],
        options={"mip_rel_gap": 0.0},
    )
    return float(found.fun)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), ranks=st.integers(1, 4), each=st.integers(0, 3), weight=st.floats(0, 1))
def test_the_bound_is_below_the_optimum_and_the_objective_is_true(
    seed: int, ranks: int, each: int, weight: float
) -> None:
    problem = draw(ranks, each if ranks > 1 else 0, seed, fixed=5)
    (found,) = solve([problem], Aim(weight))
    best = optimum(problem, weight)
    assert found.bound <= best + 1e-6
    assert best <= found.objective + 1e-6
    assert found.objective == pytest.approx(objective_of(problem, found.bits, weight), abs=1e-12)
    assert found.seconds == pytest.approx(loads_of(problem, found.bits).max())


def test_few_groups_are_near_the_optimum() -> None:
    """With six groups of a rank, no step fits exactly."""
    excess = [
        solve([problem], PAPER)[0].objective / optimum(problem, 0.5)
        for problem in (draw(3, 6, seed, fixed=5) for seed in range(20))
    ]
    assert min(excess) > 1 - 1e-6
    assert np.mean(excess) < 1.02
    assert max(excess) < 1.08


GAPS = {25: 0.05, 100: 0.02, 1000: 0.01}
MANY = [*itertools.product(GAPS, ["lognormal", "equal", "zero"], [0.0, 0.1, 0.5, 0.9, 1.0])]


@pytest.mark.parametrize(("each", "kind", "weight"), MANY if EVERYTHING else MANY[::4])
def test_many_groups_are_near_their_bound(each: int, kind: str, weight: float) -> None:
    problems = [draw(4, each, seed, kind=kind, fixed=20) for seed in (3, 4)]
    for problem, answer in zip(problems, solve(problems, Aim(weight)), strict=True):
        assert 0 <= answer.gap < GAPS[each]
        assert set(answer.bits) <= set(CHOICES)
        assert answer.seconds == pytest.approx(loads_of(problem, answer.bits).max())
        assert answer.variance == pytest.approx(quantization_variance(problem.beta, answer.bits).sum())


def test_ranges_that_are_no_numbers_are_no_assignment() -> None:
    for wrong in (np.nan, np.inf):
        problem = draw(3, 40, 0)
        problem.beta[7] = wrong
        with pytest.raises(NoAssignment, match="not finite numbers"):
            solve([draw(3, 40, 1), problem], PAPER)


def test_ranks_that_hold_their_own_groups_find_what_one_finds_that_holds_all() -> None:
    """But for the seconds that are left over, which only one that holds all can give away."""
    problems = [draw(4, 200, seed, fixed=50) for seed in range(3)]

    def program(world: World) -> list[Assignment]:
        own = []
        for problem in problems:
            mine = problem.sender == world.rank
            names = ("sender", "receiver", "beta", "seconds_per_bit", "bits_now")
            own.append(Problem(*(getattr(problem, name)[mine] for name in names), problem.fixed))
        return solve(own, PAPER, world.allreduce)

    everyones = on_threads(4, program)
    for number, (problem, whole) in enumerate(zip(problems, solve(problems, PAPER), strict=True)):
        answers = [found[number] for found in everyones]
        assert len({(each.objective, each.bound, each.seconds) for each in answers}) == 1
        assert answers[0].bound == pytest.approx(whole.bound)
        assert whole.objective <= answers[0].objective < 1.03 * whole.bound
        bits = np.concatenate([each.bits for each in answers])
        assert answers[0].objective == pytest.approx(objective_of(problem, bits, 0.5))


# -- the network -------------------------------------------------------------------------------------------------------


def mean_bits(problem: Problem, aim: Aim) -> float:
    return float(solve([problem], aim)[0].bits.mean())


def timed(problem: Problem, factor: float) -> Problem:
    """The problem on a network whose bytes take ``factor`` times as long."""
    return replace(problem, seconds_per_bit=factor * problem.seconds_per_bit, fixed=factor * problem.fixed)


def test_a_slower_network_gets_fewer_bits() -> None:
    problem, epoch = draw(4, 100, 2, fixed=5), 1.0
    alone = epoch / loads_of(problem, problem.bits_now).max()  # a factor with which messages take the whole epoch
    bits = [mean_bits(timed(problem, alone * each), Aim(0.5, epoch)) for each in (1e-4, 1e-2, 1e-1, 1.0)]
    assert bits == sorted(bits, reverse=True)
    assert bits[0] > 7.9
    assert bits[-1] < 4.5  # ranks that are not the slowest have seconds to spare
    assert all(a > b for a, b in itertools.pairwise(bits))


def test_by_the_papers_rule_only_ratios_of_seconds_matter() -> None:
    problem = draw(4, 100, 2, fixed=5)
    assert mean_bits(problem, PAPER) == mean_bits(timed(problem, 1024.0), PAPER) < 6


def test_ten_thousand_groups_of_six_exchanges_take_less_than_two_seconds() -> None:
    problems = [draw(4, 2500, 7) for _ in range(6)]
    started = time.process_time()
    solve(problems, PAPER)
    assert time.process_time() - started < 2
