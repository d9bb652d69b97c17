"""Compiled decoders of WebGraph's BV format; see :mod:`hpcgnn.sources.webgraph`.

Bits are numbered from the most significant one of the first byte. Every function that reads takes ``(data, at, end)``: the bytes,
the next bit, and the bit after the last one. It returns the value and the next bit, which is above ``end`` if there were too few
bits; the caller must not use the value then. All are in this file, because numba's cache does not notice changes in others.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.base.compiled import njit

UNARY, GAMMA, DELTA, ZETA = 0, 1, 2, 3
FULL, SHORT, WRONG, NARROW = 0, 1, 2, 3
"""Reasons for which :func:`decode` stops: it has reached the last node or the capacity; the bytes end; the bytes are not BV
format; a node has more successors than a row of the window."""
_LONGEST = 63


@njit(inline="always")
def _bits(data, at, end, count):
    if at + count > end or count > _LONGEST:
        return np.int64(0), end + 1
    value = np.int64(0)
    while count > 0:
        inside = at & 7
        here = min(8 - inside, count)
        value = (value << here) | ((np.int64(data[at >> 3]) >> (8 - inside - here)) & ((1 << here) - 1))
        at, count = at + here, count - here
    return value, at


@njit(inline="always")
def _unary(data, at, end):
    start = at
    while at < end:
        if at & 7 == 0 and data[at >> 3] == 0:
            at += 8
        elif data[at >> 3] >> (7 - (at & 7)) & 1:
            return np.int64(at - start), at + 1
        else:
            at += 1
    return np.int64(0), end + 1


@njit()
def _gamma(data, at, end):
    width, at = _unary(data, at, end)
    rest, at = _bits(data, at, end, width)
    return (np.int64(1) << width) + rest - 1 if at <= end else np.int64(0), at


@njit()
def _delta(data, at, end):
    width, at = _gamma(data, at, end)
    rest, at = _bits(data, at, end, width)
    return (np.int64(1) << width) + rest - 1 if at <= end else np.int64(0), at


@njit()
def _zeta(data, at, end, k):
    h, at = _unary(data, at, end)
    if at > end or h * k + k - 1 > _LONGEST - 1:
        return np.int64(0), end + 1
    left = np.int64(1) << (h * k)
    value, at = _bits(data, at, end, h * k + k - 1)
    if value < left:
        return value + left - 1, at
    bit, at = _bits(data, at, end, 1)
    return (value << 1) + bit - 1, at


@njit()
def _code(data, at, end, kind, k):
    if kind == GAMMA:
        return _gamma(data, at, end)
    if kind == ZETA:
        return _zeta(data, at, end, k)
    if kind == DELTA:
        return _delta(data, at, end)
    return _unary(data, at, end)


@njit(inline="always")
def _signed(natural):
    return (natural >> 1) ^ -(natural & 1)


@njit()
def _copied(data, at, end, codes, k, above, out):
    """Copy blocks of the successors ``above`` of an earlier node to ``out``; returns their number, or -1, and the next bit."""
    blocks, at = _code(data, at, end, codes[3], k)
    count, place, keep = 0, 0, True
    for block in range(blocks + 1):
        if block < blocks:
            size, at = _code(data, at, end, codes[1], k)
            size += block > 0
        else:
            size = above.size - place  # the size of the last block is not in the file: the block reaches the end
        if at > end or size < 0 or place + size > above.size:
            return -1, at
        if keep:
            if count + size > out.size:
                return -1, at
            out[count : count + size] = above[place : place + size]
            count += size
        place, keep = place + size, not keep
    return count, at


@njit()
def _intervals(data, at, end, node, least, out):
    """Write successors that are intervals of ids to ``out``; returns their number, or -1, and the next bit."""
    runs, at = _gamma(data, at, end)
    count, previous = 0, np.int64(0)
    for run in range(runs):
        value, at = _gamma(data, at, end)
        left = node + _signed(value) if run == 0 else previous + value + 1
        size, at = _gamma(data, at, end)
        size += least
        if at > end or size < 0 or count + size > out.size:
            return -1, at
        for place in range(size):
            out[count + place] = left + place
        count, previous = count + size, left + size
    return count, at


@njit()
def _residuals(data, at, end, node, code, k, out):
    """Write the remaining successors, ``out.size`` of them, to ``out``; returns the next bit."""
    previous = np.int64(0)
    for place in range(out.size):
        value, at = _code(data, at, end, code, k)
        if at > end:
            return at
        previous = node + _signed(value) if place == 0 else previous + value + 1
        out[place] = previous
    return at


@njit()
def _node(data, at, end, node, degree, codes, sizes, window, degrees, out):
    """Write the successors of one node to ``out`` (degree,), ascending; returns the next bit and the reason for the end."""
    k, least = sizes[0], sizes[1]
    reference = np.int64(0)
    if window.shape[0] > 1:
        reference, at = _code(data, at, end, codes[4], k)
    if at > end:
        return at, SHORT
    if reference >= window.shape[0] or reference > node:
        return at, WRONG
    count = 0
    if reference:
        row = (node - reference) % window.shape[0]
        count, at = _copied(data, at, end, codes, k, window[row, : degrees[row]], out)
    if count >= 0 and count < degree and least > 0:
        more, at = _intervals(data, at, end, node, least, out[count:])
        count = -1 if more < 0 else count + more
    if at > end:
        return at, SHORT
    if count < 0:
        return at, WRONG
    at = _residuals(data, at, end, node, codes[2], k, out[count:])
    if at > end:
        return at, SHORT
    out.sort()
    return at, FULL


@njit(cache=True)
def decode(data, at, end, node, nodes, codes, sizes, window, degrees, src, dst):
    """Decode nodes from ``node`` on, as long as their arcs fit into ``src`` and ``dst`` (m,) int64.

    codes: (5,) the codes of degrees, blocks, residuals, block counts and references. sizes: (2,) k of zeta, and the least length
    of an interval, 0 for none. window: (W + 1, c) int64, the successors of earlier nodes, of node v in row v % (W + 1); degrees:
    (W + 1,) their numbers. Returns the next bit, the next node, the number of arcs decoded, the reason for the end, and the next
    node's degree.
    """
    arcs = 0
    while node < nodes:
        degree, after = _code(data, at, end, codes[0], sizes[0])
        if after > end:
            return at, node, arcs, SHORT, 0
        if degree < 0 or degree > nodes:
            return at, node, arcs, WRONG, degree
        if arcs + degree > dst.size:
            return at, node, arcs, FULL, degree
        if degree > window.shape[1]:
            return at, node, arcs, NARROW, degree
        row = node % window.shape[0]
        out = dst[arcs : arcs + degree]
        if degree:
            after, reason = _node(data, after, end, node, degree, codes, sizes, window, degrees, out)
            if reason != FULL:
                return at, node, arcs, reason, degree
        window[row, :degree] = out
        degrees[row] = degree
        src[arcs : arcs + degree] = node
        at, node, arcs = after, node + 1, arcs + degree
    return at, node, arcs, FULL, 0
