"""``hpcgnn report``: a report about runs or a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli import console
from hpcgnn.cli.options import AS_JSON, QUIET

if TYPE_CHECKING:
    from hpcgnn.lab.report.page import Page

_MARK, _END_BYTES = b"Made by hpcgnn ", 200  # the last line of every report (report/templates), and where it is

_EXAMPLE = """
\b
Examples
  hpcgnn report run
  hpcgnn report run-32-bits run-8-bits run-2-bits --out bits.html
  hpcgnn report study-folder --out study.md --format md
"""


@click.command(epilog=_EXAMPLE)
@click.argument("folders", metavar="RUN [RUN ...] | DIR", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path),
              help="File to write.  [default: report.html or, with --format md, report.md]")  # fmt: skip
@click.option("--format", "kind", type=click.Choice(["html", "md"]),
              help="Format of the report. html: one self-contained file; md: Markdown with SVG pictures in files beside it.  "
                   "[default: md if --out ends in .md, else html]")  # fmt: skip
@QUIET
@AS_JSON
def report(folders: tuple[Path, ...], out: Path | None, kind: str | None, quiet: bool, as_json: bool) -> None:
    """Write a report about one run, about several runs side by side, or about a study.

    RUN is a run folder, made by `hpcgnn train --out`; if there are several, the others are compared with the first. DIR is the
    folder of a study, made by `hpcgnn study run --out`. Runs that are still running or were stopped are shown up to their last
    epoch. An earlier report is replaced, and no other file.
    """
    from hpcgnn.lab.report.page import as_html, as_markdown
    from hpcgnn.lab.study.records import check_folder

    is_markdown = kind == "md" or (kind is None and out is not None and out.suffix.lower() in (".md", ".markdown"))
    out = out or Path("report.md" if is_markdown else "report.html")
    for folder in folders:
        check_folder(folder)
    inputs = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    whole_file.check(out, inputs=inputs)  # before anything is drawn
    _check_replaced(out)
    page = _page(folders)
    text, pictures = as_markdown(page, out.stem) if is_markdown else (as_html(page), {})
    files = {out.with_name(name): svg for name, svg in pictures.items()}
    for path, content in (files | {out: text}).items():  # the page comes last, because it refers to the pictures
        with whole_file.replacing(path, inputs=inputs) as temporary:
            temporary.write_text(content, encoding="utf-8", errors="backslashreplace")
    if as_json:
        print(json.dumps({"out": str(out), "pictures": list(map(str, files)), "notes": list(page.notes)}))
    elif not quiet:
        rows = [("title", page.title), *(("note", note) for note in page.notes), ("written", str(out))]
        console.table("report", rows + ([("pictures beside the page", len(pictures))] if pictures else []))


def _check_replaced(out: Path) -> None:
    """Raise HpcgnnError if the report would replace a file that is not an earlier report."""
    end = b""
    try:
        if out.is_file():
            with out.open("rb") as stream:
                stream.seek(max(out.stat().st_size - _END_BYTES, 0))
                end = stream.read(_END_BYTES)
    except OSError as error:
        raise HpcgnnError(f"cannot read {out}, which the report would replace: {error.strerror}") from error
    if end and _MARK not in end:
        raise HpcgnnError(
            f"{out} is not a report of hpcgnn, so no report replaces it: choose another --out, or remove it"
        )


def _page(folders: tuple[Path, ...]) -> Page:
    from hpcgnn.lab.report.run_pages import comparison_page, run_page
    from hpcgnn.lab.report.study_page import study_of
    from hpcgnn.train.run_files import is_run

    studies = [folder for folder in folders if not is_run(folder)]
    if studies and len(folders) > 1:
        raise HpcgnnError(f"{studies[0]} is a study and needs a report of its own: give it alone, or give only runs")
    if studies:
        return study_of(studies[0])
    return run_page(folders[0]) if len(folders) == 1 else comparison_page(folders)
