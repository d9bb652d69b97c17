"""Trainings: their files, trainers by the settings of the command, and commands in the background."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from command_line import told
from matrix import seed
from rank_pool import Completed, RankPool, ranks_of
from requires import EVERYTHING
from virtual_clusters import LONGEST_SECONDS, wait_until

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.exchange import Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.launch import mpiexec
from hpcgnn.train.run_config import RunConfig

HPCGNN = ["-m", "hpcgnn"]


def by_turns(values: Iterable[Any]) -> list[Any]:
    """A third of the values, which changes with the commit; all of them in the nightly run."""
    return [*values] if EVERYTHING else [*values][seed() % 3 :: 3]


def lines(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a file of a run that has ended, all of which are complete."""
    text = (run / name).read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def lines_so_far(run: Path) -> list[dict[str, Any]]:
    """The complete lines of ``metrics.jsonl`` of a run that goes on, or was killed."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in lines(run)]


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def weights(run: Path, name: str = "last.pt") -> dict[str, bytes]:
    content = torch.load(run / "checkpoints" / name, weights_only=True)
    return {key: value.numpy().tobytes() for key, value in content["model"].items()}


def errors_in(result: Completed | subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("hpcgnn: error")]


def refusal(result: Completed) -> str:
    """The one sentence with which all ranks end."""
    assert set(result.codes) == {1}, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    (error,) = errors_in(result)
    return error


def predicted(pool: RankPool, graph: Path, run: Path, *flags: object, dataset: str = "scores") -> np.ndarray:
    out = run.with_suffix(".predicted.h5")
    pool.command("predict", graph, run, "--out", out, "--force", *flags)
    with h5py.File(out) as file:
        return file[dataset][:]


def rows_of_pairs(parts: Path) -> list[int]:
    """The rows that each pair of ranks exchanges with the plan hybrid."""
    return [post + pre for _, _, post, pre in told("plan", parts)["pairs"]["hybrid"]]


def trainer_of(graph: LocalGraph, settings: dict[str, Any], **others: Any) -> hpcgnn.Trainer:
    """A trainer of these settings of ``hpcgnn train``, as a Python program makes one."""
    run = RunConfig.from_settings(settings)
    split = hpcgnn.split_links(graph, run.links) if run.task == "link" else None
    model = hpcgnn.build_model(
        run.model,
        split.train if split else graph,
        messages=Messages(graph.world, run.messages),
        seed=run.seed,
        keep_input_aggregation=run.cache_input_aggregation,
    )
    return hpcgnn.Trainer(model, split or graph, run.train, **{"stop": StopRequest()} | others)


def start(parts: Path, out: Path, *flags: object, ranks: int = 2) -> subprocess.Popen[str]:
    words = ["train", parts, "--out", out, *flags]
    return subprocess.Popen(
        [*mpiexec.command(ranks, 1), sys.executable, *HPCGNN, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # not a session: ranks that spin in another session can keep this process off the cores for a minute
    )


def wait_for_epoch(out: Path, epoch: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while len(lines_so_far(out)) < epoch:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "training never came this far"
        time.sleep(0.005)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the launcher and both ranks, and wait until the ranks have gone: only then does the system release their locks."""
    ranks = ranks_of(process.pid)
    assert sorted(ranks) == [0, 1]
    os.killpg(process.pid, signal.SIGKILL)  # the launcher, but not ranks that it has put into their own group
    for rank in ranks.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks.values()), "end of the killed ranks")
