"""Run under mpirun: the given programs, one after another, each as ``python -m mpi4py PROGRAM --small`` would run it."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

PROGRAMS = sys.argv[1:]
sys.path.insert(0, str(Path(PROGRAMS[0]).parent))
for program in PROGRAMS:
    sys.argv = [program, "--small"]
    runpy.run_path(program, run_name="__main__")
