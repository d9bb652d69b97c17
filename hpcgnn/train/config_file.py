"""Files of settings: ``config.toml`` of a run folder, presets, and files that users pass to ``--config``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.settings import check_value
from hpcgnn.train.run_config import as_typed, settings_by_name


def read_file(path: Path) -> dict[str, Any]:
    """The unchecked content of a TOML file of settings. Raises HpcgnnError if the file cannot be read."""
    text = typed.text_of(path, "surrogateescape")  # names of files may be any bytes
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not a usage error, which rank 0 alone reports: the file may be missing or damaged on one node only.
        raise HpcgnnError(f"cannot read {path}: {error}") from error


def check_file(values: Mapping[str, Any], where: str) -> None:
    """Raise HpcgnnError for a value that its setting does not allow. ``where`` begins the sentence."""
    known = settings_by_name()
    for name, value in values.items():
        if name in known:
            check_value(known[name].setting, as_typed(known[name].setting, value), where)
