"""SIGKILL at random moments. Each command is then started again, and must end like an undisturbed one."""

from __future__ import annotations

from campaign.kills.cases import run
from campaign.section import Section

SECTION = Section(
    "kills",
    "Killed at any moment",
    "`convert`, `partition` (one process, and 2 ranks), `plan` and `train` (2 and 4 ranks) are ended by SIGKILL at "
    "a moment chosen by chance: in half of the cases anywhere between start and end, in the other half after the "
    "first file appeared; for checkpoints while a temporary file of one is there. Of a job on ranks, one rank, the "
    "launcher, or all are killed. Then the same command is started again (`train` with `--resume`). A case fails "
    "where processes of the first command are still there 30 s after the kill, where a file has its name after the "
    "kill and is not whole, where the second command does not end with exit code 0, where what both have made "
    "differs in any dataset, attribute, loss, metric or weight from what an undisturbed command made, where an "
    "epoch is missing or told twice, or where a file is left in the folder, in TMPDIR or in shared memory that an "
    "undisturbed command does not leave. Not hpcgnn's, and so counted but no failure: the session folder in TMPDIR "
    "that Open MPI leaves of a killed launcher. `ranks.json` is not written by a command that finds no epoch left "
    "to train. Runs with `--bits adaqp --staleness pipeline` replay the decisions of the undisturbed run, which "
    "depend on the clock.",
    run,
    share=2.0,
)
