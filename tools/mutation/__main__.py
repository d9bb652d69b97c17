"""``python tools/mutation``: puts ``tools/``, of which this folder is a package, on the path and runs the command."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from mutation.command import mutation  # noqa: E402

mutation(prog_name="python tools/mutation")
