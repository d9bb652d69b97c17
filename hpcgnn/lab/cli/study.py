"""``hpcgnn study``: the runs of a specification, their records, reports and targets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli import console
from hpcgnn.cli.options import AS_JSON, QUIET
from hpcgnn.lab.bench.names import PEERS, SAR
from hpcgnn.lab.study.tables import Table

if TYPE_CHECKING:
    from hpcgnn.lab.study.specification import Specification

_out = click.option(
    "--out", "folder", required=True, metavar="DIR", type=click.Path(path_type=Path), help="Folder of the study."
)
_specification = click.argument("specification", metavar="SPEC.toml|NAME")
_folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_machine = click.option("--machine", metavar="ID", default="", help="Identifier of the machine whose records count, if DIR has "
                        "records of several machines.  [default: this machine]")  # fmt: skip
EXAMPLES = """\b
Examples:
  hpcgnn study run quick --out s && hpcgnn study report s && hpcgnn study check s
  hpcgnn study run SPEC.toml --out s         (run again: finished runs are kept, the others are run)
  hpcgnn study submit SPEC.toml --out s --sbatch --time=30 --dry-run
"""


def _peers(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """The places of other libraries by name."""
    found = {}
    for text in given:
        name, _, given_path = text.partition("=")
        path = Path(given_path).expanduser()
        if name not in PEERS or not given_path:
            said = f"{text!r} should be NAME=PATH with a name of {', '.join(PEERS)}, such as dgl=env/bin/python"
            raise click.BadParameter(said)
        if not (path.is_dir() if name == SAR else path.is_file()):
            raise click.BadParameter(f"{path} is no {'folder' if name == SAR else 'program'}")
        found[name] = str(path)
    return found


@click.group(epilog=EXAMPLES)
def study() -> None:
    """Run many trainings from one specification, record them, and report on them.

    A specification is a TOML file with axes (settings and their values) and configurations. Some specifications ship with the
    package: see `hpcgnn study list`.
    """


@study.command(epilog="\b\nExamples\n  hpcgnn study run quick --out s\n  hpcgnn study run mine.toml --out s --only KEY")
@_specification
@_out
@click.option("--only", metavar="KEY", multiple=True, help="Run only the run with this key (`hpcgnn study list SPEC` prints the "
              "keys); may be given several times.")  # fmt: skip
@click.option("--launcher", metavar="COMMAND", default="", help="Command that starts the ranks instead of `hpcgnn launch`, such "
              "as 'srun --ntasks={ranks} --cpus-per-task={threads}'.")  # fmt: skip
@click.option("--data", metavar="DIR", default="", envvar="HPCGNN_DATA", show_envvar=True,
              help="Folder that replaces $DATA in the sources of graphs.")  # fmt: skip
@click.option("--peer", "peers", metavar="NAME=PATH", multiple=True, callback=_peers, help="Place of another library: the "
              "Python of an environment that has it (pyg, dgl), or a checkout of SAR's repository (sar); may be given several "
              "times.  [default: this environment]")  # fmt: skip
@QUIET
@AS_JSON
@click.pass_context
def run(
    ctx: click.Context, specification: str, folder: Path, only: tuple[str, ...], launcher: str, data: str, peers: dict[str, str],
    quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run all runs of a specification that have not finished yet.

    SPEC.toml is a file, and NAME a specification that ships with the package. Configurations are interleaved: each seed or
    repeat is a round of all configurations. Records are appended to DIR/records.jsonl. The same command again runs those that
    failed, were killed or never started. Runs that finished on another machine are run again, because times of different
    machines cannot be compared.
    """
    from hpcgnn.lab.study import records, runner
    from hpcgnn.lab.study.commands import Commands

    study = _read(specification)
    runner.claim(study, folder)
    is_quiet, here = quiet or as_json, records.machine_facts()["id"]
    for machine, others in records.by_machine(records.read(folder)).items():
        if machine != here and not is_quiet:
            told = f"{len(others)} records come from another machine ({records.in_words(others[-1].machine)})"
            console.note(f"{told}: they are kept, and their runs are also run here")
    left = runner.missing(study, folder)
    total = sum(run.key in only for run in left) if only else len(left)
    if ctx.obj is not None:
        ctx.obj.advice = lambda: f"finished runs are recorded in {folder}; the same command runs the others"
    how, say = Commands(launcher=launcher, data=data, peers=peers), (lambda _: None) if is_quiet else console.note
    with console.progress(f"study {study.name}", total, quiet=is_quiet) as advance:
        outcome = runner.run_all(study, folder, how, runner.Listener(say, advance), only)
    done = len(study.runs) - len(runner.missing(study, folder))
    if as_json:
        facts = {"study": study.name, "folder": str(folder), "runs": len(study.runs), "finished": done}
        counts = {"ran": outcome.finished, "failed": outcome.failed, "elsewhere": outcome.elsewhere}
        print(json.dumps(facts | counts))
    elif not quiet:
        console.line(f"{done} of {len(study.runs)} runs have finished: `hpcgnn study report {folder}` writes a report")
    if outcome.failed:
        raise HpcgnnError(
            f"{outcome.failed} of {total} runs failed: read their output in {folder}/{runner.RUNS}/KEY/output.txt; the same "
            "command runs them again"
        )


@study.command(epilog="\b\nExamples\n  hpcgnn study report s\n  hpcgnn study report s --model model.toml")
@_folder
@_machine
@click.option("--model", "fitted", metavar="MODEL.toml", type=click.Path(path_type=Path), help="Cost model, written by `hpcgnn "
              "model fit`, whose predictions are compared with the measurements.")  # fmt: skip
@AS_JSON
def report(folder: Path, machine: str, fitted: Path | None, as_json: bool) -> None:
    """Write DIR/report.html and DIR/report.md about finished runs."""
    from hpcgnn.lab.cost_model import compare, constants
    from hpcgnn.lab.report import study_page
    from hpcgnn.lab.report.page import as_html
    from hpcgnn.lab.study import records
    from hpcgnn.lab.study.summary import choose_machine, summarise

    comparison = None
    if fitted is not None:
        found = records.read(folder)
        comparison = compare.compare(constants.read_model(fitted), folder, found, choose_machine(found, machine))
    summary = summarise(folder, machine)
    html = as_html(study_page.study_of(folder, summary, comparison))
    if comparison is not None:
        summary = replace(summary, tables=(*summary.tables, *study_page.model_tables(comparison)))
    pages = {"report.html": html, "report.md": summary.markdown()}
    for name, text in pages.items():
        with whole_file.replacing(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    written = [str(folder / name) for name in pages]
    if as_json:
        print(json.dumps({"study": summary.name, "files": written, "notes": summary.notes}))
        return
    for note in summary.notes:
        console.note(note)
    for table in summary.tables:
        table.show()
    console.line(f"written: {' and '.join(written)}")


@study.command(epilog="\b\nExample\n  hpcgnn study export s > s.jsonl && extrap --json s.jsonl")
@_folder
@_machine
def export(folder: Path, machine: str) -> None:
    """Print the measurements of finished runs as lines of JSON for Extra-P, which fits models of scaling.

    Axes with numbers that vary, such as ranks, are parameters. Phases of an epoch are calls within it.
    """
    from hpcgnn.lab.study import export as lines_of

    for line in lines_of.lines(folder, machine):
        print(json.dumps(line))


@study.command(epilog="\b\nExamples\n  hpcgnn study check s\n  hpcgnn study check s targets.toml")
@_folder
@click.argument("file", metavar="[TARGETS.toml]", required=False, type=click.Path(path_type=Path))
@_machine
@AS_JSON
def check(folder: Path, file: Path | None, machine: str, as_json: bool) -> None:
    """Check the measurements in DIR against targets. The exit code is 1 if a target was not reached or not measured.

    TARGETS.toml is a file of targets; by default, the targets that ship with the specification of the same name.
    """
    from hpcgnn.lab.study import targets
    from hpcgnn.lab.study.summary import finished_groups, read_study

    wanted = targets.read(file or targets.default_path(read_study(folder)))
    found = targets.verdicts(finished_groups(folder, machine), wanted)
    missed = sum(each.reached != targets.YES for each in found)
    if as_json:
        print(json.dumps({"reached": not missed, "targets": [each._asdict() for each in found]}))
    else:
        names = targets.Verdict._fields
        Table(f"targets of {folder}", names, tuple(found), label_columns=len(names)).show()
    if missed:
        raise HpcgnnError(f"{missed} of {len(found)} targets of {folder} were not reached or not measured")


@study.command(
    epilog="\b\nExamples\n  hpcgnn study submit SPEC.toml --out s --dry-run\n"
    "  hpcgnn study submit strong --out s --sbatch --partition=cpu --sbatch --time=30"
)
@_specification
@_out
@click.option("--sbatch", "options", metavar="OPTION", multiple=True,
              help="Option that is passed to sbatch, such as --partition=cpu; may be given several times.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the sbatch commands, submit nothing and write nothing.")
@AS_JSON
def submit(specification: str, folder: Path, options: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Submit the runs that have not finished yet to Slurm.

    They become job arrays, one for each number of nodes. All nodes must see DIR. Every task runs one run and records it in
    DIR; `hpcgnn study report DIR` reports on those that have finished so far. Runs that finished on any machine are not
    submitted again, because this command usually runs on a login node.
    """
    from hpcgnn.lab.study import records, runner
    from hpcgnn.lab.study import submit as slurm

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
@AS_JSON
def list_(specification: str | None, as_json: bool) -> None:
    """List the shipped specifications, or the runs of one specification by their keys."""
    from hpcgnn.lab.study import catalogue

    if specification is not None:
        keys = [run.key for run in _read(specification).runs]
        print(json.dumps({"runs": keys}) if as_json else "\n".join(keys))
        return
    found = [catalogue.outline(path) for path in catalogue.shipped().values()]
    if as_json:
        print(json.dumps({each.name: {"kind": each.kind, "runs": each.runs, "about": each.about} for each in found}))
    else:
        rows = [(each.name, each.kind, str(each.runs), each.about.partition(". ")[0].rstrip(".")) for each in found]
        Table("specifications", ("name", "kind", "runs", "about"), tuple(rows), label_columns=4).show()


def _read(specification: str) -> Specification:
    from hpcgnn.lab.study import catalogue
    from hpcgnn.lab.study import specification as specifications

    return specifications.read(catalogue.find(specification))
