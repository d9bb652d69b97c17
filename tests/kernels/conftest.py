"""Triton's kernels run on a GPU if there is one, although the tests' tensors are on the host (under_test.py), and in several
programs for a few rows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gpu.proxy import on_device
from under_test import BACKENDS, TRITON_SEGMENT

from hpcgnn import kernels

if torch.cuda.is_available():
    kernels.register(on_device(torch.device("cuda", 0), "triton"))


@pytest.fixture(scope="module", autouse=True)
def several_programs() -> Iterator[None]:
    """Few rows and entries are as many for Triton's interpreter as large matrices are for a GPU: rows are hubs, matrices have
    several tiles, and segments of a gradient are computed one by one.
    """
    changed = {
        "tasks.SEGMENT": TRITON_SEGMENT,
        "launch._INTERPRETED": 1 << 14,
        "int8._INTERPRETED": 1,
        "int8._WORKSPACE": 1,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changed.items() if importlib.util.find_spec("triton") else ():
            patch.setattr(f"hpcgnn.kernels.triton.{name}", value)
        yield


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each backend, without warnings about huge values that overflow."""
    with np.errstate(all="ignore"):
        yield request.param
