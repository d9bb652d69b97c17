"""If there is a GPU, the kernels in Triton run on it, although the tests' tensors are on the host (under_test.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gpu.proxy import on_device
from under_test import TRITON_SEGMENT

from hpcgnn import kernels
from hpcgnn.kernels.triton import tasks

if torch.cuda.is_available():
    kernels.register(on_device(torch.device("cuda", 0), "triton"))


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with few entries are hubs of the kernels in Triton."""
    monkeypatch.setattr(tasks, "SEGMENT", TRITON_SEGMENT)


@pytest.fixture
def restored_threads() -> Iterator[None]:
    """Torch has as many threads as before after the test."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
