"""Folders that an environment variable names, before a library uses them.

What lies in a folder of compiled code is run, so nobody else may write it. Without these variables numba and Triton keep what
they compile beside its source or in the user's home folder. MPI makes a folder of its own in that for temporary files, and says
dozens of lines where it cannot.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hpcgnn.errors import HpcgnnError

_VARIABLES = ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR")
_TEMPORARY = "TMPDIR"


def check() -> None:
    """Raise HpcgnnError where a folder of compiled code is another user's, or everybody may write it, or where temporary files
    would go into what is no folder."""
    temporary = Path(os.environ.get(_TEMPORARY, ""))
    if temporary.exists() and not temporary.is_dir():
        raise HpcgnnError(f"{_TEMPORARY} is {temporary}, which is no folder: name one for temporary files, or unset it")
    for variable in _VARIABLES:
        folder = os.environ.get(variable, "")
        if folder and (problem := _problem(Path(folder))):
            raise HpcgnnError(
                f"{variable} is {folder}, {problem}, and compiled code that lies there is run: name a folder that only you can"
                " write"
            )


def _problem(folder: Path) -> str:
    try:
        found = folder.stat()
    except OSError:
        return ""  # it is made, or cannot be used
    if found.st_uid not in (os.geteuid(), 0):
        return "which is another user's"
    return "which everybody may write" if found.st_mode & stat.S_IWOTH else ""
