"""The version of the package, which setup.cfg reads, and the commit from which it was made."""

from __future__ import annotations

import subprocess
from pathlib import Path

__version__ = "0.2.0"
_PACKAGE = Path(__file__).parents[1]
COMMIT_FILE = _PACKAGE / "commit.txt"  # setup.py writes it into wheels and source distributions


def commit() -> str:
    """The commit, such as ``abcdef123456``, followed by ``, with local changes`` if there are some; empty if it is unknown."""
    if not (_PACKAGE.parent / ".git").exists():
        return COMMIT_FILE.read_text().strip() if COMMIT_FILE.exists() else ""
    command = ["git", "-C", str(_PACKAGE.parent), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or a checkout of another user
        return ""
    return found.replace("-dirty", ", with local changes")


def in_words() -> str:
    """The version, and the commit where it is known."""
    found = commit()
    return f"hpcgnn {__version__} (commit {found})" if found else f"hpcgnn {__version__}"
