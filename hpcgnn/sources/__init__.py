"""Sources of graphs: files, the loaders of PyG and OGB, and generators. The help of ``hpcgnn convert`` lists them."""

from __future__ import annotations

from pathlib import Path

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import SOURCES, ArraySource, Source, SourceInfo, Spec, parse_spec

__all__ = ["SOURCES", "ArraySource", "Source", "SourceInfo", "Spec", "open_source"]


def open_source(text: str, folder: Path) -> Source:
    """Open the source that ``text`` names; ``folder`` is for temporary files. Raises :class:`HpcgnnError`."""
    spec = parse_spec(text)
    if spec.kind not in SOURCES:
        raise HpcgnnError(
            f"{text!r} is not a source: a source begins with one of {', '.join(f'{kind}:' for kind in SOURCES)}"
        )
    source: Source = SOURCES[spec.kind](spec, folder)
    spec.finish()
    return source
