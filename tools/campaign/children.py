"""Functions that all forked children use."""

from __future__ import annotations

import os


def redirect(stdout: str, stderr: str) -> None:
    """Close stdin, and write stdout and stderr to these files from now on."""
    for name, descriptor, flags in ((os.devnull, 0, os.O_RDONLY), (stdout, 1, os.O_WRONLY), (stderr, 2, os.O_WRONLY)):
        opened = os.open(name, flags | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
