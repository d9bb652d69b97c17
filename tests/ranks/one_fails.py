"""Run under mpirun: rank 1 raises an error while the others wait for it."""

from __future__ import annotations

import numpy as np

from hpcgnn.cli import main as command_line
from hpcgnn.comm import MpiWorld


def job(*_: object, **__: object) -> None:
    world = MpiWorld(timeout_seconds=60)
    if world.rank == 1:
        raise ValueError("only rank 1 knows")
    world.allreduce(np.ones(1), what="the others' numbers")


command_line.cli.main = job
command_line.main()
