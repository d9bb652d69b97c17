"""The proxy through which tests of kernels run on a GPU gives the same results as the kernels behind it."""

from __future__ import annotations

import pytest
import torch
from gpu import programs


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests of kernels themselves go through it there")
def test_it_gives_what_kernels_give(device_ranks):
    (found, wanted) = device_ranks(1).run(programs.by_proxy)[0]
    assert all(map(torch.equal, found, wanted))
    assert wanted[-1].tolist() == [1, 1]
