"""Aggregation where ranks share nodes: ``z = Dl · (L x' + R (N w + F · exchange(C w)))``, with ``w`` the rows ``S x'`` of a node.

Each rank writes its rows ``S x'`` to memory that the ranks of its node share. Rows for ranks of the same node are read there
(N). Rows for other nodes are summed up by the ranks that carry them (C). Received rows are put where all ranks of the node can
read them (F). So a row travels only once between two nodes, quantized if asked for, while rows within a node are in full
precision. The backward pass does the same with the transposed matrices. See :mod:`hpcgnn.graph.node_plan`.

Shapes: n owned nodes, F columns, w rows written on the node, v rows that arrive on it, s rows that this rank carries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.host import index_array
from hpcgnn.exchange import Exchange
from hpcgnn.exchange.exchange import Step
from hpcgnn.exchange.mailbox import Message
from hpcgnn.kernels import spmm
from hpcgnn.kernels.spmm import multiply
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.correction import Correction, signless
from hpcgnn.nn.linear_map import LinearMap, RowKind, Rows, destinations, first_sources, padded
from hpcgnn.nn.shared_wires import SharedWires


class NodeAggregator(Aggregator):
    """An :class:`Aggregator` whose ``exchange`` sends rows between nodes. plan: S of the rows written, R of the rows read."""

    def __init__(self, linear: LinearMap, exchange: Exchange, correction: Correction, kind: RowKind) -> None:
        super().__init__(linear, exchange, correction, kind)
        self.links = linear.links[0]
        self.wires = SharedWires(self.links.memory, self.links.node, self.links.far, self.backend)

    def _share(self, own: Any, x: Rows) -> None:
        """Write ``S x'`` to the memory of the node, and wait for its other ranks."""
        links, width = self.links, x.shape[1]
        links.memory.prepare(width * x.element_size())
        with self._aggregating:
            self.rows.multiply(self.plan.send, own, links.memory.written.own(width, x.dtype))  # pre-aggregate
        self._meet()
        shared_bytes = links.rows_between_ranks * width * x.element_size()
        self.exchange.messages.traffic.shared(self.exchange.id, shared_bytes)

    def _pre_aggregate(self, own: Any, step: Step) -> None:
        """Add up the rows that this rank carries to other nodes."""
        rows = step.rows_to_send()
        with self._aggregating:
            written = self.links.memory.written.all(rows.shape[1], rows.dtype)
            self.rows.multiply(self.links.carry, written, rows)

    def kept(self, message: Message) -> None:
        """Nothing: the rows of the node's other ranks are in memory that they write again."""

    def _aggregate_locally(self, x: Any, plus: Tensor | None = None, *, has_own: bool = False) -> Tensor:
        """``L x``, and the rows of the node's other ranks."""
        z, memory = super()._aggregate_locally(x, plus, has_own=has_own), self.links.memory
        return multiply(self.links.near, memory.written.all(z.shape[1], z.dtype), z, self.backend)

    def _add_received(self, message: Message, z: Tensor) -> None:
        """Put the received rows where all ranks of the node can read them, and add those that belong here."""
        links, memory = self.links, self.links.memory
        places = self.wires.places(message.codec, z.shape[1], z.dtype)
        if places is None:
            came = memory.arrived.own(z.shape[1], z.dtype)
            self.exchange.add_received(message, links.own, came.zero_())  # decode
        else:
            self.wires.put(message.received, places)
        self._meet()
        with self._aggregating:  # post-aggregate
            if places is None:
                multiply(links.far, memory.arrived.all(z.shape[1], z.dtype), z, self.backend)
            else:
                self.wires.add(places, z)

    def _meet(self) -> None:
        """Wait for the other ranks of the node.

        An aggregation has two such meetings: after rows are written, and after rows have been received. The next aggregation
        writes rows after the second meeting, when no rank reads the rows of this one any more, and receives rows only after its
        own first meeting.
        """
        self.exchange.messages.world.meet()
        with self.exchange.messages.timings.measure("communication_wait_seconds"):
            self.links.memory.meet()

    # -- information for policies -------------------------------------------------------------------------------------

    def _source_degrees(self, degrees: np.ndarray) -> np.ndarray:
        """The in-degrees for the rows written here, passed through shared memory to the ranks that carry them."""
        memory, dtype = self.links.memory, torch.float64
        memory.prepare(dtype.itemsize)
        mine = super()._source_degrees(degrees)
        memory.written.own(1, dtype)[:, 0] = torch.from_numpy(mine.astype(np.float64))
        memory.meet()
        first = first_sources(self.links.carry)
        found = memory.written.all(1, dtype)[torch.from_numpy(first).long(), 0].long()
        memory.meet()
        return index_array(found).copy()

    def _destination_degrees(self, degrees: np.ndarray) -> np.ndarray:
        """The in-degrees for the rows that arrive on this node, whichever rank owns the destination. The maximum over ranks is
        taken, because a *pre* row has only one destination.
        """
        far = self.links.far
        is_added = np.bincount(index_array(far.indices), minlength=far.num_cols) > 0
        known = np.zeros(far.num_cols, np.int64)
        known[is_added] = padded(degrees, far.num_rows)[index_array(destinations(far))[is_added]]
        return self._of_this_rank(self.links.node.allreduce(known, "max"))

    def _known_squares(self) -> np.ndarray:
        """Summed over the ranks of a node that add the row."""
        return self._of_this_rank(self.links.node.allreduce(self._square_columns(self.links.far)))

    def _of_this_rank(self, arrived: np.ndarray) -> np.ndarray:
        rows = self.links.memory.arrived
        return arrived[rows.first : rows.last]


class NodeCorrection(Correction):
    """A :class:`Correction` of stale rows from other nodes. Rows from ranks of this node are as fresh as the rank's own rows."""

    def _from_here(self, moving: Tensor) -> Tensor:
        z, near = super()._from_here(moving), self._linear.links[0].near
        return spmm(signless(near), self._written(moving), out=z, backend=self._backend)

    def _from_there(self, moving: Tensor) -> Tensor:
        links = self._linear.links[0]
        memory = links.memory
        sent = spmm(links.carry, self._written(moving), backend=self._backend)
        received, _ = self._world.alltoallv(sent, self._counts[0])
        memory.arrived.own(1, moving.dtype).copy_(received)
        memory.meet()
        return spmm(links.far, memory.arrived.all(1, moving.dtype), backend=self._backend)

    def _written(self, moving: Tensor) -> Tensor:
        """(w, 1): S ``moving`` of all ranks of the node, valid until the ranks write again. Collective."""
        memory = self._linear.links[0].memory
        memory.prepare(moving.element_size())
        memory.meet()
        spmm(self._plan.send, moving, out=memory.written.own(1, moving.dtype), accumulate=False, backend=self._backend)
        memory.meet()
        return memory.written.all(1, moving.dtype)
