"""What contenders reach beside ours in float32, and beside what they could reach at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcgnn.bench import report
from hpcgnn.bench.measure import Outcome
from hpcgnn.bench.problem import Contender


def lines(outcome: Outcome, contenders: Mapping[str, Contender], multiply_adds: float) -> dict[str, dict[str, Any]]:
    """For ``--json``, by name: each timing, and where they are known ``giga_ops`` (of operations a second, of which a
    multiply-add has two), ``times_ours`` (as fast as ours) and ``of_ceiling``.

    multiply_adds: of what each contender computes, but for those that count their own.
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
