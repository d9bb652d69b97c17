"""The number of rows of a program, for kernels that go through matrices row by row."""

from __future__ import annotations

import triton

from hpcgnn.kernels.triton import launch

WARP = 1024  # values of a warp's tile on a GPU: 32 for each thread, so that several loads are under way at a time
_INTERPRETED = 1 << 16  # the same for the interpreter, where a program of any size takes a millisecond or more
_MOST_WARPS = 16


def padded(width: int) -> int:
    """The smallest power of two of at least ``width``: the width of a tile for rows of ``width`` values."""
    return triton.next_power_of_2(max(width, 1))


def rows_of_tile(rows: int, width: int, values: int) -> int:
    """Number of rows, at least one, of a tile of ``values`` values with ``width`` values in a row; all are powers of two.

    rows: rows of the matrix. Tiles on GPUs do not depend on it, because each size of tile needs another compilation.
    """
    if launch.interprets():
        return max(1, min(_INTERPRETED // width, padded(rows)))
    return max(1, values // width)


def warps(values: int) -> int:
    """Number of warps of a program with a tile of ``values`` values: one for each :data:`WARP`, up to a limit."""
    return min(max(values // WARP, 1), _MOST_WARPS)
