"""``hpcgnn study``: runs of a specification, recorded, reported and held to targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.table import Table

from hpcgnn import whole_file
from hpcgnn.cli import console
from hpcgnn.errors import HpcgnnError

if TYPE_CHECKING:
    from hpcgnn.study.specification import Specification

_out = click.option(
    "--out", "folder", required=True, metavar="DIR", type=click.Path(path_type=Path), help="Folder of the study."
)
_folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
_machine = click.option(
    "--machine",
    metavar="ID",
    default="",
    help="Whose records count, where there are several machines'.  [default: this one]",
)
EXAMPLES = """\b
Examples:
  hpcgnn study run quick --out s && hpcgnn study report s && hpcgnn study check s
  hpcgnn study run SPEC.toml --out s         run again: what has finished is kept, the rest is run
  hpcgnn study submit SPEC.toml --out s --sbatch --time=30 --dry-run
"""


@click.group(epilog=EXAMPLES)
def study() -> None:
    """Run many trainings of one specification, interleaved and recorded, and report on them."""


@study.command(epilog="\b\nExamples\n  hpcgnn study run quick --out s\n  hpcgnn study run mine.toml --out s --only KEY")
@click.argument("specification", metavar="SPEC.toml|NAME")
@_out
@click.option("--only", metavar="KEY", multiple=True, help="Only this run; may be given several times.")
@click.option(
    "--launcher", metavar="COMMAND", default="",
    help="Starts ranks in place of `hpcgnn launch`: 'srun --ntasks={ranks} --cpus-per-task={threads}'.",
)  # fmt: skip
@click.option(
    "--data", metavar="DIR", default="", envvar="HPCGNN_DATA", show_envvar=True,
    help="Where the graphs are whose sources begin with $DATA.",
)  # fmt: skip
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@_as_json
@click.pass_context
def run(
    ctx: click.Context,
    specification: str,
    folder: Path,
    only: tuple[str, ...],
    launcher: str,
    data: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run what is not finished yet of SPEC.toml, or of the shipped specification NAME.

    Configurations are interleaved: each seed or repeat is a round of all of them. Records are appended to DIR/records.jsonl;
    another call runs what failed, what was killed, and what never began. Records of other machines count for nothing here.
    """
    from hpcgnn.study import records, runner
    from hpcgnn.study.commands import Commands

    study = _read(specification)
    runner.claim(study, folder)
    _tell_of_others(records.read(folder), quiet=quiet or as_json)
    left = runner.missing(study, folder)
    total = sum(run.key in only for run in left) if only else len(left)
    if ctx.obj is not None:
        ctx.obj.advice = f"what has finished is recorded in {folder}, and the same command runs the rest"
    say: Callable[[str], None] = (lambda sentence: None) if quiet or as_json else console.note
    with console.progress(f"study {study.name}", total, quiet=quiet or as_json) as advance:
        outcome = runner.run_all(
            study, folder, Commands(launcher=launcher, data=data), runner.Listener(say, advance), only
        )
    done = len(study.runs) - len(runner.missing(study, folder))
    if as_json:
        facts = {"ran": outcome.finished, "failed": outcome.failed, "elsewhere": outcome.elsewhere}
        print(
            json.dumps({"study": study.name, "folder": str(folder), "runs": len(study.runs), "finished": done} | facts)
        )
    elif not quiet:
        console.line(f"{done} of {len(study.runs)} runs have finished; `hpcgnn study report {folder}` reports on them")
    if outcome.failed:
        raise HpcgnnError(
            f"{outcome.failed} of {total} runs failed: {folder}/{runner.RUNS}/KEY/output.txt says what each printed, and the "
            "same command tries them again"
        )


def _tell_of_others(found: Sequence[Any], *, quiet: bool) -> None:
    from hpcgnn.study import records

    here = records.machine_facts()["id"]
    for machine, others in records.by_machine(found).items():
        if machine != here and not quiet:
            told = records.in_words(others[-1].machine)
            console.note(
                f"{len(others)} records are of another machine, {told}: they are kept apart, and their runs run here as well"
            )


@study.command(epilog="\b\nExamples\n  hpcgnn study report s\n  hpcgnn study report s --model model.toml")
@_folder
@_machine
@click.option(
    "--model", "fitted", metavar="MODEL.toml", type=click.Path(path_type=Path),
    help="Also hold the predictions of this cost model (hpcgnn model fit) against what was measured.",
)  # fmt: skip
@_as_json
def report(folder: Path, machine: str, fitted: Path | None, as_json: bool) -> None:
    """Write DIR/report.html and DIR/report.md about whatever has finished."""
    from hpcgnn.report import model_section
    from hpcgnn.report.page import as_html
    from hpcgnn.report.study_page import study_of
    from hpcgnn.study import markdown
    from hpcgnn.study.summary import summarise

    comparison = None if fitted is None else model_section.comparison_with(fitted, folder, machine)
    summary = summarise(folder, machine)
    html = as_html(study_of(folder, summary, comparison))
    summary = model_section.added(summary, comparison)
    pages = {"report.html": html, "report.md": markdown.page(summary)}
    for name, text in pages.items():
        with whole_file.replacing(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    written = [str(folder / name) for name in pages]
    if as_json:
        print(json.dumps({"study": summary.name, "files": written, "notes": summary.notes}))
        return
    for note in summary.notes:
        console.note(note)
    for each in summary.tables:
        _show(each.title, each.header, each.rows, each.label_columns)
    console.line(f"written: {', '.join(written)}")


@study.command(epilog="\b\nExamples\n  hpcgnn study check s\n  hpcgnn study check s targets.toml")
@_folder
@click.argument("file", metavar="[TARGETS.toml]", required=False, type=click.Path(path_type=Path))
@_machine
@_as_json
def check(folder: Path, file: Path | None, machine: str, as_json: bool) -> None:
    """Say which targets were reached; exits with 1 where any was not.

    TARGETS.toml: those that ship with the specification of that name, unless another file is given.
    """
    from hpcgnn.study import targets
    from hpcgnn.study.summary import finished_groups, read_study

    wanted = targets.read(file or targets.default_path(read_study(folder)))
    found = targets.verdicts(finished_groups(folder, machine), wanted)
    names = ("target", "configuration", "wanted", "found", "reached")
    rows = [tuple(getattr(each, name) for name in names) for each in found]
    missed = sum(each.reached != targets.YES for each in found)
    if as_json:
        print(json.dumps({"reached": not missed, "targets": [dict(zip(names, row, strict=True)) for row in rows]}))
    else:
        _show(f"targets of {folder}", names, rows, len(names))
    if missed:
        raise HpcgnnError(f"{missed} of {len(found)} targets of {folder} were not reached or not measured")


@study.command(
    epilog="\b\nExamples\n  hpcgnn study submit SPEC.toml --out s --dry-run\n"
    "  hpcgnn study submit strong --out s --sbatch --partition=cpu --sbatch --time=30"
)
@click.argument("specification", metavar="SPEC.toml|NAME")
@_out
@click.option(
    "--sbatch", "options", metavar="OPTION", multiple=True, help="More of sbatch; may be given several times."
)
@click.option("--dry-run", is_flag=True, help="Print the commands that would be run, and write nothing.")
@_as_json
def submit(specification: str, folder: Path, options: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Submit what is not finished yet as Slurm job arrays, one for each number of nodes; DIR must be seen by all nodes.

    Every task runs one configuration and records it in DIR, where `hpcgnn study report` finds what has finished so far. Runs
    count as finished whatever machine they ran on: that of this command is none of the nodes.
    """
    from hpcgnn.study import records, runner
    from hpcgnn.study import submit as slurm

    study = _read(specification)
    done = {record.key for record in records.read(folder) if record.is_finished} if folder.is_dir() else set()
    left = [run for run in runner.order(study.runs) if run.key not in done]
    arrays = slurm.arrays(study, folder, left, options)
    jobs: list[str] = []
    if not dry_run:
        runner.claim(study, folder)
        jobs = [slurm.submit(array) for array in arrays]
    if as_json:
        told = [{"nodes": array.nodes, "runs": array.keys, "command": array.command} for array in arrays]
        print(json.dumps({"study": study.name, "jobs": jobs, "arrays": told}))
    elif dry_run:
        for array in arrays:
            console.line(f"# {array.keys_path.name}: {len(array.keys)} runs on {array.nodes} nodes\n{array.in_words()}")
    else:
        for array, job in zip(arrays, jobs, strict=True):
            console.line(f"job {job}: {len(array.keys)} runs on {array.nodes} nodes")


@study.command("list", epilog="\b\nExamples\n  hpcgnn study list\n  hpcgnn study list quick")
@click.argument("specification", metavar="[SPEC.toml|NAME]", required=False)
@_as_json
def list_(specification: str | None, as_json: bool) -> None:
    """The specifications that ship with the package; or the keys of the runs of one."""
    from hpcgnn.study import specification as specifications

    if specification is not None:
        keys = [run.key for run in _read(specification).runs]
        print(json.dumps({"runs": keys}) if as_json else "\n".join(keys))
        return
    found = [specifications.read(path) for path in specifications.shipped().values()]
    if as_json:
        print(
            json.dumps({each.name: {"kind": each.kind, "runs": len(each.runs), "about": each.about} for each in found})
        )
    else:
        rows = [(each.name, each.kind, str(len(each.runs)), each.about) for each in found]
        _show("specifications", ("name", "kind", "runs", "about"), rows, 4)


def _read(specification: str) -> Specification:
    from hpcgnn.study import specification as specifications

    return specifications.read(specifications.find(specification))


def _show(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], label_columns: int) -> None:
    shown = Table(title=title, title_justify="left", box=box.SIMPLE)
    for number, name in enumerate(header):
        shown.add_column(name, justify="left" if number < label_columns else "right", overflow="fold")
    for row in rows:
        shown.add_row(*(cell.replace(" [", "\n[", 1) for cell in row))
    console.stdout().print(shown)
