"""Second parsers of text formats, simple and without code of the package: they give the content of a mutated file, or None.

Each takes the bytes of a file and returns the digest of its graph (:func:`digests.of_edges`), or None if the format forbids
them.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from campaign.mutations.digests import of_edges

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_NODES_PER_EDGE, _ALWAYS_NODES = 8, 65_536


class Invalid(Exception):
    """The format forbids the file."""


def edge_list(content: bytes) -> str | None:
    """Lines ``src dst [weight]``."""
    try:
        rows = [line for line in _lines(content) if line.strip() and not line.startswith(("#", "%"))]
        if not rows:
            raise Invalid
        comma = "," in rows[0]
        table = [[word.strip() for word in row.split(",")] if comma else row.split() for row in rows]
        columns = len(table[0])
        if columns not in (2, 3) or any(len(row) != columns for row in table):
            raise Invalid
        edges = [(_whole(row[0]), _whole(row[1]), _weight(row[2]) if columns == 3 else 1.0) for row in table]
        count = 1 + max(max(s, d) for s, d, _ in edges)
        if min(min(s, d) for s, d, _ in edges) < 0 or count > max(_ALWAYS_NODES, _NODES_PER_EDGE * len(edges)):
            raise Invalid
    except Invalid:
        return None
    return of_edges(count, edges, weighted=columns == 3)


def metis(content: bytes) -> str | None:
    """A METIS ``.graph``: symmetric, with ids from 1, and ``nodes edges [fmt [ncon]]`` in the first line."""
    try:
        lines = [line.split() for line in _lines(content) if not line.lstrip().startswith("%")]
        header = lines[0] if lines else []
        if not 2 <= len(header) <= 4 or not all(re.fullmatch("[0-9]{1,17}", word, re.ASCII) for word in header):
            raise Invalid
        nodes, links = int(header[0]), int(header[1])
        fmt = (header[2] if len(header) > 2 else "0").zfill(3)
        if not re.fullmatch("[01]{3}", fmt) or nodes < 1:
            raise Invalid
        skip = int(fmt[0]) + int(fmt[1]) * (int(header[3]) if len(header) > 3 else 1)
        rows = lines[1:]
        while len(rows) > nodes and not rows[-1]:
            rows.pop()
        edges = _metis_edges(rows, skip, nodes, weighted=fmt[2] == "1")
        if len(rows) != nodes or len(edges) != 2 * links:
            raise Invalid
        if Counter(edges) != Counter((d, s, w) for s, d, w in edges):
            raise Invalid
    except Invalid:
        return None
    return of_edges(nodes, edges, weighted=fmt[2] == "1")


def _metis_edges(rows: list[list[str]], skip: int, nodes: int, *, weighted: bool) -> list[tuple[int, int, float]]:
    stride, edges = 1 + weighted, []
    for node, row in enumerate(rows):
        numbers = [_whole(word) for word in row]
        if len(numbers) < skip or (len(numbers) - skip) % stride:
            raise Invalid
        rest = numbers[skip:]
        if any(not 1 <= other <= nodes for other in rest[::stride]):
            raise Invalid
        weights = [float(w) for w in rest[1::2]] if weighted else [1.0] * len(rest)
        edges += [(node, other - 1, w) for other, w in zip(rest[::stride], weights, strict=True)]
    return edges


def matrix_market(content: bytes) -> str | None:
    """A square coordinate matrix, general or symmetric."""
    try:
        lines = _lines(content)
        banner = lines[0].lower().split() if lines else []
        signs = {"general": 0, "symmetric": 1, "hermitian": 1, "skew-symmetric": -1}
        fields = ("pattern", "real", "double", "integer", "unsigned-integer")
        if len(banner) != 5 or banner[:3] != ["%%matrixmarket", "matrix", "coordinate"]:
            raise Invalid
        if banner[3] not in fields or banner[4] not in signs:
            raise Invalid
        rows = [line.split() for line in lines[1:] if line.strip() and not line.startswith("%")]
        if not rows or len(rows[0]) != 3 or not all(re.fullmatch("[0-9]{1,18}", word, re.ASCII) for word in rows[0]):
            raise Invalid
        size, width, count = map(int, rows[0])
        weighted = banner[3] != "pattern"
        if any(len(row) != 2 + weighted for row in rows[1:]) or len(rows) != 1 + count or size != width or not size:
            raise Invalid
        entries = [(_whole(row[0]) - 1, _whole(row[1]) - 1, _weight(row[2]) if weighted else 1.0) for row in rows[1:]]
        if any(not (0 <= s < size and 0 <= d < size) for s, d, _ in entries):
            raise Invalid
        if size > max(_ALWAYS_NODES, _NODES_PER_EDGE * count):
            raise Invalid
        sign = signs[banner[4]]
        mirrored = [(d, s, sign * w if weighted else 1.0) for s, d, w in entries if s != d] if sign else []
    except Invalid:
        return None
    return of_edges(size, entries + mirrored, weighted=weighted)


def _lines(content: bytes) -> list[str]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid from error
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def _whole(word: str) -> int:
    if not _WHOLE.fullmatch(word) or not -(2**63) <= int(word) < 2**63:
        raise Invalid
    return int(word)


def _weight(word: str) -> float:
    with np.errstate(over="ignore"):
        if not _NUMBER.fullmatch(word) or not np.isfinite(np.float32(float(word))):
            raise Invalid
    return float(word)
