"""The name of this machine's processor, for records and reports of what was measured on it."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """As Linux calls it, else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu"):
            return value.strip()
    return platform.processor() or platform.machine()
