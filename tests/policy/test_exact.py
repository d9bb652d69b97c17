"""The exact solver of AdaQP's Eq. 12, apart from its answers, which are compared in test_assignment.py."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hpcgnn.policy.exact import _solve
from hpcgnn.policy.problem import Scales


def test_what_is_written_after_a_solution_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is hidden only while HiGHS runs, and standard error never."""
    sender, receiver = np.array([0, 1]), np.array([1, 0])
    _solve(sender, receiver, np.ones(2), np.ones(2), np.zeros(4), Scales(1, 1))
    os.write(1, b"a result\n")
    os.write(2, b"a warning\n")
    assert capfd.readouterr() == ("a result\n", "a warning\n")
