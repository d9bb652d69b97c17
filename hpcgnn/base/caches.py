"""Checks of the folders that environment variables name for libraries, before a library uses them.

Code in numba's and Triton's cache folders is run, so no other user may be able to write there. Without these variables, numba
and Triton keep compiled code beside its source or in the user's home folder. MPI makes a folder of its own in ``TMPDIR``, and
prints dozens of lines where it cannot.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError

_VARIABLES = ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR")
_TEMPORARY = "TMPDIR"


def check() -> None:
    """Raise HpcgnnError if a cache folder of compiled code belongs to another user or everybody may write there, or if
    ``TMPDIR`` is not a folder."""
    temporary = Path(os.environ.get(_TEMPORARY, ""))
    if temporary.exists() and not temporary.is_dir():
        raise HpcgnnError(
            f"{_TEMPORARY} is {temporary}, which is not a folder: set it to a folder for temporary files, or unset it"
        )
    for variable in _VARIABLES:
        folder = os.environ.get(variable, "")
        if folder and (problem := _problem(Path(folder))):
            raise HpcgnnError(
                f"{variable} is {folder}, {problem}, and compiled code in it is run: set it to a folder that only you can write"
            )


def _problem(folder: Path) -> str:
    try:
        found = folder.stat()
    except OSError:
        return ""  # the folder does not exist yet, or the library cannot use it
    if found.st_uid not in (os.geteuid(), 0):
        return "which belongs to another user"
    return "which everybody may write" if found.st_mode & stat.S_IWOTH else ""
