"""The choice of an exchange's codec. Shapes: s rows sent, r rows received, F columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hpcgnn.exchange.codecs.base import Codec, CodecTools
from hpcgnn.exchange.codecs.delta import DeltaCodec
from hpcgnn.exchange.codecs.packed import PackedCodec
from hpcgnn.exchange.codecs.plain import PlainCodec
from hpcgnn.exchange.layout import BLOCK_BYTES, Group, Layout
from hpcgnn.exchange.row_bits import RowBits
from hpcgnn.world.world import World


def make_codec(
    world: World,
    name: str,
    counts: tuple[np.ndarray, np.ndarray],
    bits: RowBits | None,
    width: int,
    dtype: torch.dtype,
    tools: CodecTools,
    *,
    is_delta: bool,
) -> Codec:
    """The codec of the exchange ``name``, valid while its bit-widths stay. Collective.

    Args:
        counts: (P,) int64 rows to each rank, and from each rank.
        bits: bit-width of each row; None: rows travel unchanged.
        width: number of columns F.
        dtype: type of the values, for rows that travel unchanged.
        is_delta: whether differences to the rows that the receiver holds travel in place of rows; only with ``bits``.

    Raises:
        HpcgnnError: on every rank, where a rank has more rows or blocks of bytes than MPI can count.
    """
    if bits is None:
        world.check_counts(*counts, name)
        return PlainCodec(counts, width, dtype, tools)
    if width not in bits.layouts:
        world.check_counts(*counts, name)
        send, received = layouts = bits.make_layouts(counts, width, tools.scratch.torch_device)
        world.check_counts(send.blocks, received.blocks, f"{name} in blocks of {BLOCK_BYTES} bytes")
        bits.layouts[width] = layouts
    packed = PackedCodec(bits.layouts[width], width, tools)
    return DeltaCodec(packed) if is_delta else packed


def restored(state: dict[str, Any], tools: CodecTools) -> tuple[Codec, torch.Tensor]:
    """The codec and the received wire of a :meth:`Codec.received_state`; this codec can only decode."""
    if "rows" in state:
        return plain_rows(state["rows"].to(tools.scratch.torch_device), tools)
    none = np.zeros(0, np.int64)
    groups, torch_device = tuple(Group(*group) for group in state["groups"]), tools.scratch.torch_device
    sent, received = (Layout(none, own, torch.zeros(0, dtype=torch.int64)).to(torch_device) for own in ((), groups))
    return PackedCodec((sent, received), state["width"], tools), state["bytes"].to(torch_device)


def plain_rows(rows: torch.Tensor, tools: CodecTools) -> tuple[PlainCodec, torch.Tensor]:
    """Received rows (r, F) as a codec and its wire; this codec can only decode."""
    none = np.zeros(0, np.int64)
    return PlainCodec((none, none), rows.shape[1], rows.dtype, tools), rows.view(torch.uint8)
