"""One rank's view of a graph whose nodes have types, by type, as PyG's ``HeteroData`` has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcgnn.base.host import index_array
from hpcgnn.data.schema import GraphMeta
from hpcgnn.kernels import Csr

if TYPE_CHECKING:
    from hpcgnn.graph.local_graph import LocalGraph

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


def features_by_type(graph: LocalGraph) -> dict[str, torch.Tensor]:
    """:attr:`LocalGraph.x_dict`."""
    meta, found = graph.meta, {}
    for kind, rows in enumerate(graph.nodes_by_type.owned):
        first, last = meta.column_offsets[kind : kind + 2].tolist()
        if first == last:
            continue
        there = rows.to(graph.device.torch_device)
        if isinstance(graph.features, Csr):
            block = graph.features.in_order(there, None)
            assert block.weight is not None
            x = block.weight.new_zeros(rows.numel(), last - first)
            of_row = torch.repeat_interleave(torch.arange(rows.numel(), device=x.device), block.indptr.diff())
            x[of_row, block.indices.long() - first] = block.weight
        else:
            assert graph.features is not None
            x = graph.features[there, first:last]
        found[meta.node_types[kind].name] = x
    return found


def edges_by_type(graph: LocalGraph) -> dict[EdgeKey, torch.Tensor]:
    """(e_r,) int64, for each type of edges the numbers of its edges in ``graph.edge_index``. Collective at its first call."""
    kinds = graph.edge_type
    assert kinds is not None
    order, counts = torch.argsort(kinds, stable=True), torch.bincount(kinds, minlength=graph.meta.num_edge_types)
    return dict(zip(graph.meta.edge_type_names, order.split(counts.tolist()), strict=True))
