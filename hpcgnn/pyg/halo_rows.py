"""Rows of halo nodes that are sent as they are, whatever the bit-widths of messages are: degrees, ids, types, and rows that a
model's own code takes.

They come and go by one alltoallv, which is not overlapped. Rows of layers travel as the messages of :mod:`hpcgnn.exchange`.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from hpcgnn.base.host import index_array
from hpcgnn.graph.local_graph import LocalGraph, asked_rows
from hpcgnn.kernels.again import once
from hpcgnn.kernels.autograd import recorded_linear
from hpcgnn.kernels.keyed import splitmix64
from hpcgnn.plan.plan import offsets_of


class HaloRows:
    """The exchange for one graph: n owned nodes and h halo nodes on this rank. All methods are collective, also backward."""

    def __init__(self, graph: LocalGraph) -> None:
        self._graph = graph
        self._of_type: dict[int, HaloRowsOfType] = {}
        self._ids: torch.Tensor | None = None
        self._both_ways: bool | None = None
        self._rows: tuple[torch.Tensor, np.ndarray, np.ndarray] | None = None

    @property
    def num_owned(self) -> int:
        """Number of owned nodes, n. Not collective."""
        return self._graph.num_nodes

    @property
    def num_extended(self) -> int:
        """Number of owned and halo nodes, n + h. Not collective."""
        return self._graph.num_nodes + self._graph.halo_positions.size

    def of(self, types: tuple[int, ...]) -> HaloRows:
        """The exchange of the nodes of the first of ``types``; without types, of all nodes. Not collective."""
        if not types:
            return self
        return self._of_type.setdefault(types[0], HaloRowsOfType(self, types[0]))

    def of_ends(self, types: tuple[int, ...]) -> tuple[HaloRows, HaloRows]:
        """Those of the sources and of the destinations of edges of these types. Not collective."""
        return self.of(types[:1]), self.of(types[1:])

    def asked(self) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        """The owned rows, by id, that are in other ranks' halos; their number by rank; the number of halo nodes by rank."""
        if self._rows is None:
            graph = self._graph
            ids, asked_counts, counts = asked_rows(graph.world, graph.halo_positions, graph.node_offsets)
            if graph.order.nodes is not None:
                ids = torch.argsort(graph.order.nodes)[ids]
            self._rows = ids, asked_counts, counts
        return self._rows

    def know_ids(self) -> None:
        """Learn :attr:`original_ids`. The first call is collective."""
        if self._ids is None:
            ids = torch.cat((self._graph.original_ids, self._graph.halo_ids))
            self._ids = ids.to(self._graph.device.torch_device)

    @property
    def original_ids(self) -> torch.Tensor:
        """(n + h,) int64 original ids of the owned nodes and of the halo nodes, after :meth:`know_ids`. Not collective."""
        assert self._ids is not None
        return self._ids

    def is_undirected(self) -> bool:
        """Return whether the graph has each of its edges in both directions. The first call is collective.

        64-bit hashes of all edges, parallel ones once, add up to those of the reversed edges. Other edges pass this test with a
        probability of 2**-64.
        """
        if self._both_ways is None:
            source, destination = np.unique(index_array(self.original_ids[self._graph.edge_index]), axis=1).astype(
                np.uint64
            )
            sums = [
                (splitmix64(one ^ splitmix64(other))).sum(dtype=np.uint64)
                for one, other in ((source, destination), (destination, source))
            ]
            total = self._graph.world.allreduce(np.array(sums, np.uint64).view(np.int64), what="hashes of edges")
            self._both_ways = bool(total[0] == total[1])
        return self._both_ways

    def extended(self, x: torch.Tensor) -> torch.Tensor:
        """(n, ...) rows of any type to (n + h, ...), differentiable. Collective."""
        return recorded_linear(x, self._widened, self.add_copies)

    def summed(self, wide: torch.Tensor) -> torch.Tensor:
        """(n + h, ...) values of the copies of nodes to (n, ...) sums at their owners, differentiable. Collective."""
        return recorded_linear(wide, self.add_copies, self._widened)

    def _widened(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, self.fetch(x)))

    def fetch(self, x: torch.Tensor) -> torch.Tensor:
        """(h, ...) rows of the halo nodes from (n, ...). Collective."""
        rows, counts, _ = self.asked()
        return self._moved(x[rows.to(x.device)], counts)

    def add_copies(self, wide: torch.Tensor) -> torch.Tensor:
        """See :meth:`summed`, without a gradient."""
        rows, _, counts = self.asked()
        owned = self.num_owned
        return wide[:owned].index_add(0, rows.to(wide.device), self._moved(wide[owned:], counts))

    def _moved(self, rows: torch.Tensor, counts: np.ndarray) -> torch.Tensor:
        flat = rows.detach().cpu().reshape(len(rows), math.prod(rows.shape[1:])).contiguous()
        came, _ = once(lambda: self._graph.world.alltoallv(flat, counts))
        return came.view(-1, *rows.shape[1:]).to(rows.device)


class HaloRowsOfType(HaloRows):
    """The exchange of the nodes of one type, n of them owned and h in the halo, in the order of ``graph.nodes_by_type``."""

    def __init__(self, whole: HaloRows, kind: int) -> None:
        super().__init__(whole._graph)
        self._whole, self._kind = whole, kind

    @property
    def num_owned(self) -> int:
        """Number of owned nodes of the type."""
        return self._graph.nodes_by_type.owned[self._kind].numel()

    @property
    def num_extended(self) -> int:
        """Number of owned and halo nodes of the type."""
        return self.num_owned + self._graph.nodes_by_type.halo[self._kind].numel()

    @property
    def original_ids(self) -> torch.Tensor:
        """(n + h,) int64, of the type's nodes."""
        if self._ids is None:
            ids = self._whole.original_ids
            self._ids = ids[(self._graph.nodes_by_type.type == self._kind).to(ids.device)]
        return self._ids

    def asked(self) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        """As of all nodes, with the numbers of the type's nodes. Collective at first."""
        if self._rows is None:
            (rows, asked_counts, counts), nodes = self._whole.asked(), self._graph.nodes_by_type
            is_asked, is_halo = nodes.type[rows] == self._kind, nodes.type[self._graph.num_nodes :] == self._kind
            self._rows = nodes.number[rows[is_asked]], _true_in(is_asked, asked_counts), _true_in(is_halo, counts)
        return self._rows


def _true_in(flags: torch.Tensor, counts: np.ndarray) -> np.ndarray:
    """(P,) number of true ones among the ``counts`` (P,) flags of each rank."""
    return np.diff(offsets_of(index_array(flags))[offsets_of(counts)])
