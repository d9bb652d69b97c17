"""Run folders and studies with numbers that tests look for, made without a training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tomli_w

from hpcgnn.lab.study import records, specification
from hpcgnn.train.rank_report import BREAKDOWN, COUNTS, Ranks, first_ranks
from hpcgnn.train.run_config import RunConfig

EPOCHS = 12


def record(epoch: int, **changes: Any) -> dict[str, Any]:
    """A line of ``metrics.jsonl``."""
    seconds = {
        "seconds": 0.0125,
        "aggregation_seconds": 0.004,
        "communication_wait_seconds": 0.003,
        "wire_seconds": 0.005,
    }
    seconds |= {name: 0.001 for name in BREAKDOWN if name not in seconds}
    line = {
        "epoch": epoch,
        "loss": 2.0 / (epoch + 1),
        "compute": "float32",
        "bytes_sent": 123456,
        "bits": 8,
        "stale": False,
    }
    line |= seconds | {f"{name}_mean": value / 2 for name, value in seconds.items()}
    metrics = {"train_metric": 0.5, "val_metric": 0.4 + epoch / 100, "test_metric": 0.3 + epoch / 100}
    return line | metrics | {"eval_seconds": 0.1} | changes


def ranks(size: int, epochs: int = EPOCHS) -> Ranks:
    """The ``ranks.json`` of this many ranks; rank 0 sends twice as much as the others."""
    firsts = first_ranks(size)
    blocks = firsts.size
    sent = np.full((blocks, blocks), 1000 * epochs)
    sent[0] *= 2
    np.fill_diagonal(sent, 0)
    mean = {name: np.linspace(0.001, 0.003, blocks).tolist() for name in BREAKDOWN}
    mean |= {name: np.linspace(100, 300, blocks).tolist() for name in COUNTS}
    return Ranks(
        ranks=size, first_rank=firsts.tolist(), first_epoch=0, epochs=epochs, parts_uuid="none", bytes=sent.tolist(),
        mean=mean, largest={name: [2 * value for value in values] for name, values in mean.items()},
    )  # fmt: skip


def run_folder(
    path: Path, *, settings: dict[str, Any] | None = None, size: int = 4, lines: list[dict[str, Any]] | None = None,
    metric: str = "accuracy", **summary: Any,
) -> Path:  # fmt: skip
    """The folder of a run that has finished."""
    lines = [record(epoch) for epoch in range(EPOCHS)] if lines is None else lines
    path.mkdir(parents=True)
    config = RunConfig.from_settings({"hidden": 17, "epochs": EPOCHS, **(settings or {})}).settings()
    (path / "config.toml").write_text(tomli_w.dumps({"parts": "parts-of-nowhere.h5"} | config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = {"metric_name": metric, "epochs": len(lines), "stop_reason": None, "finished": True, "ranks": size}
    told |= {"threads_per_rank": 3, "peak_memory_bytes_per_rank": 77 << 20, "versions": {"hpcgnn": "1.2.3"}}
    (path / "summary.json").write_text(json.dumps(told | summary))
    (path / "ranks.json").write_text(json.dumps(msgspec.to_builtins(ranks(size, len(lines)))))
    return path


def specified(folder: Path, text: str) -> specification.Specification:
    """The specification of a study with this text."""
    path = folder / records.SPECIFICATION
    path.write_text(text)
    return specification.read(path)


def study(folder: Path, text: str, told: Callable[[specification.Run], dict[str, Any]]) -> Path:
    """A study with a record of every run, which has finished unless ``told`` says otherwise; told: further fields of a record."""
    folder.mkdir(exist_ok=True)
    for run in specified(folder, text).runs:
        fields = {"status": records.FINISHED, "machine": records.machine_facts()} | told(run)
        records.append(folder, records.Record(key=run.key, configuration=run.configuration, **fields))
    return folder
