"""Run under mpirun: rank 1 has less room than rank 0 sends."""

from __future__ import annotations

import click
import numpy as np

from hpcgnn.cli import main as command_line
from hpcgnn.comm import MpiWorld


def job(*_: object, **__: object) -> None:
    world = MpiWorld(timeout_seconds=20)
    try:
        world.broadcast_into(np.zeros(1000 if world.rank == 0 else 1), what="numbers of another file")
        world.allreduce(np.ones(1), what="the others")
    except KeyboardInterrupt as interruption:  # as click does
        raise click.Abort from interruption


command_line.cli.main = job
command_line.main()
