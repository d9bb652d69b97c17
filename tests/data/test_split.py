"""Rules of splits."""

from __future__ import annotations

import pytest

from hpcgnn.data.split import parse_split
from hpcgnn.errors import HpcgnnError


def test_no_share_is_negative() -> None:
    for text in ("random:0.6,-0.2,0.2", "random:-0.5,1,0.5", "per-class:20,-1"):
        with pytest.raises(HpcgnnError, match="is not understood"):
            parse_split(text)
