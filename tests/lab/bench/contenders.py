"""The matrix on which contenders are compared, and their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hpcgnn.kernels import Csr
from hpcgnn.lab.bench.problem import Special

NODES, WIDTH, HEADS = 60, 32, 4


def matrix() -> Csr:
    """The matrix of a multigraph with rows of every length."""
    rng = np.random.default_rng(0)
    rows = np.sort(np.concatenate((rng.integers(0, NODES - 5, 400), np.full(100, 3))))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=NODES))))
    return Csr(indptr, rng.integers(0, NODES, 500).astype(np.int32), NODES)


def results_of(contender: Any, problem: Any, direction: str) -> tuple[torch.Tensor, ...]:
    """The results of a call of a contender."""
    call = contender.prepare(problem, direction)
    result = call.finish(call()) if isinstance(call, Special) and call.finish else call()
    return result if isinstance(result, tuple) else (result,)
