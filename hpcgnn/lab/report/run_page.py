"""The page of one run."""

from __future__ import annotations

from pathlib import Path

from hpcgnn.lab.report import words
from hpcgnn.lab.report.curves import curves
from hpcgnn.lab.report.page import Page, Section
from hpcgnn.lab.report.rank_sections import rank_sections
from hpcgnn.lab.report.time_section import time_section
from hpcgnn.lab.study.summary import Table
from hpcgnn.train.run_files import Run, read_run


def run_page(folder: Path) -> Page:
    """The page of the run that ``hpcgnn train`` has left in ``folder``.

    Raises:
        HpcgnnError: if the folder holds no run.
    """
    run = read_run(folder)
    sections = [_result(run), _settings(run)]
    if run.records:
        sections += [curves(run), time_section(run)]
    sections += rank_sections(run)
    return Page(f"Run {run.name}", tuple(sections), _subtitle(run), run.warnings())


def _subtitle(run: Run) -> str:
    told = [
        run.settings.get("model"),
        run.settings.get("task") and f"{run.settings['task']} task",
        run.settings.get("parts"),
    ]
    ranks = f"{run.num_ranks} ranks" if run.num_ranks else None
    return ", ".join(str(each) for each in (*told, ranks) if each)


def _result(run: Run) -> Section:
    best, metric = run.best(), run.metric
    losses = run.values("loss")[1]
    bytes_sent = run.mean("bytes_sent")
    rows: list[tuple[str, str]] = [("state", run.state)]
    if best is not None:
        rows.append((f"best validation {metric}", f"{words.percent(best['val_metric'])} in epoch {best['epoch']}"))
        rows.append((f"test {metric} in that epoch", words.percent(best.get("test_metric"))))
    if losses:
        rows.append(("loss of the last epoch", f"{losses[-1]:.4g}"))
    rows += [
        ("seconds per epoch, slowest rank (median)", words.seconds(run.median("seconds"))),
        ("seconds per epoch without the first, slowest rank (mean)", words.seconds(run.mean("seconds"))),
        ("bytes sent per epoch, all ranks (mean)", f"{words.size(bytes_sent)} ({words.count(bytes_sent)})"),
    ]
    between, shared = run.mean("bytes_between_nodes"), run.mean("bytes_shared_on_nodes")
    if between or shared:
        rows.append(("  between nodes", words.size(between)))
        rows.append(("bytes read in shared memory per epoch", words.size(shared)))
    rows += _machine(run)
    return Section("Result", tables=(Table("In short", ("", ""), tuple(rows), label_columns=2),))


def _machine(run: Run) -> list[tuple[str, str]]:
    rows = []
    if run.num_ranks:
        threads = run.number("threads_per_rank")
        rows.append(("ranks x threads", f"{run.num_ranks} x {threads:.0f}" if threads else str(run.num_ranks)))
    for name, told in (
        ("peak_memory_bytes_per_rank", "peak memory per rank, largest"),
        ("peak_device_memory_bytes_per_rank", "peak GPU memory per rank, largest"),
    ):
        if run.number(name):
            rows.append((told, words.size(run.number(name))))
    for name in ("devices", "versions"):
        found = run.summary.get(name)
        if isinstance(found, dict):
            rows.append((name, ", ".join(f"{each} {value}" for each, value in found.items())))
    return rows


def _settings(run: Run) -> Section:
    changed, usual = run.changed_settings(), run.usual_settings()
    if not run.settings:
        return Section("Settings", ("The settings are unknown.",))
    text = () if changed else ("All settings have their default values.",)
    tables = (
        Table(
            "Settings that differ from the defaults", ("setting", "value", "default"), tuple(changed), label_columns=3
        ),
    )
    rows = tuple((name, value) for name, value, _ in usual)
    folded = (Table(f"{len(rows)} settings with their defaults", ("setting", "value"), rows, label_columns=2),)
    return Section("Settings", text, tables=tables if changed else (), folded=folded if rows else ())
