"""A campaign against faults and long runs: ``python tools/campaign --help``.

section      the interface of a section: the section, its session and its cases
sections     the list of sections
run          runs sections and writes the outcome of their cases, one JSON file for each section
report       makes docs/reliability.md from those files
processes    starts commands as a user does, and judges how they end
tests/       tests of the campaign itself, which `make campaign` runs first
found/       a TOML file for each section: the defects that the campaign has found, with the regression test of each

Every other module or folder is one section. A section breaks things from outside: it ends processes, makes system calls fail,
cuts links. It uses the package itself only to make valid files and to read results,
and the helpers in ``tests/`` for graphs, threads as ranks, and processes of ranks.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
