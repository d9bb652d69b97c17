"""The proxy through which tests of kernels run on a GPU gives the same results as the kernels behind it."""

from __future__ import annotations

import pytest
import torch
from gpu import programs


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests of kernels themselves go through it there")
def test_it_gives_what_kernels_give(ranks):
    (pairs,) = ranks(1).run(programs.by_proxy)
    for found, wanted in pairs:
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    *_, counts = pairs[-1][0]
    assert counts.tolist() == [1, 1]
