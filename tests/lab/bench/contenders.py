"""The matrix on which contenders are compared, and checks of their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hpcgnn.kernels import Csr
from hpcgnn.lab.bench.problem import Problem, Special

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


def assert_aggregated(contender: Any, direction: str, found: torch.Tensor) -> None:
    """Check the result of an aggregation with :func:`matrix`, computed here from the edges."""
    problem = Problem(matrix(), WIDTH)
    csr, _ = problem.operand(direction)
    x = problem.x if direction == "forward" else problem.dz
    named = x[csr.indices.long()]
    if contender.name == "ceiling.gather":
        assert float(found.double().sum()) == pytest.approx(float(named.double().sum()), abs=1e-2)
    elif contender.name == "ceiling.select":
        assert torch.equal(found, named)
    elif not contender.name.startswith("ceiling"):
        source, target = problem.edge_index if direction == "forward" else problem.edge_index.flip(0)
        weight = problem.weight[:, None] if contender.name == "ours.weighted" else 1
        wanted = torch.zeros(NODES, WIDTH).index_add_(0, target, x[source] * weight)
        tolerance = 3 * (contender.tolerance or 1e-4)
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))
