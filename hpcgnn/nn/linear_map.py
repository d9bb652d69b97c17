"""The matrices of an aggregation on one rank, and its rows: floats here (float32 or bfloat16), 8-bit integers in
:mod:`hpcgnn.nn.int8`.

Shapes: n owned nodes, F columns, s rows sent, r rows received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.host import index_array
from hpcgnn.exchange import QuantizedRows
from hpcgnn.exchange.codecs import Codec
from hpcgnn.exchange.mailbox import Message
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.node_plan import NodeRoute
from hpcgnn.kernels import Csr, buffers, pack_bf16
from hpcgnn.kernels.narrow import speeds_up_sums
from hpcgnn.kernels.spmm import multiply, products_by_blocks
from hpcgnn.nn.config import BF16, EMULATED
from hpcgnn.nn.on_disk import DiskRows
from hpcgnn.plan import AggregationPlan, SparseMatrix
from hpcgnn.world import World
from hpcgnn.world.node_memory import NodeMemory

Rows = Tensor | FeaturesOnDisk  # (n, F), that are aggregated


def as_csr(matrix: SparseMatrix) -> Csr:
    """The matrix as kernels take it."""
    return Csr(matrix.indptr, matrix.indices, matrix.num_cols, check=False)


@dataclass(frozen=True, eq=False)
class NodeLinks:
    """The exchange of rows between the ranks of a node, in one direction.

    memory: the shared memory. carry: C (s, w). near: R N (n, w). far: R F (n, v). own: the identity for those of the v rows
    that come to this rank. rows_between_ranks: number of rows that this rank reads and that another rank of its node has
    written or received.
    """

    memory: NodeMemory
    node: World
    carry: Csr
    near: Csr
    far: Csr
    own: Csr
    rows_between_ranks: int

    @classmethod
    def of(cls, memory: NodeMemory, node: World, route: NodeRoute, receive: Csr) -> NodeLinks:
        """The links of a route, for the matrix ``receive`` R (n, rows read)."""
        carry, near, far = (as_csr(matrix) for matrix in (route.carry, route.near, route.far))
        mine = memory.arrived.last - memory.arrived.first
        own = Csr(torch.arange(mine + 1), torch.arange(mine, dtype=torch.int32), mine, check=False)
        between = sum(
            int(((matrix.indices < rows.first) | (matrix.indices >= rows.last)).sum())
            for matrix, rows in ((carry, memory.written), (near, memory.written), (far, memory.arrived))
        )
        return cls(memory, node, carry, receive.composed_with(near), receive.composed_with(far), own, between)


@dataclass(frozen=True, eq=False)
class LinearMap:
    """``z = Dl · (L x' + R · exchange(S x'))`` with ``x' = Dr · x``.

    plan: L, S and R. left, right: (n, 1) diagonals Dl and Dr, or None for the identity. backend: of the kernels. links: where
    ranks share nodes, those of this direction and of the reverse direction.
    """

    plan: AggregationPlan[Csr]
    left: Tensor | None = None
    right: Tensor | None = None
    backend: str = "auto"
    links: tuple[NodeLinks, ...] = ()

    def reverse(self) -> LinearMap:
        """The map of the backward pass."""
        return LinearMap(self.plan.reverse(), self.right, self.left, self.backend, self.links[::-1])


# Sums of fewer entries, or of narrower rows, may be slower with bfloat16, rounding included: those of rows that the caches hold.
_LEAST_ENTRIES_A_ROW = 12
_LEAST_WIDTH = 64


def gathers_bf16(csr: Csr, width: int) -> bool:
    """Return whether ``csr`` has so many entries for each row of x, which are so wide, that rounding x to bfloat16 first is
    faster.

    The time of rounding grows with the rows of x, and that of the sum with the entries, each by its width. So the size of x does
    not matter, and ranks with parts of different sizes mostly decide alike.
    """
    return width >= _LEAST_WIDTH and csr.num_entries >= _LEAST_ENTRIES_A_ROW * csr.num_cols


def rounds_sums(compute: Any, backend: str, torch_device: torch.device) -> bool:
    """Return whether sums in the arithmetic ``compute`` read bfloat16 rows, where these are large enough."""
    if compute == EMULATED:
        return torch_device.type == "cpu"  # however slow
    return compute == BF16 and speeds_up_sums(backend, torch_device)


class FloatRows:
    """The rows of an aggregation, as floats: what a step asks about its rows is answered here.

    rounds: whether rows are rounded to bfloat16 before they are added up, where that is faster; sums are float32. All products
    with ``x'`` read the rounded rows, also those for other ranks. is_repeatable: whether an aggregation can be repeated bit for
    bit: integers would be rounded anew.
    """

    is_repeatable = True

    def __init__(self, linear: LinearMap, *, rounds: bool = False) -> None:
        self.linear, self._rounds = linear, rounds

    def scaled(self, x: Any, *, overwrites: bool = False) -> Any:
        """``x' = Dr x`` of rows (n, F), in the form in which it is aggregated. overwrites: x may be written to."""
        right, rounds = self.linear.right, self._is_rounded(x)
        if isinstance(x, FeaturesOnDisk):
            return DiskRows(x, right, self.linear.plan.local, rounds=rounds)
        if rounds:
            return pack_bf16(x, None if right is None else right.view(-1), backend=self.linear.backend)
        if right is None:
            return x.contiguous()
        if overwrites:
            return x.mul_(right)
        return torch.mul(x, right, out=buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device))

    def multiply(self, matrix: Csr, x: Any, out: Tensor | None = None, *, accumulate: bool = False) -> Tensor:
        """``matrix @ x``, for x as :meth:`scaled` has made it; in ``out``, or added to it."""
        if isinstance(x, DiskRows):
            assert not accumulate, "a layer adds to the sums of features on disk afterwards"
            return x.times(matrix, out, self.linear.backend)
        return multiply(matrix, x, out, self.linear.backend, accumulate=accumulate)

    def in_blocks(self, matrix: Csr, x: Tensor, rows: int) -> Iterator[tuple[slice, Tensor]]:
        """``matrix @ Dr x`` in blocks of ``rows`` rows (:func:`hpcgnn.kernels.spmm.products_by_blocks`)."""
        if self._is_rounded(x):
            return products_by_blocks(matrix, self.scaled(x), rows, self.linear.backend)
        scale = None if self.linear.right is None else self.linear.right.view(-1)
        return products_by_blocks(matrix, x, rows, self.linear.backend, scale=scale)

    def _is_rounded(self, x: Rows) -> bool:
        return self._rounds and x.dtype == torch.float32 and gathers_bf16(self.linear.plan.local, x.shape[1])

    def pre_aggregate(self, x: Any, rows: Tensor, codec: Codec) -> QuantizedRows | None:
        """Write ``S x'`` to ``rows`` (s, F), and return those rows that are 8-bit integers already and can be sent as such."""
        self.multiply(self.linear.plan.send, x, rows)
        return None

    def note(self, x: Any, message: Message, z: Tensor) -> None:
        """Take note of ``z`` (n, F), which has been completed with the rows of ``message``."""


InIntegers = Callable[[LinearMap, Any], FloatRows]  # its second argument: an Int8


@dataclass(frozen=True, eq=False)
class RowKind:
    """The kind of the rows of an aggregator.

    features, gradients: make the rows of a map in 8-bit integers, forward and backward; None: they stay floats. nodes: the (s,)
    and (r,) owned nodes for which sent and received rows stand, or -1 where only the other rank knows the node; None: they
    follow from the plan. are_summed: whether rows are added up, so that they may be rounded to bfloat16; copies stay exact.
    """

    features: InIntegers | None = None
    gradients: InIntegers | None = None
    nodes: tuple[np.ndarray, np.ndarray] | None = None
    are_summed: bool = False

    def reverse(self) -> RowKind:
        """The rows of the backward pass."""
        return RowKind(self.gradients, self.features, are_summed=self.are_summed)

    def rows(self, linear: LinearMap, compute: Any) -> FloatRows:
        """The rows of a map in the arithmetic ``compute``, its name or 8-bit integers (:class:`hpcgnn.nn.int8.Int8`), as far as
        the kind allows it."""
        if isinstance(compute, str):
            rounds = self.are_summed and rounds_sums(compute, linear.backend, linear.plan.local.device)
            return FloatRows(linear, rounds=rounds)
        return FloatRows(linear) if self.features is None else self.features(linear, compute)


MOVED = RowKind()  # rows that are only moved to other ranks stay what they are


def destinations(receive: Csr) -> Tensor:
    """(r,) int64: for each column of R, one row of the result to which the received row is added. A *pre* row has only one."""
    found = torch.zeros(receive.num_cols, dtype=torch.int64, device=receive.device)
    found[receive.indices.long()] = receive.entry_rows()
    return found


def padded(degrees: np.ndarray, rows: int) -> np.ndarray:
    """(rows,) int64: the in-degrees of the owned nodes, followed by zeros."""
    return np.concatenate((degrees, np.zeros(rows - degrees.size, degrees.dtype)))


def first_sources(send: Csr) -> np.ndarray:
    """(s,) int64: the first source of each row of S, none of which is empty."""
    return index_array(send.indices)[index_array(send.indptr)[:-1]]
