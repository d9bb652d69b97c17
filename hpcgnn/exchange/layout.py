"""The place of each row of a message in the bytes that travel (SuperGCN §3.3.2, AdaQP §5).

A buffer holds one segment for each peer, in rank order, padded to a multiple of :data:`BLOCK_BYTES`. A segment begins with the
payloads of its rows, ordered by bit-width and then as the plan orders the rows; 4 bytes of parameters follow for each row of 8
bits or fewer. MPI counts blocks, so its limit of 2**31 items is 128 GiB, not 2 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.base.typed import MESSAGE_BITS, QUANTIZED_BITS
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes

BLOCK_BYTES = 64


@dataclass(frozen=True)
class Group:
    """The rows of one bit-width in a buffer; (n,) int64 each."""

    bits: int
    rows: torch.Tensor  # numbers of the rows, ascending
    payload_at: torch.Tensor  # byte offsets of their payloads
    params_at: torch.Tensor  # and of their parameters

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Its three tensors, in the order of the fields."""
        return self.rows, self.payload_at, self.params_at

    def of(self, chosen: torch.Tensor) -> Group:
        """The part of this group whose rows are set in ``chosen`` (n,) bool."""
        return Group(self.bits, *(each[chosen] for each in self.tensors))


@dataclass(frozen=True)
class Layout:
    """One rank's buffer in one direction."""

    blocks: np.ndarray  # (P,) int64 number of blocks of each peer
    groups: tuple[Group, ...]  # one for each bit-width that occurs
    padding: torch.Tensor  # (n,) int64 offsets of the bytes of no row; senders clear them, as they travel too

    @property
    def num_bytes(self) -> int:
        """Size of the buffer in bytes."""
        return int(self.blocks.sum()) * BLOCK_BYTES

    def to(self, torch_device: torch.device) -> Layout:
        """The same layout with its tensors on a device."""
        groups = tuple(Group(g.bits, *(each.to(torch_device) for each in g.tensors)) for g in self.groups)
        return Layout(self.blocks, groups, self.padding.to(torch_device))


def make_layout(counts: np.ndarray, bits: np.ndarray, width: int) -> Layout:
    """The layout of rows of ``width`` values: ``counts`` (P,) int64 rows per peer, ``bits`` (rows,) uint8 of each row."""
    peer = np.repeat(np.arange(counts.size), counts)
    order = np.lexsort((bits, peer))  # stable: rows of one peer and bit-width keep their order
    sizes = np.array([payload_bytes(width, int(b)) for b in range(max(MESSAGE_BITS) + 1)])[bits[order]]
    has_params = bits[order] <= max(QUANTIZED_BITS)
    # From here on, arrays are in the order of rows in the buffer; `peer` is the same in both orders.
    unpadded = np.bincount(peer, weights=sizes, minlength=counts.size).astype(np.int64)
    payload = _padded(unpadded, PARAMS_BYTES)
    params = np.bincount(peer[has_params], minlength=counts.size) * PARAMS_BYTES
    blocks = _padded(payload + params, BLOCK_BYTES) // BLOCK_BYTES
    starts = _starts(blocks) * BLOCK_BYTES
    payload_at = starts[peer] + _within(sizes, counts)
    params_at = (starts + payload)[peer] + _within(has_params * PARAMS_BYTES, counts)
    groups = []
    for found in np.unique(bits):
        chosen = np.flatnonzero(bits[order] == found)
        ascending = chosen[np.argsort(order[chosen])]
        arrays = (order[ascending], payload_at[ascending], params_at[ascending])
        groups.append(Group(int(found), *(torch.from_numpy(array.astype(np.int64)) for array in arrays)))
    gaps = [(starts + unpadded, starts + payload), (starts + payload + params, starts + blocks * BLOCK_BYTES)]
    padding = np.concatenate([_ranges(first, last) for first, last in gaps])
    return Layout(blocks, tuple(groups), torch.from_numpy(padding))


def _padded(sizes: np.ndarray, to: int) -> np.ndarray:
    return -(-sizes // to) * to


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.cumsum(sizes) - sizes


def _ranges(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The numbers of all ranges from ``first`` (n,) up to, and without, ``last`` (n,), one range after the other."""
    lengths = last - first
    return np.repeat(first - _starts(lengths), lengths) + np.arange(lengths.sum())


def _within(sizes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(rows,) offset of each row from the first row of its peer, given the sizes of rows and the peers' counts of rows."""
    ends = np.concatenate(([0], np.cumsum(sizes)))
    firsts = np.concatenate(([0], np.cumsum(counts)))[:-1]
    return ends[:-1] - np.repeat(ends[firsts], counts)


class RowBits:
    """The bit-width of each row, one of ``MESSAGE_BITS``; ``sent`` (s,) and ``received`` (r,) uint8.

    layouts: layouts of the messages to and from this rank, by number of columns; made when they are first needed. of_ranks:
    number of rows of all ranks by bit-width; counted when it is first needed.
    """

    def __init__(self, sent: np.ndarray, received: np.ndarray) -> None:
        self.sent, self.received = sent.astype(np.uint8), received.astype(np.uint8)
        self.layouts: dict[int, tuple[Layout, Layout]] = {}
        self.of_ranks: dict[str, int] | None = None

    def counts(self) -> np.ndarray:
        """(len(MESSAGE_BITS),) int64 number of rows that are sent with each bit-width."""
        return np.bincount(self.sent, minlength=max(MESSAGE_BITS) + 1)[list(MESSAGE_BITS)].astype(np.int64)


class RowRanges:
    """The range of each row's values, largest minus least, in the messages since the last :meth:`take`."""

    def __init__(self, rows: int, torch_device: torch.device) -> None:
        self.squares = torch.zeros(rows, device=torch_device)  # (s,) float32 sum of the squared ranges over messages
        self.messages = 0
        self.width: int | None = None  # number of columns F, None before the first message

    def add(self, wire: torch.Tensor, layout: Layout, width: int) -> None:
        """Add the ranges of an encoded message: a row's range is its scale times its number of steps. Rows of 16 and 32 bits have
        no scale, and add nothing."""
        words = wire.view(-1)[: wire.numel() // PARAMS_BYTES * PARAMS_BYTES].view(torch.int32)
        for group in layout.groups:
            if group.bits in QUANTIZED_BITS:
                # A word is two bfloat16, zero-point and scale; its upper half is that of the scale as float32.
                scale = (words[group.params_at // PARAMS_BYTES] & -0x10000).view(torch.float32)
                self.squares.index_add_(0, group.rows, (scale * (2**group.bits - 1)) ** 2)
        self.messages, self.width = self.messages + 1, width

    def take(self) -> np.ndarray:
        """(s,) float64 mean squared range of each row; starts again from zero."""
        mean = self.squares.double().cpu().numpy() / max(self.messages, 1)
        self.squares, self.messages = torch.zeros_like(self.squares), 0
        return mean
