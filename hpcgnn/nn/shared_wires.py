"""Quantized rows that the ranks of a node read directly from received messages.

Codes take a fraction of the memory of the floats that they represent, so caches hold more of them, and no rank has to write a
matrix of floats for the others.

Shapes: v rows that arrive on a node, F columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from hpcgnn.exchange.codecs import Codec, PackedCodec
from hpcgnn.kernels import Csr
from hpcgnn.kernels.fusing import adds_from_codes
from hpcgnn.kernels.messages import spmm_rows
from hpcgnn.world import World
from hpcgnn.world.node_memory import NodeMemory


@dataclass(frozen=True, eq=False)
class Places:
    """The places of the rows of all messages that a node has received. bits: bit-width of all rows. begin, end: this rank's
    message among the ``all_bytes`` of all messages. payload_at, params_at: (v,) int64 byte offsets.
    """

    bits: int
    begin: int
    end: int
    all_bytes: int
    payload_at: torch.Tensor
    params_at: torch.Tensor


class SharedWires:
    """The received messages of one direction of an aggregation. memory: of the node. far: (n, v), the sums over received rows."""

    def __init__(self, memory: NodeMemory, node: World, far: Csr, backend: str) -> None:
        self._memory, self._node, self._far, self._backend = memory, node, far, backend
        self._places: WeakKeyDictionary[Codec, Places | None] = WeakKeyDictionary()

    def places(self, codec: Codec, width: int, dtype: torch.dtype) -> Places | None:
        """The places for messages of ``codec``, or None if decoding rows first is better. Made once for each codec: collective
        on the node, with the same answer on all its ranks.
        """
        if not isinstance(codec, PackedCodec) or dtype != torch.float32:
            return None
        if codec not in self._places:
            self._places[codec] = self._found(codec, width)
        return self._places[codec]

    def put(self, wire: torch.Tensor, places: Places) -> None:
        """Copy this rank's message to the node's memory; all ranks of the node can read it after they have met."""
        self._memory.arrived.bytes(places.all_bytes)[places.begin : places.end] = wire.view(-1)

    def add(self, places: Places, z: torch.Tensor) -> None:
        """Add ``far`` times all rows that the node has received to ``z`` (n, F)."""
        wires, where = self._memory.arrived.bytes(places.all_bytes), (places.payload_at, places.params_at)
        spmm_rows(self._far, wires, *where, places.bits, z.shape[1], z, backend=self._backend, check=False)

    def _found(self, codec: PackedCodec, width: int) -> Places | None:
        """The places, if all rows have the same bit-width and reading codes is faster; else None."""
        rows, layout = self._memory.arrived, codec.layouts[1]
        groups, num_bytes = layout.groups, layout.num_bytes
        bits = -1 if len(groups) > 1 else groups[0].bits if groups else 0
        said = self._node.allgather(np.array([bits, num_bytes, self._far.num_entries]))
        largest = int(said[:, 0].max())
        all_bytes, entries = (int(total) for total in said[:, 1:].sum(0))
        fits = all_bytes <= rows.total * width * torch.float32.itemsize
        is_uniform = bool(np.isin(said[:, 0], (0, largest)).all())
        if not fits or not is_uniform or largest <= 0 or not adds_from_codes(largest, entries, rows.total, width):
            return None
        begin = int(said[: self._node.rank, 1].sum())
        mine = torch.zeros(rows.last - rows.first, 2, dtype=torch.int64)
        for group in groups:
            mine[group.rows] = torch.stack((group.payload_at, group.params_at), 1) + begin
        # Between the messages of two aggregations; all ranks of the node send all others the same.
        told, _ = self._node.alltoallv(mine.repeat(self._node.size, 1), np.full(self._node.size, mine.shape[0]))
        return Places(largest, begin, begin + num_bytes, all_bytes, told[:, 0].clone(), told[:, 1].clone())
