"""SIGKILL at random moments. Each command is then started again, and must end like an undisturbed one."""

from __future__ import annotations

from campaign.kills.cases import run
from campaign.section import Section

_ABOUT = """\
`convert`, `partition` (one process, and 2 ranks), `plan` and `train` (2 and 4 ranks) are killed by SIGKILL at a random moment.
In half of the cases it lies anywhere between start and end, and in the other half after the first file has appeared. Some
trainings are killed while a temporary file of a checkpoint exists. For a job on ranks, one rank, the launcher, or all of them are
killed. Then the same command is started again (`train` with `--resume`).

A case fails if one of these is found:

- processes of the first command still exist 30 s after the kill;
- a file that has its final name after the kill is incomplete;
- the second command does not end with exit code 0;
- a dataset, attribute, loss, metric or weight differs from that of an undisturbed command;
- an epoch is missing, or recorded twice;
- a file that an undisturbed command does not leave remains in the folder, in TMPDIR or in shared memory.

Open MPI leaves a session folder in TMPDIR when its launcher is killed. These folders are counted, and are not failures of
hpcgnn. A command that finds no epoch left to train does not write `ranks.json`. Runs with `--bits adaqp --staleness pipeline`
depend on the clock, so they replay the decisions of the undisturbed run.
"""

SECTION = Section("kills", "Killed at any moment", _ABOUT, run, share=2.0)
