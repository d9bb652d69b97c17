"""Fixtures of tests for a GPU. On a machine without one, the same tests run on the stand-in, so that each has run before it
runs on a GPU.
"""

from __future__ import annotations

import pytest
import torch

KINDS = [pytest.param("cuda", marks=pytest.mark.gpu)]
if not torch.cuda.is_available():
    KINDS.append(pytest.param("standin"))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of device for :func:`gpu.programs.device_of_kind`."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return request.param
