"""The thread that lets MPI move messages: it calls a test by itself, and never after MPI was taken back."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
import time

import pytest

from hpcgnn.world.buffer import Pending
from hpcgnn.world.job import _SLICE_NANOSECONDS, Progress


def _until(condition) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(1e-3)
    return bool(condition())


def test_it_tests_until_the_end_but_not_once_taken_over():
    progress, other, calls, turns = Progress(), Progress(), [], []
    for _ in range(3):  # by itself, until the test says that it is the last
        progress.watch(lambda: turns.append(1) or len(turns) % 5 == 0)
        assert _until(lambda: progress._test is None)
    assert len(turns) == 15
    progress.take_over()
    other.watch(lambda: turns.append(1))
    for _ in range(20):
        progress.watch(lambda: calls.append(time.sleep(2e-3)))  # as a call of MPI that takes some time
        assert _until(lambda: calls)
        progress.take_over()
        tested, turn = len(calls), len(turns)
        assert _until(lambda: len(turns) > turn + 9)  # noqa: B023 - in which a thread that went on would test as well
        assert len(calls) == tested
        calls.clear()
    other.take_over()


class _Failing:
    """A request that fails and then, as in MPICH, becomes a null request, whose next test reports completion."""

    def __init__(self) -> None:
        self.failed = False

    def Test(self) -> bool:
        if self.failed:
            return True
        self.failed = True
        raise RuntimeError("broken network")


def test_what_it_finds_broken_is_broken_for_whoever_waits():
    progress, pending = Progress(), Pending(_Failing(), "rows", (), time.perf_counter())
    progress.watch(pending.test)
    assert _until(lambda: pending.error is not None)
    progress.take_over()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken network"):
            pending.test()


@pytest.mark.parametrize("number", [{"x86_64": 315, "aarch64": 275}[platform.machine()]])
def test_the_thread_runs_soon_after_it_wakes(number):
    """Its time slices are short, from Linux 6.12 on, while its share of the core stays the same."""
    progress, found = Progress(), []

    def test() -> bool:
        attributes = ctypes.create_string_buffer(48)
        assert ctypes.CDLL(None).syscall(number, 0, attributes, 48, 0) == 0  # sched_getattr
        found.append(struct.unpack("IIQiIQQQ", attributes.raw))
        return True

    progress.watch(test)
    assert _until(lambda: found)
    progress.take_over()
    _, policy, _, nice, _, slice_nanoseconds, _, _ = found[0]
    assert (policy, nice) == (0, os.getpriority(os.PRIO_PROCESS, 0))
    if tuple(map(int, platform.release().split(".")[:2])) >= (6, 12):
        assert slice_nanoseconds == _SLICE_NANOSECONDS


def test_what_is_watched_while_another_test_ends_is_not_forgotten():
    progress, entered, tested = Progress(), threading.Event(), threading.Event()

    def slow() -> bool:
        entered.set()
        # No length lets the test fail. Without a lock, the next test is forgotten if it comes meanwhile.
        time.sleep(0.05)
        return True

    progress.watch(slow)
    assert entered.wait(10)
    progress.watch(lambda: tested.set() or True)
    assert tested.wait(10)
