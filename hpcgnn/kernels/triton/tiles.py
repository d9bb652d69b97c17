"""How many rows a program takes, for kernels that go through matrices row by row."""

from __future__ import annotations

import triton

from hpcgnn.kernels.triton import launch

WARP = 1024  # values of a tile on a GPU: 32 for each thread, so that several loads are on their way at a time
_INTERPRETED = 1 << 16  # a program costs the interpreter a millisecond or more, whatever its size
_MOST_WARPS = 16


def padded(width: int) -> int:
    """The power of two for a row of ``width`` values, as tiles have it."""
    return triton.next_power_of_2(max(width, 1))


def rows_of_tile(rows: int, width: int, values: int) -> int:
    """Rows of a tile of ``values`` values, of which a row has ``width``, all powers of two: one row at least.

    rows: those of the matrix. A GPU's tiles do not depend on it, as a kernel is compiled for each size of tile.
    """
    if launch.interprets():
        return max(1, min(_INTERPRETED // width, padded(rows)))
    return max(1, values // width)


def warps(values: int) -> int:
    """Warps of a program with a tile of so many values: one for each :data:`WARP` of them, as far as there are so many."""
    return min(max(values // WARP, 1), _MOST_WARPS)
