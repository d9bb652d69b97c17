"""Each rank reports its host, its threads, and the ranks with which it can share memory: ``mpirun python hosts.py [--world]``;
rank 0 prints JSON.

With --world the answers are the package's, whose import takes seconds on many ranks; otherwise they are MPI's.
"""

from __future__ import annotations

import json
import os
import socket
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
host = comm.Split_type(MPI.COMM_TYPE_SHARED)
window = MPI.Win.Allocate_shared(8 if host.rank == 0 else 0, 8, comm=host)
first = np.ndarray(buffer=window.Shared_query(0)[0], dtype=np.int64, shape=(1,))
if host.rank == 0:
    first[0] = comm.rank
window.Fence()
found = {
    "host": socket.gethostname(),
    "node": host.allgather(comm.rank),
    "threads": int(os.environ["OMP_NUM_THREADS"]),
    "written": int(first[0]),
    "messages": sum(name.startswith("vader_segment") for name in os.listdir("/dev/shm")),  # through the host's memory
}
if "--world" in sys.argv:
    from hpcgnn.world.mpi_world import MpiWorld

    nodes = MpiWorld().hosts()
    found["node"] = np.flatnonzero(nodes == nodes[comm.rank]).tolist()
everyone = comm.gather(found)
if comm.rank == 0:
    print(json.dumps(everyone))
window.Free()
