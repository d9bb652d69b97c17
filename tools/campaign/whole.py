"""Checks whether a file with its final name is complete, as far as this can be told without knowing its content."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.train import archive


def is_temporary(name: str) -> bool:
    """Return whether the name of a file, or of a folder above it, marks it as temporary."""
    return any(part.startswith(".") for part in Path(name).parts)


def not_whole(path: Path) -> str:
    """A phrase about a file that was written during a fault and is incomplete; empty if there is none, as far as can be told."""
    try:
        if path.suffix == ".pt":
            archive.read(path, path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".toml":
            tomllib.loads(path.read_text())
        elif path.suffix == ".html" and not is_whole_page(path):
            return f"{path.name} is half a page"
    except (HpcgnnError, OSError, ValueError) as error:
        return f"{path.name} is not whole: {error}"
    return ""


def is_whole_page(path: Path) -> bool:
    """Return whether a page is complete up to its end."""
    return path.read_text(encoding="utf-8").rstrip().endswith("</html>")


def none_half(folder: Path) -> str:
    """A phrase about an incomplete file with a final name below a folder; empty if there is none."""
    named = (path for path in folder.rglob("*") if path.is_file() and not is_temporary(str(path.relative_to(folder))))
    return next(filter(None, map(not_whole, named)), "")
