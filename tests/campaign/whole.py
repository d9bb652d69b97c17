"""Whether a file under its own name is whole, as far as one can tell without knowing what should be in it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from hpcgnn.errors import HpcgnnError
from hpcgnn.train import archive


def is_temporary(name: str) -> bool:
    """Return whether a file's name, or one of a folder above it, says that it is not there for good."""
    return any(part.startswith(".") for part in Path(name).parts)


def not_whole(path: Path) -> str:
    """What is wrong with a file that was written while a fault was met; empty where nothing is, as far as one can tell."""
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
    """Return whether a page has its end."""
    return path.read_text(encoding="utf-8").rstrip().endswith("</html>")


def none_half(folder: Path) -> str:
    """What is wrong with a file below a folder that has a name for good; empty where nothing is."""
    named = (path for path in folder.rglob("*") if path.is_file() and not is_temporary(str(path.relative_to(folder))))
    return next(filter(None, map(not_whole, named)), "")
