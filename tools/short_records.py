"""Makes the records of studies short, as docs/studies has them.

usage: python tools/short_records.py DIR...        (folders of studies that have been run)

A short record keeps the key, the figures that the tables and targets of the study use, and the points of its curves. The status
stands where it is not ``finished``. The machine, the versions and the names of figures stand where they differ from those of the
line before. Numbers keep the fewest digits, but at least six, with which the report and the verdicts on targets stay the same to
the letter. Settings and seconds of each epoch are left out: the specification has the former, and `hpcgnn study run` measures the
latter again.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcgnn.base import whole_file
from hpcgnn.lab.study import measures, records, summary, targets
from hpcgnn.lab.study.axes import matches
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.specification import Specification

LEAST_DIGITS, ALL_DIGITS = 6, 17
# Figures that compare configurations beyond `where` and `baseline`, and the figure of each run from which they follow.
FROM = {
    measures.SPEED_UP: measures.SECONDS,
    measures.EFFICIENCY: measures.SECONDS,
    measures.SECONDS_TO_TARGET: measures.METRIC,
    measures.SECONDS_TO_BEST: measures.METRIC,
}
NEED_CURVES = (measures.SECONDS_TO_TARGET, measures.SECONDS_TO_BEST)


class Use(NamedTuple):
    """A figure that a table, a picture or a target uses, and the configurations of which it uses it. place: the x of a curve."""

    figure: str
    chosen: tuple[Mapping[str, Any], ...]
    place: str = ""


def targets_of(study: Specification) -> list[targets.Target]:
    """The targets that ship with a study; none if it has none."""
    path = targets.catalogue.FOLDER / f"{study.name}.targets.toml"
    return targets.read(path) if path.exists() else []


def uses_of(study: Specification) -> Iterator[Use]:
    """The uses of figures in the report of a study and in its targets."""
    plans = [(plan, name, "") for plan in study.tables for name in plan.figures]
    plans += [(plan, plan.figure, plan.x if plan.x in measures.PLACES else "") for plan in study.figures]
    plans += [(target, target.figure, "") for target in targets_of(study)]
    for plan, name, place in plans:
        figure, _ = measures.split(name)
        yield Use(
            FROM.get(figure, figure), ({},) if figure in FROM else (plan.where, plan.baseline or plan.where), place
        )
        if figure in NEED_CURVES:
            yield Use("test_metric", ({},), measures.TRAINING_SECONDS)


def used(uses: list[Use], configuration: Mapping[str, Any]) -> list[Use]:
    """The uses of a result with this configuration."""
    return [use for use in uses if any(matches(configuration, wanted) for wanted in use.chosen)]


def figures_of(figures: Mapping[str, Any], uses: list[Use]) -> dict[str, Any]:
    """The figures of a result that are used, as a summary has them: seconds of phases are in tables by name."""
    found: dict[str, Any] = {}
    for name in sorted({use.figure for use in uses if not use.place}):
        if (value := measures.value(figures, name)) is not None:
            table, _, last = name.rpartition(".")
            (found.setdefault(table, {}) if table else found)[last] = value
    return found


def curves_of(epochs: measures.Epochs, uses: list[Use]) -> dict[str, list[Any]]:
    """The epochs in which a curve of a run has a point, with the values of all curves there."""
    columns: dict[str, dict[float, float]] = {}
    for figure, place in sorted({(use.figure, use.place) for use in uses if use.place}):
        x, y = measures.curve([epochs], measures.EPOCH, figure)
        if x:
            columns[figure] = dict(zip(x, y, strict=True))
        if x and place == measures.TRAINING_SECONDS:
            seconds, _ = measures.curve([epochs], place, figure)
            columns.setdefault(place, {}).update(zip(x, seconds, strict=True))
    every = sorted({x for column in columns.values() for x in column})
    found = {name: [column.get(x) for x in every] for name, column in columns.items()}
    is_numbered = any(use.place == measures.EPOCH for use in uses)  # else the places in the lists are enough
    return ({"epoch": [x - 1 for x in every]} if is_numbered and found else {}) | found


def results_of(record: Record, uses: list[Use], configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The summary and the epochs of the short record of a finished run."""
    lines = []
    for axes, figures in measures.lines(record):
        if own := used(uses, {**configuration, **axes}):
            lines.append({"axes": axes, "figures": figures_of(figures, own)})
    if "lines" in record.summary:
        return {"summary": {"lines": lines}}
    figures = lines[0]["figures"] if lines else {}
    found = {"wall_seconds": figures.pop("wall_seconds", None), "summary": figures}
    found["epochs"] = curves_of(record.epochs, used(uses, configuration))
    return {name: value for name, value in found.items() if value}


def short(study: Specification, found: list[Record]) -> Iterator[dict[str, Any]]:
    """The short records of a study as plain values."""
    uses, runs = list(uses_of(study)), {run.key: run for run in study.runs}
    machine: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    names: list[str] = []
    for record in sorted(found, key=lambda record: (record.machine_id, str(record.versions))):
        line: dict[str, Any] = {"key": record.key}
        if not record.is_finished:
            line |= {"status": record.status, "error": record.error}
        if record.machine != machine:
            machine, versions, line["machine"] = record.machine, {}, record.machine
        if record.versions and record.versions != versions:
            versions = line["versions"] = record.versions
        if record.is_finished and record.key in runs:
            line |= results_of(record, uses, runs[record.key].configuration)
        figures = line.get("summary", {})
        if figures and "machine" not in line and [*figures] == names and "lines" not in figures:
            line["values"] = [*line.pop("summary").values()]
        names = [*figures]
        yield line


def rounded(value: Any, digits: int) -> Any:
    """A value in which all numbers have so many digits; whole numbers have all of theirs."""
    if isinstance(value, float):
        number = value if value.is_integer() else float(f"{value:.{digits}g}")
        return int(number) if number.is_integer() else number
    if isinstance(value, dict):
        return {name: rounded(each, digits) for name, each in value.items()}
    return [rounded(each, digits) for each in value] if isinstance(value, list) else value


def text_of(lines: Iterable[dict[str, Any]], digits: int = ALL_DIGITS) -> str:
    """Short records as the text of a file."""
    return "".join(f"{json.dumps(rounded(line, digits), separators=(',', ':'))}\n" for line in lines)


def report_of(folder: Path) -> tuple[str, list[targets.Verdict]]:
    """The report of a study and the verdicts on its targets."""
    found = summary.summarise(folder)
    return found.markdown(), targets.verdicts(found.groups, targets_of(summary.read_study(folder)))


def shorten(folder: Path) -> None:
    """Replace the records of a study by short ones. Raises SystemExit if its report would change whatever the digits."""
    before, lines = report_of(folder), list(short(summary.read_study(folder), records.read(folder)))
    with tempfile.TemporaryDirectory() as name:
        shutil.copy(folder / records.SPECIFICATION, name)
        for digits in range(LEAST_DIGITS, ALL_DIGITS + 1):
            text = text_of(lines, digits)
            (Path(name) / records.RECORDS).write_text(text)
            if report_of(Path(name)) == before:
                break
        else:
            raise SystemExit(f"{folder}: the report would change, so its records stay as they are")
    with whole_file.replacing(folder / records.RECORDS) as temporary:
        temporary.write_text(text)
    print(f"{folder}: {digits} digits, {len(text)} bytes")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        shorten(Path(argument))
