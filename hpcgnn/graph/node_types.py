"""One rank's view of a graph whose nodes have types, by type, as PyG's ``HeteroData`` has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from hpcgnn.base.host import index_array
from hpcgnn.data.schema import GraphMeta
from hpcgnn.kernels import Csr

EdgeKey = tuple[str, str, str]
"""(type of the sources, relation, type of the destinations)."""


@dataclass(frozen=True)
class NodesByType:
    """The n owned and h halo nodes of a rank by type. type: (n + h,) their types. number: (n + h,) the number of each among the
    nodes of its type here, owned nodes first. owned: for each type, (n_t,) local ids of the owned nodes, ascending. halo: for
    each type, (h_t,) places in the halo, ascending. All int64, on the host."""

    type: torch.Tensor
    number: torch.Tensor
    owned: tuple[torch.Tensor, ...]
    halo: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, meta: GraphMeta, owned: torch.Tensor, halo: torch.Tensor) -> NodesByType:
        """For original ids (n,) and (h,)."""
        kinds = meta.node_types_of(index_array(torch.cat((owned, halo))))
        count, number = owned.numel(), np.empty(kinds.size, np.int64)
        for kind in range(len(meta.node_types)):
            there = kinds == kind
            number[there] = np.arange(there.sum())
        found = torch.from_numpy(kinds)
        split = [tuple(torch.nonzero(part == kind)[:, 0] for kind in range(len(meta.node_types)))
                 for part in (found[:count], found[count:])]  # fmt: skip
        return cls(found, torch.from_numpy(number), *split)


@dataclass(frozen=True)
class FeaturesByType:
    """Dense features (n, F) of a rank's nodes whose types have columns of their own: a matrix for each type, and no zeros.

    shape: (n, F). rows: for each type, (n_t,) int64 local ids of its nodes. blocks: for each type, (n_t, F_t), in the order of
    ``rows``. first_columns: the first of the F columns of each type.
    """

    shape: tuple[int, int]
    rows: tuple[torch.Tensor, ...]
    blocks: tuple[torch.Tensor, ...]
    first_columns: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self.blocks[0].device

    @cached_property
    def places(self) -> tuple[slice | torch.Tensor, ...]:
        """:attr:`rows`, those of a type as a range where they are one, as in the order of the file."""
        is_range = [bool((rows.diff() == 1).all()) for rows in self.rows]
        firsts = [int(rows[0]) if rows.numel() else 0 for rows in self.rows]
        return tuple(
            slice(first, first + rows.numel()) if ranged else rows
            for rows, first, ranged in zip(self.rows, firsts, is_range, strict=True)
        )

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> FeaturesByType:
        """These features with all blocks changed, such as to another type."""
        return self.with_blocks(map(change, self.blocks))

    def with_blocks(self, blocks: Iterable[torch.Tensor]) -> FeaturesByType:
        """These features with other blocks of the same shapes."""
        found = replace(self, blocks=tuple(blocks))
        if "places" in vars(self):
            vars(found)["places"] = self.places  # on a GPU, to find them again would wait for it
        return found

    def to(self, torch_device: torch.device | str) -> FeaturesByType:
        """These features on a device."""
        moved = self.map(lambda block: block.to(torch_device))
        return replace(moved, rows=tuple(rows.to(torch_device) for rows in self.rows))

    def in_order(self, nodes: torch.Tensor) -> FeaturesByType:
        """These features of nodes in another order (n,), in which node k is the one that was ``nodes[k]``. Blocks are shared."""
        place = torch.empty_like(nodes)
        place[nodes] = torch.arange(nodes.numel(), device=nodes.device)
        return replace(self, rows=tuple(place[rows] for rows in self.rows))

    def csr(self) -> Csr:
        """The same values as a sparse matrix, which takes an index beside each value."""
        lengths = torch.zeros(self.shape[0], dtype=torch.int64, device=self.device)
        for rows, block in zip(self.rows, self.blocks, strict=True):
            lengths[rows] = block.shape[1]
        ends = lengths.cumsum(0)
        entries = int(lengths.sum())
        indices = torch.empty(entries, dtype=torch.int32, device=self.device)
        values = self.blocks[0].new_empty(entries)
        for rows, block, first in zip(self.rows, self.blocks, self.first_columns, strict=True):
            columns = torch.arange(block.shape[1], device=self.device)
            places = (ends - lengths)[rows, None] + columns
            indices[places], values[places] = (first + columns).int(), block
        return Csr(torch.cat((ends.new_zeros(1), ends)), indices, self.shape[1], values, check=False)


def features_by_type(
    meta: GraphMeta, nodes: NodesByType, features: torch.Tensor | Csr | FeaturesByType | None
) -> dict[str, torch.Tensor]:
    """(n_t, F_t) float32 features of the owned nodes of each type that has features, from those of all owned nodes (n, F)."""
    if isinstance(features, FeaturesByType):
        return {
            each.name: block[torch.argsort(rows)]
            for each, rows, block in zip(meta.node_types, features.rows, features.blocks, strict=True)
            if each.columns
        }
    found = {}
    for kind, rows, (first, last) in zip(
        meta.node_types, nodes.owned, pairwise(meta.column_offsets.tolist()), strict=True
    ):
        if first == last or features is None:
            continue
        there = rows.to(features.device)
        if isinstance(features, Csr):
            block = features.in_order(there, None)
            assert block.weight is not None
            x = block.weight.new_zeros(rows.numel(), last - first)
            of_row = torch.repeat_interleave(torch.arange(rows.numel(), device=x.device), block.indptr.diff())
            x[of_row, block.indices.long() - first] = block.weight
        else:
            x = features[there, first:last]
        found[kind.name] = x
    return found


def edges_by_type(meta: GraphMeta, types: torch.Tensor | None) -> dict[EdgeKey, torch.Tensor]:
    """(e_r,) int64, for each type of edges the numbers of its edges, ascending. types: (e,) of all edges."""
    assert types is not None
    order, counts = torch.argsort(types, stable=True), torch.bincount(types, minlength=meta.num_edge_types)
    return dict(zip(meta.edge_type_names, order.split(counts.tolist()), strict=True))
