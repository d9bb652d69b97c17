"""Short records (tools/short_records.py) give the report of the records that they replace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_up
import pytest
from checkout import tool

from hpcgnn.lab.study import records, specification
from hpcgnn.lab.study.summary import summarise

SPECIFICATION = """\
name = "s"
kind = "train"
seeds = [0, 1, 2]
[axes]
graph = "digits"
bits = ["32", "2", "1"]
[[report.tables]]
rows = "bits"
figures = ["wall_seconds", "epoch_seconds_mean_ratio", "breakdown_seconds_mean_median.other_seconds"]
baseline = {bits = "32"}
where = {bits = "2"}
[[report.tables]]
rows = "bits"
figures = ["seconds_to_target", "policy_share", "spread"]
baseline = {bits = "32"}
[[report.figures]]
x = "epoch"
figure = "loss"
where = {bits = "1"}
"""
WITHOUT_SPREAD = SPECIFICATION.replace(', "spread"', "")
METRIC = "test_metric_at_best_val"
MACHINE = {"id": "a", "processor": "Z80"}


def told(run: specification.Run) -> dict[str, Any]:
    """A record with numbers of many digits, or of a run that has failed."""
    seed = run.configuration["seed"]
    if (seed, run.configuration["bits"]) == (1, "1"):
        return {"machine": MACHINE, "status": records.FAILED, "error": "it was too hot"}
    lines = [made_up.record(epoch, seconds=(1 + seed + epoch) / 70) for epoch in range(made_up.EPOCHS)]
    phases = {"other_seconds": (2 + seed) / 30, "wire_seconds": 0.1}
    return {
        "machine": MACHINE,
        "versions": {"hpcgnn": f"1.{seed}"},
        "wall_seconds": (10 + seed) / 3,
        "summary": {METRIC: 0.4 + seed / 300, "breakdown_seconds_mean_median": phases},
        "epochs": {name: [line[name] for line in lines] for name in lines[0]},
        "preparation": {"plan": {}},
    }


def test_the_report_stays_the_same(tmp_path: Path) -> None:
    folder = made_up.study(tmp_path / "s", WITHOUT_SPREAD, told)
    before, long = summarise(folder).markdown(), (folder / records.RECORDS).read_text()
    assert "it was too hot" in before
    tool("short_records").shorten(folder)
    short = (folder / records.RECORDS).read_text()
    assert summarise(folder).markdown() == before
    assert len(short) < 0.3 * len(long)
    tool("short_records").shorten(folder)
    assert (folder / records.RECORDS).read_text() == short, "short records stay as they are"


def test_records_that_a_report_needs_stay(tmp_path: Path) -> None:
    folder = made_up.study(tmp_path / "s", SPECIFICATION, told)
    before = (folder / records.RECORDS).read_bytes()
    with pytest.raises(SystemExit, match="the report would change"):
        tool("short_records").shorten(folder)
    assert (folder / records.RECORDS).read_bytes() == before
