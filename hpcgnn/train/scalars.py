"""The numbers of an epoch, under the names that TensorBoard and reports show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcgnn.exchange import BYTES
from hpcgnn.train.rank_report import BREAKDOWN

METRICS = ("train_metric", "val_metric", "test_metric")


def mean_bits(bits: int | Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Mean bit-width over rows, for each exchange by its name, and for all exchanges as ``all rows``.

    bits: the key of a record; one number for all rows, or the number of rows of each bit-width, by exchange.
    """
    if isinstance(bits, int):
        return {"all rows": float(bits)}
    rows = {name: {int(width): count for width, count in found.items()} for name, found in bits.items()}
    means = {name: _mean(found) for name, found in rows.items() if sum(found.values())}
    total: dict[int, int] = {}
    for found in rows.values():
        for width, count in found.items():
            total[width] = total.get(width, 0) + count
    return ({"all rows": _mean(total)} if sum(total.values()) else {}) | means


def _mean(rows: Mapping[int, int]) -> float:
    return sum(width * count for width, count in rows.items()) / sum(rows.values())


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a line of ``metrics.jsonl``, by tags such as ``metric/val`` and ``seconds/aggregation``.

    ``seconds`` are those of the slowest rank, ``seconds_mean`` the mean over ranks.
    """
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
