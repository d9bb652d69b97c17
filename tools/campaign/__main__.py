"""``python tools/campaign``: puts ``tools/``, of which this folder is a package, on the path and runs the campaign."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from campaign.command import campaign  # noqa: E402

campaign(prog_name="python tools/campaign")
