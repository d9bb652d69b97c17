"""The numbers of a run: ``summary.json``, and the scalars of each epoch for TensorBoard and reports."""

from __future__ import annotations

import contextlib
import importlib
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import peak_memory_bytes, private_memory_bytes
from hpcgnn.base.version import __version__
from hpcgnn.exchange import BYTES
from hpcgnn.graph import METHODS
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.train.config import Best
from hpcgnn.train.rank_report import BREAKDOWN


def summarise(graph: LocalGraph, best: Best, records: list[dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    """The content of ``summary.json``, from the ``records`` of epochs and from facts of the trainer: ``metric_name``, ``epochs``,
    ``stop_reason``, ``startup_seconds`` of this rank, and the most important settings. Collective."""
    phases, world = BREAKDOWN[1:], graph.world
    mine = np.array([facts["startup_seconds"], peak_memory_bytes(), private_memory_bytes()])
    startup, peak, private = world.allreduce(mine, "max").tolist()

    def median(name: str) -> float:
        return float(np.median([record.get(name, 0.0) for record in records])) if records else 0.0

    def mean(name: str) -> float:
        return mean_of_epochs(name, [record.get(name, 0.0) for record in records]) or 0.0

    return facts | {
        **_of_losses(records),
        "best_val_metric": best.val_metric,
        "test_metric_at_best_val": best.test_metric,
        "best_epoch": best.epoch,
        "finished": facts["stop_reason"] != "SIGUSR1",
        "epoch_seconds_median": median("seconds"),
        "epoch_seconds_mean": mean("seconds"),
        **{f"{name}_per_epoch": mean(name) for name in BYTES},
        "breakdown_seconds_median": {name: median(name) for name in phases},
        "breakdown_seconds_mean_median": {name: median(f"{name}_mean") for name in phases},
        "breakdown_seconds_per_epoch": {name: mean(name) for name in phases},
        "breakdown_seconds_mean_per_epoch": {name: mean(f"{name}_mean") for name in phases},
        "startup_seconds": startup,  # from the start of the process to its first epoch
        "peak_memory_bytes_per_rank": int(peak),
        "private_memory_bytes_per_rank": int(private),  # at the end, of what no other process maps
        "devices": _devices(graph),
        "peak_device_memory_bytes_per_rank": int(world.allreduce(np.array([graph.device.peak_bytes() or 0]), "max")[0]),
        "bits_shares": bit_shares([record["bits"] for record in records]),
        "policy_failures": policy_failures(records),
        "stale_share": float(np.mean([record["stale"] for record in records])) if records else 0.0,
        "ranks": world.size,
        "node_orders": _node_orders(graph),
        "threads_per_rank": torch.get_num_threads(),
        "versions": {
            "hpcgnn": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "mpi": world.library,
            "machine": platform.machine(),
        },
    }


def mean_of_epochs(name: str, values: Sequence[float]) -> float | None:
    """The mean over epochs, some of which may do more work than others; None without epochs. Times leave out the first of several
    epochs, in which code is compiled and memory made."""
    counted = values[1:] if "seconds" in name and len(values) > 1 else values
    return float(np.mean(counted)) if counted else None


def _of_losses(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of epochs without a loss, and the share by which the lowest loss is below that of the first epoch with one."""
    losses = [loss for record in records if (loss := record.get("loss")) is not None]
    is_known = len(losses) > 1 and losses[0] > 0 and records[0]["epoch"] == 0
    return {
        "epochs_without_loss": len(records) - len(losses),
        "loss_decrease": 1 - min(losses) / losses[0] if is_known else None,
    }


def bit_shares(epochs: list[int | dict[str, dict[str, int]]]) -> dict[str, float]:
    """For each bit-width, its share of the rows sent in all ``epochs``, the ``bits`` of the records. An epoch with one bit-width
    for all rows has no number of rows, so it counts as many as an average one of the others."""
    counted = [sum(map(Counter, epoch.values()), Counter()) for epoch in epochs if isinstance(epoch, dict)]
    rows: Counter[str] = sum(counted, Counter())
    shares = {bits: float(count) for bits, count in rows.items()}
    typical = rows.total() / len(counted) if rows.total() else 1.0
    for epoch in epochs:
        if isinstance(epoch, int):
            shares[str(epoch)] = shares.get(str(epoch), 0.0) + typical
    total = sum(shares.values())
    return {bits: shares[bits] / total for bits in sorted(shares, key=int)}


def policy_failures(records: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """The epochs in which a policy could not choose bit-widths, and the reasons."""
    found = [(record["epoch"], (record.get("policy") or {}).get("failure")) for record in records]
    return [(epoch, str(reason)) for epoch, reason in found if reason is not None]


def _devices(graph: LocalGraph) -> dict[str, int]:
    """The number of ranks on each device. The name of GPUs is that of the lowest rank with one. Collective."""
    world, is_gpu = graph.world, graph.device.torch_device.type != "cpu"
    counts = world.allreduce(np.array([not is_gpu, is_gpu], np.int64))
    first = int(world.allreduce(np.array([world.rank if is_gpu else world.size]), "min")[0])
    if first == world.size:
        return {"CPU": int(counts[0])}
    gpu = world.broadcast(graph.device.name, first, "the name of a GPU")
    return {name: int(count) for name, count in zip(("CPU", gpu), counts, strict=True) if count}


def _node_orders(graph: LocalGraph) -> dict[str, int]:
    """The number of ranks with each node order; orders without ranks are left out. Collective."""
    counts = graph.world.allreduce(np.array([graph.order.method == name for name in METHODS], dtype=np.int64))
    return {name: int(count) for name, count in zip(METHODS, counts, strict=True) if count}


METRICS = ("train_metric", "val_metric", "test_metric")


def mean_bits(bits: int | Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Mean bit-width over rows, for each exchange by its name, and for all exchanges as ``all rows``, from the ``bits`` of a
    record: one number for all rows, or the number of rows of each bit-width, by exchange."""
    if isinstance(bits, int):
        return {"all rows": float(bits)}
    rows: dict[str, Mapping[str, int]] = {"all rows": sum(map(Counter, bits.values()), Counter()), **bits}
    return {
        name: sum(int(width) * count for width, count in found.items()) / sum(found.values())
        for name, found in rows.items()
        if sum(found.values())
    }


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a line of ``metrics.jsonl``, by tags such as ``metric/val`` and ``seconds/aggregation``."""
    found: dict[str, Any] = {"loss": record.get("loss")}
    found |= {f"metric/{name.removesuffix('_metric')}": record.get(name) for name in METRICS}
    for name in BREAKDOWN:
        phase = name.removesuffix("_seconds") if name != "seconds" else "epoch"
        found[f"seconds/{phase}"] = record.get(name)
        found[f"seconds_mean/{phase}"] = record.get(f"{name}_mean")
    found["seconds/evaluation"] = record.get("eval_seconds")
    found |= {f"bytes/{name.removeprefix('bytes_')}": record.get(name) for name in BYTES}
    found |= {f"bits/{_tag(name)}": bits for name, bits in mean_bits(record.get("bits", {})).items()}
    found |= {f"stale_epochs/{_tag(name)}": age for name, age in record.get("stale_epochs", {}).items()}
    return {name: float(value) for name, value in found.items() if value is not None and np.isfinite(value)}


def _tag(name: str) -> str:
    """The tag of an exchange: ``layer_1_gradients`` for ``layer 1's gradients``."""
    return re.sub(r"\W+", "_", name.replace("'s", ""))


FOLDER = "tensorboard"
_FLUSH_SECONDS = 10


def writers() -> ModuleType:
    """``torch.utils.tensorboard``, whose import takes long. Raises HpcgnnError where the package ``tensorboard`` is missing."""
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise HpcgnnError(
            f"--tensorboard needs the package tensorboard, which cannot be imported ({error}): "
            "pip install 'hpcgnn[tensorboard]'"
        ) from error


class TensorBoard:
    """Adds epochs to the folder ``tensorboard`` of a run, on rank 0 alone. What a stopped run has written of ``next_epoch`` and
    of later ones is not shown any more. Raises HpcgnnError, here and in each call, where nothing can be written."""

    def __init__(self, run: Path, next_epoch: int) -> None:
        self._folder = run / FOLDER
        with self._writing():
            folder, purged = str(self._folder), next_epoch or None
            self._writer = writers().SummaryWriter(folder, purge_step=purged, flush_secs=_FLUSH_SECONDS)

    def add(self, record: dict[str, Any]) -> None:
        """The scalars of a line of ``metrics.jsonl``."""
        with self._writing():
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, record["epoch"])

    def close(self) -> None:
        """Write what is left."""
        with self._writing():
            self._writer.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HpcgnnError(f"cannot write {self._folder}: {error.strerror or error}") from error
