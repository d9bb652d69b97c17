"""The questions of somebody who runs hpcgnn on other people's files."""

from __future__ import annotations

from collections.abc import Iterator

from campaign.section import Case, Section, Session
from campaign.security import files, names, source


def _run(session: Session) -> Iterator[Case]:
    yield from source.cases(session)
    yield from files.cases(session)
    yield from names.cases(session)


_ABOUT = """\
This section tests the statements of SECURITY.md. The source is searched for code that executes its input. The cases make and
read files that contain code, HDF5 files that point to other files, links in place of temporary files, and folders that belong
to other users. File names with blanks, quotes, commands, newlines and escape sequences are passed to every command and job
script.

A case fails if code is executed, if a file elsewhere is read or written, if a file mode lets other users write, if an escape
sequence is printed, or if the result differs from that with a plain name.
"""

SECTION = Section(
    "security",
    "Security",
    _ABOUT,
    _run,
    share=1.0,
)
