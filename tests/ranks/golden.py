"""Run under mpirun: trains each configuration of tests/golden/runs.toml through the command line, and prints the results as
JSON.

usage: golden.py PARTS.h5 FOLDER

Beside the losses, the bytes and a digest of the weights of each run, it prints the numerics of this machine: a digest of a few
results of torch's own products and functions, whose last bits depend on the CPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import tomllib
from pathlib import Path

import torch

from hpcgnn.base.process import StopRequest
from hpcgnn.cli.main import cli

RUNS = Path(__file__).parents[1] / "golden" / "runs.toml"


def digest(tensors: list[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def numerics() -> str:
    """A digest of what training leaves to torch: products of its shapes, losses, norms, the optimiser, and functions."""
    torch.manual_seed(0)
    found = []
    for inner, outer in ((40, 64), (64, 64), (64, 4), (48, 32)):
        x, w = torch.randn(1500, inner), torch.randn(inner, outer)
        found += [x @ w, x.T @ (x @ w), (x @ w) @ w.T, torch.addmm(torch.randn(outer), x, w)]
    x = torch.randn(1500, 64).requires_grad_()
    norm = torch.nn.LayerNorm(64)
    scores = norm(x).relu() @ torch.randn(64, 4)
    torch.nn.functional.cross_entropy(scores[::3], torch.arange(500) % 4, reduction="sum").backward()
    found += [scores, *(one.grad for one in (x, norm.weight, norm.bias) if one.grad is not None)]
    optimiser = torch.optim.Adam([x], foreach=True)
    for _ in range(3):
        optimiser.step()
    x = x.detach()
    return digest(
        [*found, x, torch.log_softmax(x, 1), x.exp(), x.var(1), (x.abs() + 1).rsqrt(), x.double().exp(), x.mean(0)]
    )


def run(flags: list[str], parts: str, out: Path) -> dict[str, object]:
    """Make the same call as the command line."""
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main(["train", parts, "--out", str(out), *flags, "--quiet"], standalone_mode=False, obj=StopRequest())
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    model = torch.load(out / "checkpoints" / "last.pt", weights_only=True)["model"]
    return {
        "losses": [record["loss"] for record in records],
        "bytes_sent": [record["bytes_sent"] for record in records],
        "test_metric": records[-1]["test_metric"],
        "weights": digest([model[name] for name in sorted(model)]),
    }


def main() -> None:
    parts, folder = sys.argv[1], Path(sys.argv[2])
    runs = tomllib.loads(RUNS.read_text())
    for name, path in (("clock", "decisions.jsonl"), ("links", "link_costs.json")):
        assert (RUNS.parent / path).exists(), name
    places = {"GOLDEN": str(RUNS.parent)}
    found = {
        name: run([flag.format(**places) for flag in runs["common"] + flags], parts, folder / name)
        for name, flags in runs["runs"].items()
    }
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps({"numerics": numerics(), "runs": found}))


main()
