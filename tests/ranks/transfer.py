"""Rank 0 sends BYTES to rank 1, which prints the seconds that took: ``mpirun python transfer.py BYTES``."""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
message = np.zeros(int(sys.argv[1]), dtype=np.uint8)
comm.Barrier()
started = time.perf_counter()
if comm.rank == 0:
    comm.Send(message, dest=1)
elif comm.rank == 1:
    comm.Recv(message, source=0)
    print(time.perf_counter() - started)
comm.Barrier()
