"""Rank 0 sends BYTES to rank 1: ``mpirun python transfer.py BYTES``."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
message = np.zeros(int(sys.argv[1]), dtype=np.uint8)
if comm.rank == 0:
    comm.Send(message, dest=1)
elif comm.rank == 1:
    comm.Recv(message, source=0)
comm.Barrier()
