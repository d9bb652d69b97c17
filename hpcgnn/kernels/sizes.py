"""Sizes of blocks, and sizes from which work is divided or done otherwise.

A trial of a training (:mod:`hpcgnn.train.account`) has small matrices that stand for larger ones. What depends on a size must
do with the small ones as it will do with those.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_share = 1.0
_MOST_BLOCKS = 32  # of a matrix in a trial, which takes less time with few


def scaled(size: int) -> int:
    """``size``, or its share in a context of :func:`scaled_by`."""
    return int(size * _share)


def block_size(size: int, whole: int) -> int:
    """The size of the blocks of ``whole``: ``size``, in a context of :func:`scaled_by` its share, at least 1."""
    return max(1, size if _share == 1.0 else max(int(size * _share), whole // _MOST_BLOCKS))


@contextlib.contextmanager
def scaled_by(share: float) -> Iterator[None]:
    """In this context, a matrix of ``share`` of a size is treated as one of that size is otherwise; on all threads."""
    global _share
    before, _share = _share, share
    try:
        yield
    finally:
        _share = before
