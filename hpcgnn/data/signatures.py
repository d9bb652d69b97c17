"""Formats of files, recognised by their first bytes and not by their names."""

from __future__ import annotations

from pathlib import Path

HDF5, GZIP, ZIP = b"\x89HDF\r\n\x1a\n", b"\x1f\x8b", b"PK"


def begins_with(path: Path, signature: bytes) -> bool:
    """Return whether these are the first bytes of the file. Raises OSError if it cannot be read."""
    with path.open("rb") as stream:
        return stream.read(len(signature)) == signature
