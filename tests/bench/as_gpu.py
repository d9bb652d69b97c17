"""Commands in processes for which the stand-in device is the machine's one GPU (standin_everywhere)."""

from __future__ import annotations

import os
from pathlib import Path

from rank_pool import import_path

EVERYWHERE = Path(__file__).with_name("standin_everywhere")


def environment() -> dict[str, str]:
    """Of such a process; Triton's interpreter runs what is in Triton there."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(EVERYWHERE), import_path()]),
        "TRITON_INTERPRET": "1",
        "PYTHONWARNINGS": "ignore",
    }
