"""``hpcgnn model``: a cost model that is fitted to the records of a study, and its predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich import box
from rich.table import Table

from hpcgnn.cli import console
from hpcgnn.lab.cli import model_project

_EXAMPLES = """\b
Examples:
  hpcgnn study run fit --out fit && hpcgnn model fit fit --out model.toml
  hpcgnn study run unseen --out unseen && hpcgnn model compare model.toml unseen
  hpcgnn model predict model.toml parts-16.h5 --rate 300mbit --strategy all --bits 2
  hpcgnn model predict model.toml parts-8192.h5 --network fugaku-like --ranks-per-node 48 --json
  hpcgnn model project fugaku-like parts-*.h5 --out scaling.svg
"""


@click.group(epilog=_EXAMPLES)
def model() -> None:
    """Fit a cost model to measured runs, and predict seconds, bytes and memory of an epoch of other runs.

    docs/cost-model.md describes the equations. PROFILE is the name of a machine that ships with the package, such as
    fugaku-like, with constants from published figures.
    """


@model.command(epilog="\b\nExample\n  hpcgnn model fit DIR --out model.toml")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="TOML file to write with the constants.")
@click.option("--machine", metavar="ID", help="Identifier of the machine whose records count, if DIR has several.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of tables.")
def fit(folder: Path, out: Path, machine: str | None, quiet: bool, as_json: bool) -> None:
    """Fit the constants of the cost model to the records of a study.

    DIR is the folder of the study. The constants are written with 95 % intervals.
    """
    import msgspec

    from hpcgnn.lab.cost_model import fit as fitting
    from hpcgnn.lab.cost_model import model_file
    from hpcgnn.lab.cost_model.cases import cases_of
    from hpcgnn.lab.study import records

    runs = cases_of(folder, records.read(folder), machine)
    with console.progress("fitting (evaluations of the equations)", None, quiet=quiet or as_json) as advance:
        found = fitting.fit(runs, folder, advance).model
    model_file.write(found, out)
    if as_json:
        print(json.dumps(msgspec.to_builtins(found) | {"left_out": runs.left_out}))
    elif not quiet:
        for sentence in runs.left_out:
            console.note(f"left out: {sentence}")
        constants = [fitting.in_words(name, fitted) for name, fitted in found.constants.items()]
        _show("constants", ("name", "value", "95 % interval", "of"), constants, 4)
        left = found.residuals
        rows = [
            ("runs", left.runs),
            ("relative error of an epoch, median", f"{left.median:.1%}"),
            ("relative error of an epoch, largest", f"{left.worst:.1%}"),
        ]
        rows += [(f"  {phase}, share of the epoch", f"{value:.1%}") for phase, value in left.median_by_phase.items()]
        console.table(f"fitted to {folder}: {out}", rows)


@model.command(epilog="\b\nExample\n  hpcgnn study run unseen --out unseen && hpcgnn model compare model.toml unseen")
@click.argument("fitted", metavar="MODEL.toml", type=click.Path(path_type=Path))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--machine", metavar="ID", help="Identifier of the machine whose records count, if DIR has several.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of tables.")
def compare(fitted: Path, folder: Path, machine: str | None, quiet: bool, as_json: bool) -> None:
    """Compare predictions of the cost model with measurements.

    Every finished run of the study in DIR is compared. Runs that the equations do not cover are named and left out. `hpcgnn
    study report DIR --model MODEL.toml` draws the same comparison.
    """
    from hpcgnn.lab.cost_model import model_file
    from hpcgnn.lab.cost_model.compare import compare as comparison_of
    from hpcgnn.lab.report import model_section
    from hpcgnn.lab.study import records

    found = comparison_of(model_file.read(fitted), folder, records.read(folder), machine)
    if as_json:
        print(json.dumps({"model": str(fitted), "folder": str(folder)} | found.as_dict()))
        return
    if quiet:
        return
    for sentence in found.notes:
        console.note(sentence)
    for sentence in found.left_out:
        console.note(f"left out: {sentence}")
    for each in model_section.tables(found):
        _show(each.title, each.header, each.rows, each.label_columns)
    print(found.in_words())


def _show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], labels: int) -> None:
    """Print a table. labels: the number of columns, from the left, that are labels; the others are aligned to the right."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE)
    for number, name in enumerate(header):
        shown.add_column(name, justify="left" if number < labels else "right", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console.stdout().print(shown)


model.add_command(model_project.predict)
model.add_command(model_project.project)
