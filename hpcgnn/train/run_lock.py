"""The lock of a run folder: two jobs that train into the same folder would write each epoch twice, and mix their checkpoints.

The lock is a file in the folder that rank 0 holds while it trains. The system releases it when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from pathlib import Path
from typing import IO

from hpcgnn.base.errors import HpcgnnError, printable
from hpcgnn.base.whole_file import lock

NAME = ".lock"
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")  # variables in which batch systems name the job
_MOST_CHARACTERS = 200  # of a holder's name that are read from the file


class RunLock:
    """The lock of the folder ``path``, held from construction to :meth:`release`.

    Raises:
        HpcgnnError: if another process holds it.
        OSError: if the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        file = path / NAME
        stream = _locked(file)
        with contextlib.suppress(
            OSError
        ):  # on a full disk the lock has no name, and the run's own files say what is wrong
            stream.truncate(0)
            stream.write(_own_name())
            stream.flush()
        #: Remove the file, and let others have the lock. This also happens when the process exits.
        self.release = weakref.finalize(self, _release, file, stream)


def _release(file: Path, stream: IO[str]) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        stream.close()


def _locked(file: Path) -> IO[str]:
    while True:
        stream = file.open("a+")
        if not lock(stream, waits=False):
            with stream:
                stream.seek(0)
                holder = printable(stream.read(_MOST_CHARACTERS)) or "another process"
            raise HpcgnnError(f"{holder} is training into {file.parent}: wait until it ends, or choose another folder")
        if file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat()):
            return stream
        stream.close()  # its holder has ended and removed the file in between


def _own_name() -> str:
    jobs = [f", job {os.environ[name]}" for name in _JOBS if os.environ.get(name)]
    return f"process {os.getpid()} on {socket.gethostname()}{''.join(jobs[:1])}"
