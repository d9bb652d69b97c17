"""``python tests/campaign``: the folder is a package of ``tests/``, which is put on the path first."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from campaign.command import campaign  # noqa: E402

campaign(prog_name="python tests/campaign")
