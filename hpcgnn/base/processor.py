"""The name of this machine's processor, for records and reports of measurements."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The name in Linux's /proc/cpuinfo; without one, Python's name of the processor or of the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu"):
            return value.strip()
    return platform.processor() or platform.machine()
