"""Commands in processes that see the stand-in device as the machine's only GPU (standin_everywhere)."""

from __future__ import annotations

import os
from pathlib import Path

from rank_pool import import_path

EVERYWHERE = Path(__file__).with_name("standin_everywhere")


def environment() -> dict[str, str]:
    """The environment of such a process, in which Triton's interpreter runs the kernels in Triton."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(EVERYWHERE), import_path()]),
        "TRITON_INTERPRET": "1",
        "PYTHONWARNINGS": "ignore",
    }
