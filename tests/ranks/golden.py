"""Run under mpirun: train each configuration of tests/golden/runs.toml through the command line; prints what came out as JSON.

usage: golden.py PARTS.h5 FOLDER

Beside each run's losses, bytes and a digest of its weights, the numerics of this machine are printed: a digest of a few
results of torch's own products and functions, whose last bits are up to the CPU.
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

from hpcgnn.cli.main import cli
from hpcgnn.stop import StopRequest

RUNS = Path(__file__).parents[1] / "golden" / "runs.toml"


def digest(tensors: list[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def numerics() -> str:
    """Of what training leaves to torch: small products, softmax, and the functions that it is made of."""
    torch.manual_seed(0)
    x, w = torch.randn(1500, 48), torch.randn(48, 32)
    products = [x @ w, x.T @ (x @ w), (x @ w) @ w.T]
    return digest([*products, torch.log_softmax(x, 1), x.exp(), x.var(1), (x.abs() + 1).rsqrt(), x.double().exp()])


def run(flags: list[str], parts: str, out: Path) -> dict[str, object]:
    """The same call as on the command line."""
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
