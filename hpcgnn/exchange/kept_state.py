"""Checks of a checkpoint's :meth:`hpcgnn.exchange.kept.Kept.state` against the rows that travel now. Shapes: s rows sent, r
received, F columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import torch
import xxhash

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import MESSAGE_BITS, QUANTIZED_BITS, Count
from hpcgnn.exchange.passes import ExchangeId
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes

_PlainSlot = tuple[Count, bool, Count, Count]  # layer, is_backward, call, width


class _Box(msgspec.Struct, forbid_unknown_fields=True):
    """State of a mailbox: messages, each with the epoch in which it was sent, the sums of that epoch, and rows."""

    arrived: tuple[dict[str, Any], Count] | msgspec.UnsetType = msgspec.UNSET
    in_flight: tuple[dict[str, Any], Count] | msgspec.UnsetType = msgspec.UNSET
    last: torch.Tensor | msgspec.UnsetType = msgspec.UNSET
    average: torch.Tensor | msgspec.UnsetType = msgspec.UNSET
    arrived_sums: torch.Tensor | msgspec.UnsetType = msgspec.UNSET
    in_flight_sums: torch.Tensor | msgspec.UnsetType = msgspec.UNSET


class _Rows(msgspec.Struct, forbid_unknown_fields=True):
    """A message of :class:`hpcgnn.exchange.codecs.plain.PlainCodec`."""

    rows: torch.Tensor


class _Packed(msgspec.Struct, forbid_unknown_fields=True):
    """A message of :class:`hpcgnn.exchange.codecs.packed.PackedCodec`."""

    bytes: torch.Tensor
    groups: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]
    width: Count


class KeptState(msgspec.Struct):
    """The whole state of :class:`hpcgnn.exchange.kept.Kept`."""

    mailboxes: dict[_PlainSlot, _Box]
    differences: dict[_PlainSlot, tuple[torch.Tensor, torch.Tensor]]


class RowCounts(NamedTuple):
    """Numbers of rows that an exchange sends and receives, and of nodes to which it adds received rows."""

    sent: int
    received: int
    boundary_nodes: int


def check_kept(state: Any, counts: Mapping[ExchangeId, RowCounts], where: str) -> None:
    """Raise HpcgnnError unless ``state`` fits exchanges with these counts of rows. where: name of the file, for the error."""
    kept = typed.checked(state, KeptState, where)
    for slot, box in kept.mailboxes.items():
        (_, received, boundary), name = _rows_of(slot, counts, where)
        for message in (box.arrived, box.in_flight):
            if not isinstance(message, msgspec.UnsetType):
                _check_message(message[0], received, slot[3], f"{where}: {name}")
        for sums in (box.arrived_sums, box.in_flight_sums):
            if not isinstance(sums, msgspec.UnsetType):
                _check_rows(sums, boundary, slot[3], f"{where}: sums of {name}")
        for rows in (box.last, box.average):
            if not isinstance(rows, msgspec.UnsetType):
                _check_rows(rows, received, slot[3], f"{where}: {name}")
    for slot, differences in kept.differences.items():
        (*both, _), name = _rows_of(slot, counts, where)
        for rows, count in zip(differences, both, strict=True):
            _check_rows(rows, count, slot[3], f"{where}: {name}")


def shape_of(state: dict[str, Any]) -> int:
    """A 64-bit hash of the slots that have kept rows and of the epochs in which these were sent; the same on all ranks."""
    boxes = {
        slot: {name: value[1] if isinstance(value, tuple) else None for name, value in box.items()}
        for slot, box in state["mailboxes"].items()
    }
    told = repr((sorted((slot, sorted(box.items())) for slot, box in boxes.items()), sorted(state["differences"])))
    return xxhash.xxh3_64_intdigest(told.encode())


def _rows_of(slot: _PlainSlot, counts: Mapping[ExchangeId, RowCounts], where: str) -> tuple[RowCounts, str]:
    exchange = ExchangeId(slot[0], slot[1])
    if exchange not in counts:
        raise HpcgnnError(f"{where} has {exchange.name}, which this model does not exchange")
    return counts[exchange], exchange.name


def _check_rows(rows: torch.Tensor, count: int, width: int, where: str) -> None:
    if tuple(rows.shape) != (count, width) or not rows.is_floating_point():
        raise HpcgnnError(
            f"{where} are {rows.dtype} of shape {tuple(rows.shape)}, but the exchange needs numbers of shape ({count}, {width})"
        )


def _check_message(content: dict[str, Any], count: int, width: int, where: str) -> None:
    if "rows" in content:
        _check_rows(typed.checked(content, _Rows, where).rows, count, width, where)
        return
    packed = typed.checked(content, _Packed, where)
    if packed.bytes.dtype != torch.uint8 or packed.bytes.dim() != 2 or packed.width != width:
        raise HpcgnnError(f"{where} are not the bytes of rows of {width} values")
    seen = torch.zeros(count, dtype=torch.int64)
    for bits, rows, payload_at, params_at in packed.groups:
        places = (rows, payload_at, params_at)
        if bits not in MESSAGE_BITS or any(
            each.dtype != torch.int64 or each.shape != rows.shape[:1] for each in places
        ):
            raise HpcgnnError(f"{where} do not have the positions of rows as whole numbers")
        _check_range(rows, count, where)
        _check_range(payload_at, packed.bytes.numel() - payload_bytes(width, bits) + 1, where)
        if bits in QUANTIZED_BITS:
            _check_range(params_at, packed.bytes.numel() - PARAMS_BYTES + 1, where)
        seen.index_add_(0, rows, torch.ones_like(rows))
    if bool((seen != 1).any()):
        raise HpcgnnError(f"{where} do not have each of {count} rows once")


def _check_range(places: torch.Tensor, end: int, where: str) -> None:
    if places.numel() and not 0 <= int(places.min()) <= int(places.max()) < end:
        raise HpcgnnError(f"{where} have a position outside of the message")
