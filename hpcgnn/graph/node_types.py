"""One rank's view of a graph whose nodes have types, by type, as PyG's ``HeteroData`` has it."""

from __future__ import annotations

from dataclasses import dataclass
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


def features_by_type(
    meta: GraphMeta, nodes: NodesByType, features: torch.Tensor | Csr | None
) -> dict[str, torch.Tensor]:
    """(n_t, F_t) float32 features of the owned nodes of each type that has features, from those of all owned nodes (n, F)."""
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
