"""The speed of contenders relative to ours in float32, and to their ceilings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcgnn.lab.bench import report
from hpcgnn.lab.bench.measure import Outcome
from hpcgnn.lab.bench.problem import Contender


def lines(outcome: Outcome, contenders: Mapping[str, Contender], multiply_adds: float) -> dict[str, dict[str, Any]]:
    """Each timing by name, for ``--json``. If known, it has ``giga_ops`` (10^9 operations a second; a multiply-add counts as
    two), ``times_ours`` (speed relative to ours) and ``of_ceiling``.

    multiply_adds: number of multiply-adds of each contender, except for those that count their own.
    """
    timings = outcome.as_json()
    return {name: line | _reached(name, line, timings, contenders, multiply_adds) for name, line in timings.items()}


def _reached(
    name: str, line: dict[str, Any], timings: dict[str, Any], contenders: Mapping[str, Contender], multiply_adds: float
) -> dict[str, Any]:
    contender = contenders[name]
    if "seconds" not in line:
        return {}
    computes = contender.tolerance is not None
    count = line.get("multiply_adds", multiply_adds if computes else None)
    found = {"giga_ops": None if count is None else 2e-9 * count / line["seconds"]}
    found["times_ours"] = report.ratio(timings, "ours", name) if computes else None
    ceiling = timings.get(contender.ceiling, {})
    if "seconds" not in ceiling:
        return found | {"of_ceiling": None}
    share = multiply_adds / ceiling.get("multiply_adds", multiply_adds)
    return found | {"of_ceiling": share * ceiling["seconds"] / line["seconds"]}
