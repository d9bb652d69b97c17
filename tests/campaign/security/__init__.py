"""The questions of somebody who runs hpcgnn on other people's files."""

from __future__ import annotations

from collections.abc import Iterator

from campaign.section import Case, Section, Session
from campaign.security import files, names, source


def _run(session: Session) -> Iterator[Case]:
    yield from source.cases(session)
    yield from files.cases(session)
    yield from names.cases(session)


SECTION = Section(
    "security",
    "Security",
    "What SECURITY.md says is tried. The source is searched for anything that runs what it reads. Files with code in them, HDF5"
    " files that point to others, links in the place of temporary files and folders of others are made and read. Names of files"
    " with blanks, quotes, commands, newlines and escape sequences go through every command and job script. A failure is code"
    " that runs, a file elsewhere that is read or written, a mode that lets others write, an escape sequence that is printed,"
    " and another result than that with a plain name.",
    _run,
    share=1.0,
)
