"""Formats of files, recognised by their first bytes and not by their names."""

from __future__ import annotations

from pathlib import Path

HDF5, GZIP, ZIP = b"\x89HDF\r\n\x1a\n", b"\x1f\x8b", b"PK"
BZIP2, XZ = b"BZh", b"\xfd7zXZ\x00"
UTF8_MARK, UTF16_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")  # byte order marks
OTHER_COMPRESSED = {  # that Python does not read: the name, and the command that unpacks a file
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"7z\xbc\xaf\x27\x1c": ("7-Zip", "7z x"),
    b"\x1f\x9d": ("compress", "uncompress"),
    b"LZIP": ("lzip", "lzip -d"),
}


def begins_with(path: Path, signature: bytes) -> bool:
    """Return whether these are the first bytes of the file. Raises OSError if it cannot be read."""
    with path.open("rb") as stream:
        return stream.read(len(signature)) == signature
