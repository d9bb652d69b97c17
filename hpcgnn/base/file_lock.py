"""Locks of files between processes, also of several hosts if the file system has such locks."""

from __future__ import annotations

import fcntl
from typing import IO


def lock(stream: IO[str], *, waits: bool) -> bool:
    """Lock an open file; return False if another process holds the lock. The lock ends when the process closes the file or ends.

    waits: wait for the other process instead. On a file system without locks, nothing is locked, and the result is True.
    """
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError):  # POSIX allows both errors
        return False
    except OSError:
        pass
    return True
