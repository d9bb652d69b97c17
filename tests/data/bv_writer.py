"""A writer of WebGraph's BV format for small graphs, in strings of bits: slow, and written from the format's
description alone.
"""

from __future__ import annotations

from pathlib import Path

USUAL = {"OUTDEGREES": "GAMMA", "BLOCKS": "GAMMA", "RESIDUALS": "ZETA", "BLOCK_COUNT": "GAMMA", "REFERENCES": "UNARY"}


def unary(number: int) -> str:
    return "0" * number + "1"


def gamma(number: int) -> str:
    binary = f"{number + 1:b}"
    return unary(len(binary) - 1) + binary[1:]


def delta(number: int) -> str:
    binary = f"{number + 1:b}"
    return gamma(len(binary) - 1) + binary[1:]


def minimal_binary(number: int, below: int) -> str:
    """The minimal binary code of ``number`` in [0, below), in which the first numbers are a bit shorter."""
    width = (below - 1).bit_length()
    short = (1 << width) - below
    if number < short:
        return f"{number:0{width - 1}b}" if width > 1 else ""
    return f"{number + short:0{width}b}" if width else ""


def zeta(number: int, k: int) -> str:
    number += 1
    h = (number.bit_length() - 1) // k
    left = 1 << (h * k)
    return unary(h) + minimal_binary(number - left, (left << k) - left)


def natural(number: int) -> int:
    return 2 * number if number >= 0 else -2 * number - 1


class Writer:
    """A writer. codes: by field. window: number of earlier nodes to copy from. least: the shortest interval (0: none). k: of
    zeta.
    """

    def __init__(self, window: int = 7, least: int = 4, k: int = 3, codes: dict[str, str] | None = None) -> None:
        self.window, self.least, self.k = window, least, k
        self.codes = USUAL | (codes or {})

    def write(self, base: Path, successors: list[list[int]]) -> None:
        """Write ``base``.graph and ``base``.properties."""
        bits = "".join(self.node(node, successors) for node in range(len(successors)))
        bits += "0" * (-len(bits) % 8)
        base.with_name(base.name + ".graph").write_bytes(int("1" + bits, 2).to_bytes(len(bits) // 8 + 1, "big")[1:])
        flags = " | ".join(f"{field}_{code}" for field, code in self.codes.items() if USUAL[field] != code)
        base.with_name(base.name + ".properties").write_text(
            "#BVGraph properties\ngraphclass=it.unimi.dsi.webgraph.BVGraph\nversion=0\n"
            f"nodes={len(successors)}\narcs={sum(map(len, successors))}\nwindowsize={self.window}\nmaxrefcount=3\n"
            f"minintervallength={self.least}\nzetak={self.k}\ncompressionflags={flags}\n"
        )

    def code(self, field: str, number: int) -> str:
        name = self.codes[field]
        return (
            zeta(number, self.k) if name == "ZETA" else {"UNARY": unary, "GAMMA": gamma, "DELTA": delta}[name](number)
        )

    def node(self, node: int, successors: list[list[int]]) -> str:
        """The shortest encoding of a node."""
        own = successors[node]
        start = self.code("OUTDEGREES", len(own))
        if not own:
            return start
        if not self.window:
            return start + self.extra(node, own)
        ways = [self.code("REFERENCES", 0) + self.extra(node, own)]
        for reference in range(1, min(self.window, node) + 1):
            if above := successors[node - reference]:
                ways.append(self.code("REFERENCES", reference) + self.copied(node, own, above))
        return start + min(ways, key=len)

    def copied(self, node: int, own: list[int], above: list[int]) -> str:
        kept = [successor in set(own) for successor in above]
        blocks, current = [0], True
        for keep in kept:
            if keep != current:
                blocks.append(0)
                current = keep
            blocks[-1] += 1
        blocks.pop()  # the last block extends to the end
        text = self.code("BLOCK_COUNT", len(blocks))
        text += "".join(self.code("BLOCKS", size - (place > 0)) for place, size in enumerate(blocks))
        return text + self.extra(node, [successor for successor in own if successor not in set(above)])

    def extra(self, node: int, rest: list[int]) -> str:
        if not rest:
            return ""
        text = ""
        if self.least:
            runs: list[list[int]] = []
            for successor in rest:
                if runs and successor == runs[-1][-1] + 1:
                    runs[-1].append(successor)
                else:
                    runs.append([successor])
            intervals = [run for run in runs if len(run) >= self.least]
            text, end = gamma(len(intervals)), None
            for run in intervals:
                text += gamma(natural(run[0] - node) if end is None else run[0] - end - 1) + gamma(
                    len(run) - self.least
                )
                end = run[-1] + 1
            rest = [successor for run in runs if len(run) < self.least for successor in run]
        before = None
        for successor in rest:
            text += self.code("RESIDUALS", natural(successor - node) if before is None else successor - before - 1)
            before = successor
        return text
