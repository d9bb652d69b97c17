"""The place of each row of a message in the bytes that travel (SuperGCN §3.3.2, AdaQP §5).

A buffer holds one segment for each peer, in rank order, padded to a multiple of :data:`BLOCK_BYTES`. A segment begins with the
payloads of its rows, ordered by bit-width and then as the plan orders the rows; 4 bytes of parameters follow for each row of 8
bits or fewer, and then the *wide* columns of these rows, in bfloat16. MPI counts blocks, so its limit of 2**31 items is 128 GiB,
not 2 GiB.

Wide columns are the last columns of rows whose values steer exponents, as the scores of attention do. On the grid of a row of
few bits, their error would be a factor of e or more, and their range would make the grid of the other columns coarser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn.base.typed import MESSAGE_BITS, QUANTIZED_BITS
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes
from hpcgnn.plan.plan import offsets_of, ranges

BLOCK_BYTES = 64
WIDE_BITS = 16


@dataclass(frozen=True)
class Group:
    """The rows of one bit-width in a buffer, or some of their columns; (n,) int64 each."""

    bits: int
    rows: torch.Tensor  # numbers of the rows, ascending
    payload_at: torch.Tensor  # byte offsets of their payloads
    params_at: torch.Tensor  # and of their parameters
    columns: slice | None = None  # None: all

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Its three tensors, in the order of the fields."""
        return self.rows, self.payload_at, self.params_at

    def of(self, chosen: torch.Tensor) -> Group:
        """The part of this group whose rows are set in ``chosen`` (n,) bool."""
        return self._with(*(each[chosen] for each in self.tensors))

    def to(self, torch_device: torch.device) -> Group:
        """The same group with its tensors on a device."""
        return self._with(*(each.to(torch_device) for each in self.tensors))

    def _with(self, rows: torch.Tensor, payload_at: torch.Tensor, params_at: torch.Tensor) -> Group:
        return replace(self, rows=rows, payload_at=payload_at, params_at=params_at)


@dataclass(frozen=True)
class Layout:
    """One rank's buffer in one direction."""

    blocks: np.ndarray  # (P,) int64 number of blocks of each peer
    groups: tuple[Group, ...]  # one for each bit-width that occurs, and one for the wide columns of quantized rows
    padding: torch.Tensor  # (n,) int64 offsets of the bytes of no row; senders clear them, as they travel too

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(group.rows.numel() for group in self.groups if group.columns is None or group.columns.start == 0)

    @property
    def num_bytes(self) -> int:
        """Size of the buffer in bytes."""
        return int(self.blocks.sum()) * BLOCK_BYTES

    def to(self, torch_device: torch.device) -> Layout:
        """The same layout with its tensors on a device."""
        groups = tuple(group.to(torch_device) for group in self.groups)
        return Layout(self.blocks, groups, self.padding.to(torch_device))


def make_layout(counts: np.ndarray, bits: np.ndarray, width: int, wide_from: int | None = None) -> Layout:
    """The layout of rows of ``width`` values: ``counts`` (P,) int64 rows per peer, ``bits`` (rows,) uint8 of each row; wide
    columns begin at ``wide_from``."""
    wide = 0 if wide_from is None else max(width - wide_from, 0)
    if wide_from == 0:  # a row without parameters
        bits, wide = np.maximum(bits, WIDE_BITS), 0
    peer = np.repeat(np.arange(counts.size), counts)
    order = np.lexsort((bits, peer))  # stable: rows of one peer and bit-width keep their order
    has_params = bits[order] <= max(QUANTIZED_BITS)
    widths = np.where(has_params, width - wide, width)  # of the payloads
    sizes = payload_bytes(widths, bits[order].astype(np.int64))
    # From here on, arrays are in the order of rows in the buffer; `peer` is the same in both orders.
    unpadded = np.bincount(peer, weights=sizes, minlength=counts.size).astype(np.int64)
    payload = _padded(unpadded, PARAMS_BYTES)
    quantized = np.bincount(peer[has_params], minlength=counts.size)
    params, wide_bytes = quantized * PARAMS_BYTES, payload_bytes(wide, WIDE_BITS)
    used = payload + params + quantized * wide_bytes
    blocks = _padded(used, BLOCK_BYTES) // BLOCK_BYTES
    starts = offsets_of(blocks)[:-1] * BLOCK_BYTES
    payload_at = starts[peer] + _within(sizes, counts)
    params_at = (starts + payload)[peer] + _within(has_params * PARAMS_BYTES, counts)
    wide_at = (starts + payload + params)[peer] + _within(has_params * wide_bytes, counts)

    def group(bits: int, chosen: np.ndarray, at: np.ndarray, columns: slice | None) -> Group:
        ascending = chosen[np.argsort(order[chosen])]
        rows, payload, params = (torch.from_numpy(each[ascending].astype(np.int64)) for each in (order, at, params_at))
        return Group(bits, rows, payload, params, columns)

    groups = []
    for found in np.unique(bits):
        columns = slice(0, width - wide) if wide and found in QUANTIZED_BITS else None
        groups.append(group(int(found), np.flatnonzero(bits[order] == found), payload_at, columns))
    if wide and has_params.any():
        groups.append(group(WIDE_BITS, np.flatnonzero(has_params), wide_at, slice(width - wide, width)))
    gaps = [(starts + unpadded, starts + payload), (starts + used, starts + blocks * BLOCK_BYTES)]
    padding = np.concatenate([ranges(first, last - first) for first, last in gaps])
    return Layout(blocks, tuple(groups), torch.from_numpy(padding))


def _padded(sizes: np.ndarray, to: int) -> np.ndarray:
    return -(-sizes // to) * to


def _within(sizes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(rows,) offset of each row from the first row of its peer, given the sizes of rows and the peers' counts of rows."""
    ends = offsets_of(sizes)
    return ends[:-1] - np.repeat(ends[offsets_of(counts)[:-1]], counts)


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

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as a tensor and plain values."""
        return {"squares": self.squares, "messages": self.messages, "width": self.width}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self.squares = state["squares"].to(self.squares.device)
        self.messages, self.width = state["messages"], state["width"]
