"""The verdicts of the soak: deliberate leaks must be detected."""

from __future__ import annotations

import numpy as np
import pytest

from campaign.section import FAILED, RIGHT
from campaign.soak import growth, jobs
from campaign.soak.counts import Count
from campaign.soak.watch import Sample, Watched

EPOCHS = np.arange(10, 1001, 10)
MIB = 2**20


def memory(leak, noise=64 * 1024, warm_up=30 * MIB):
    """The samples of a rank with 200 MiB that takes more memory in the first epochs, and then leaks some bytes in each epoch."""
    rng = np.random.default_rng(0)
    return 200 * MIB + np.minimum(EPOCHS / 100, 1) * warm_up + leak * EPOCHS + rng.normal(0, noise, EPOCHS.size)


@pytest.mark.parametrize(("leak", "is_seen"), [(0, False), (100, False), (4096, True), (64 * 1024, True)])
def test_memory_that_grows_is_seen_behind_the_warm_up(leak, is_seen):
    """100 bytes for each epoch are 0.1 MB in 1,000 epochs, which is less than 1 % of the rank's memory."""
    assert bool(growth.slope(EPOCHS, memory(leak)).problem(0.01)) == is_seen


def test_the_interval_is_of_the_slope():
    slope = growth.slope(EPOCHS, memory(4096))
    low, high = slope.interval
    assert low < 4096 < high


def test_too_few_samples_are_no_proof():
    with pytest.raises(ValueError, match="too few"):
        growth.slope([1, 2, 3, 4], [5, 5, 5, 5])


@pytest.mark.parametrize(
    ("counts", "is_seen"),
    [([1, 5, *[9] * 40], False), ([9, 10] * 20, False), ([*range(40)], True), ([*[9] * 20, *[10] * 20], True)],
)
def test_counts_that_rise_are_seen(counts, is_seen):
    assert bool(growth.rises(counts)) == is_seen


def soaked(tmp_path, *, files=0, communicators=0, under_way=0, leak=0):
    """A job of one rank whose counts grow in every epoch, and which has requests under way at the end."""
    job = jobs.Job(tmp_path, 1, [], lambda: 0, 10, 40, 0.01, 1.0)
    samples = [Sample(int(e), int(m), 20 + files * int(e), 4) for e, m in zip(EPOCHS, memory(leak), strict=True)]
    counted = [Count(4 * int(e), 1, 3 + communicators * int(e), 0, 0, 0, 10 * MIB + leak * int(e)) for e in EPOCHS]
    counted.append(Count(4 * 1000, under_way, 3, 0, 0, 0, 0))
    return jobs.Soaked(job, Watched({1: samples}, set(), 1000), {1: counted}, "", [])


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({}, set()),
        ({"files": 1}, {"open files"}),
        ({"communicators": 1}, {"MPI: communicators"}),
        ({"under_way": 1}, {"MPI: requests at the end"}),
        ({"leak": 16384}, {"memory of its own", "bytes given out by malloc"}),
    ],
)
def test_each_leak_fails_where_it_is(tmp_path, wrong, where):
    verdicts = list(jobs.verdicts(soaked(tmp_path, **wrong)))
    assert {name for name, end, _ in verdicts if end == FAILED} == where
    assert {end for name, end, _ in verdicts if name not in where} == {RIGHT}


def test_a_job_that_fails_is_no_soak(tmp_path):
    (verdict,) = jobs.verdicts(jobs.Soaked(soaked(tmp_path).job, Watched(), {}, "exit code 1", []))
    assert verdict[1] == FAILED
