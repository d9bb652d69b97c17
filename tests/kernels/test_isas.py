"""``HPCGNN_ISA`` is obeyed: in a new process the kernels of that instruction set run, and give the same bits as the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hpcgnn.kernels.native import library

pytestmark = pytest.mark.slow  # a process for each instruction set

PROGRAM = """
import hashlib, json, torch
from hpcgnn import kernels
from hpcgnn.kernels import int8
from hpcgnn.kernels.native import library

torch.manual_seed(0)
lengths = torch.randint(0, 20, (60,))
lengths[7] = 10_000  # threads share this row
indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
csr = kernels.Csr(indptr, torch.randint(0, 50, (int(indptr[-1]),)), 50)
before, ran, results = library.last_isa(), set(), []
for width in (1, 19, 64):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.randn(50, width).to(dtype)
        weight = torch.randn(csr.num_entries, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        for reduce in ("sum", "mean"):
            results += [kernels.spmm(csr, x, w, reduce, backend="native") for w in (None, weight)]
            ran.add(library.last_isa())
    x, out = torch.randn(60, width), torch.randn(60, 30)
    b = int8.quantize_rows(torch.randn(50, width), key=3, backend="native")
    y, a = int8.product(x, torch.randn(30, width).T, key=1, weight_key=2, backend="native")
    results += [y, a.codes, a.scale, int8.weight_gradient(a, out, key=4, backend="native")[0]]
    results += [int8.sddmm(csr, a, b, op, backend="native") for op in ("dot", "add")]
    results += [kernels.spmm(csr, b.codes, scale=b.scale, backend="native")]
    ran.add(library.last_isa())
digest = hashlib.sha256(b"".join(result.numpy().tobytes() for result in results)).hexdigest()
print(json.dumps({"before": before, "ran": sorted(ran), "digest": digest}))
"""


def run(isa: str) -> dict[str, object]:
    env = os.environ | {"HPCGNN_ISA": isa}
    result = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, env=env)
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def default():
    return run("")


def test_the_best_one_runs_by_default(default):
    assert default["before"] == ""
    assert default["ran"] == [library.isas()[-1]]


@pytest.mark.parametrize("isa", library.isas())
def test_the_forced_one_runs_and_gives_the_same_bits(default, isa):
    assert run(isa) == default | {"ran": [isa]}
