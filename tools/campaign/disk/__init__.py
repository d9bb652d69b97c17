"""A disk that is full, read-only, or fails once, tried for every call that a command makes on a file."""

from __future__ import annotations

from campaign.disk.cases import run
from campaign.section import Section

_ABOUT = """\
A library in LD_PRELOAD counts the system calls with which `convert`, `partition`, `plan`, `train`, `train --resume`,
`predict` and `report` read, write, sync, create, close, rename, remove and resize files in one folder. It makes one of these
calls fail: with EIO, with ENOSPC, or by transferring only half of the bytes (a short transfer). Each command runs once for
each of its calls and each of these errors. If a command makes more than 60 calls of one kind, 60 of them are chosen at equal
distances. On 2 ranks, only one rank meets the fault, in cases chosen at random. In other cases the folder is a small tmpfs
that becomes full, after every third page or more often, or that is read-only.

A case passes only if all of this is true:

- The command ends with exit code 0 and the output of an undisturbed command, or with exit code 1 and one sentence that names
  the file and the system's reason. A short transfer must be continued.
- Every file under its final name is complete: either the old one or the new one.
- The same command, started once more (`train` with `--resume`), makes what an undisturbed command makes, and leaves no other
  file. The only exception is `ranks.json`, which a training with no epoch left to train does not write.
"""

SECTION = Section("disk", "A disk that fails", _ABOUT, run, share=2.0)
