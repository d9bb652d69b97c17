"""Triton's kernels run on a GPU if there is one, although the tests' tensors are on the host (under_test.py), and in several
programs for a few rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gpu.proxy import on_device
from under_test import BACKENDS, TRITON_SEGMENT

from hpcgnn import kernels
from hpcgnn.kernels.triton import int8, launch, tasks

if torch.cuda.is_available():
    kernels.register(on_device(torch.device("cuda", 0), "triton"))


@pytest.fixture(scope="module", autouse=True)
def several_programs() -> Iterator[None]:
    """Few rows and entries are as many for Triton's interpreter as large matrices are for a GPU: rows are hubs, matrices have
    several tiles, and segments of a gradient are computed one by one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "SEGMENT", TRITON_SEGMENT)
        patch.setattr(launch, "_INTERPRETED", 1 << 14)
        patch.setattr(int8, "_INTERPRETED", 1)
        patch.setattr(int8, "_WORKSPACE", 1)
        yield


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each backend, without warnings about huge values that overflow."""
    with np.errstate(all="ignore"):
        yield request.param
