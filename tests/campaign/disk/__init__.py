"""A disk that is full, read-only, or fails once, tried for every call that a command makes on a file."""

from __future__ import annotations

from campaign.disk.cases import run
from campaign.section import Section

SECTION = Section(
    "disk",
    "A disk that fails",
    "A library in LD_PRELOAD counts the calls with which `convert`, `partition`, `plan`, `train`, `train --resume`, "
    "`predict` and `report` read, write, sync, create, close, rename, remove and resize files in one folder, and "
    "makes one of them fail: by EIO, by ENOSPC, or by transferring half of what was asked for. Each command is run "
    "once for each of its calls and each of these errors; of calls of one kind beyond 60, 60 spread evenly are "
    "tried. On 2 ranks one rank alone meets a fault, in cases chosen by chance. Beside that the folder is a small "
    "tmpfs that is full, after every third page or more often, or read-only. A case fails unless the command ends "
    "with exit code 0 and has made what it makes undisturbed, or with exit code 1 and one sentence that names the "
    "file and the system's reason; unless every file under its own name is then the old one or the new one, whole; "
    "and unless the same command, started once more (`train` with `--resume`), makes what an undisturbed one makes, "
    "and leaves no other file. Only `ranks.json` is not written by a training that has no epoch left to train. "
    "Short transfers are to be continued.",
    run,
    share=2.0,
)
