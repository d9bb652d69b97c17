"""``python tools/pyg_zoo``: puts ``tools/``, of which this folder is a package, on the path and runs the zoo."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from pyg_zoo.command import zoo  # noqa: E402

zoo(prog_name="python tools/pyg_zoo")
