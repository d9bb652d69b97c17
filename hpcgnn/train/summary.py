"""``summary.json``: the result of a run, and its cost in time, bytes and memory."""

from __future__ import annotations

import platform
from collections import Counter
from typing import Any

import numpy as np
import torch

from hpcgnn.base.process import peak_memory_bytes, private_memory_bytes
from hpcgnn.base.version import __version__
from hpcgnn.exchange import BYTES, PHASES
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.node_order import METHODS
from hpcgnn.train.schedule import Best
from hpcgnn.world import World


def versions(world: World) -> dict[str, str]:
    """The versions of the software, and the machine. Not collective."""
    return {
        "hpcgnn": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mpi": world.library,
        "machine": platform.machine(),
    }


def summarise(graph: LocalGraph, best: Best, records: list[dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    """The content of ``summary.json``, from the ``records`` of epochs and from facts of the trainer. Collective.

    facts: ``metric_name``, ``epochs``, ``stop_reason``, ``startup_seconds`` of this rank, and the most important settings.
    """
    phases, world = (*PHASES, "other_seconds"), graph.world
    mine = np.array([facts["startup_seconds"], peak_memory_bytes(), private_memory_bytes()])
    startup, peak, private = world.allreduce(mine, "max").tolist()

    def median(name: str) -> float:
        return float(np.median([record.get(name, 0.0) for record in records])) if records else 0.0

    return facts | {
        **_of_losses(records),
        "best_val_metric": best.val_metric,
        "test_metric_at_best_val": best.test_metric,
        "best_epoch": best.epoch,
        "finished": facts["stop_reason"] != "SIGUSR1",
        "epoch_seconds_median": median("seconds"),
        "epoch_seconds_mean": mean_of(records, "seconds"),
        **{f"{name}_per_epoch": mean_of(records, name) for name in BYTES},
        "breakdown_seconds_median": {name: median(name) for name in phases},
        "breakdown_seconds_mean_median": {name: median(f"{name}_mean") for name in phases},
        "breakdown_seconds_per_epoch": {name: mean_of(records, name) for name in phases},
        "breakdown_seconds_mean_per_epoch": {name: mean_of(records, f"{name}_mean") for name in phases},
        "startup_seconds": startup,  # from the start of the process to its first epoch
        "peak_memory_bytes_per_rank": int(peak),
        "private_memory_bytes_per_rank": int(private),  # at the end, of what no other process maps
        "devices": _devices(graph),
        "peak_device_memory_bytes_per_rank": int(world.allreduce(np.array([graph.device.peak_bytes() or 0]), "max")[0]),
        "bits_shares": bit_shares([record["bits"] for record in records]),
        "stale_share": float(np.mean([record["stale"] for record in records])) if records else 0.0,
        "ranks": world.size,
        "node_orders": _node_orders(graph),
        "threads_per_rank": torch.get_num_threads(),
        "versions": versions(world),
    }


def mean_of(records: list[dict[str, Any]], name: str) -> float:
    """The mean over epochs of what an epoch takes; 0 without epochs. ``records``: lines of ``metrics.jsonl``.

    Unlike a median, it has the work that only some epochs do. Times leave out the first of several epochs, in which code is
    compiled and memory made.
    """
    counted = records[1:] if "seconds" in name and len(records) > 1 else records
    return float(np.mean([record.get(name, 0.0) for record in counted])) if counted else 0.0


def _of_losses(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of epochs without a loss, and the share by which the lowest loss is below that of the first epoch with one."""
    losses = [loss for record in records if (loss := record.get("loss")) is not None]
    is_known = len(losses) > 1 and losses[0] > 0 and records[0]["epoch"] == 0
    return {
        "epochs_without_loss": len(records) - len(losses),
        "loss_decrease": 1 - min(losses) / losses[0] if is_known else None,
    }


def bit_shares(epochs: list[int | dict[str, dict[str, int]]]) -> dict[str, float]:
    """For each bit-width, its share of the rows sent in all ``epochs``. epochs: the ``bits`` of the records.

    An epoch with one bit-width for all rows has no number of rows, so it counts as many as an average one of the others.
    """
    counted = [sum(map(Counter, epoch.values()), Counter()) for epoch in epochs if isinstance(epoch, dict)]
    rows: Counter[str] = sum(counted, Counter())
    shares = {bits: float(count) for bits, count in rows.items()}
    typical = rows.total() / len(counted) if rows.total() else 1.0
    for epoch in epochs:
        if isinstance(epoch, int):
            shares[str(epoch)] = shares.get(str(epoch), 0.0) + typical
    total = sum(shares.values())
    return {bits: shares[bits] / total for bits in sorted(shares, key=int)}


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
