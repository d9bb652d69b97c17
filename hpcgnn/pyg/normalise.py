"""Edge weights that depend on degrees, also those of halo nodes: PyG's ``gcn_norm`` and ChebConv's scaled Laplacian on many
ranks.

Results for the graph's own edges, or for tensors that were already used in the previous pass, are kept, and the same objects
are returned from then on, so that they get a plan (:meth:`hpcgnn.pyg.bridge.Bridge.operator`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, remove_self_loops, scatter

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.nn.plans import check_degrees
from hpcgnn.pyg.bridge import Bridge
from hpcgnn.pyg.rows import EDGES, ENDS
from hpcgnn.pyg.seen import Kept, Recurrence

Edges = tuple[torch.Tensor, torch.Tensor]


class Normaliser:
    """The functions that replace PyG's in the layers of one model."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self._kept: Kept[Edges] = Kept()
        self._recurrence = Recurrence()

    def begin_pass(self) -> None:
        """See :meth:`Bridge.begin_pass`."""
        self._recurrence.begin_pass()

    def gcn_norm(
        self,
        edge_index: torch.Tensor,
        edge_weight: torch.Tensor | None = None,
        num_nodes: int | None = None,
        improved: bool = False,
        add_self_loops: bool = True,
        flow: str = "source_to_target",
        dtype: torch.dtype | None = None,
    ) -> Edges:
        """``gcn_norm`` of ``torch_geometric.nn.conv.gcn_conv``, for ids in which halo nodes follow the owned ones. Collective."""
        key = ("gcn", improved, add_self_loops, dtype)
        kept = self._kept.find(edge_index, edge_weight, key)
        if kept is not None:
            return self._marked(kept)
        with torch._C.DisableTorchFunction():
            result = self._gcn_norm(edge_index, edge_weight, improved=improved, loops=add_self_loops, dtype=dtype)
        is_plain = edge_weight is None and self.bridge.is_graphs(edge_index) and add_self_loops and not improved
        return self._keep(edge_index, edge_weight, key, result, "gcn" if is_plain else "fixed")

    def _gcn_norm(
        self,
        edges: torch.Tensor,
        weight: torch.Tensor | None,
        *,
        improved: bool,
        loops: bool,
        dtype: torch.dtype | None,
    ) -> Edges:
        owned, is_weighted = self.bridge.graph.num_nodes, weight is not None
        if loops:
            edges, weight = add_remaining_self_loops(edges, weight, 2.0 if improved else 1.0, owned)
        if weight is None:
            weight = torch.ones(edges.shape[1], dtype=dtype, device=edges.device)
        degree = scatter(weight, edges[1], 0, owned, "sum")
        if is_weighted:
            has_edges = torch.bincount(edges[1], minlength=owned) > 0
            ids = self.bridge.graph.original_ids.to(degree.device)
            check_degrees(degree.detach()[has_edges], ids[has_edges], self.bridge.graph.world)
        scale = self.bridge.exact.extended(_inverse_root(degree))
        return edges, scale[edges[0]] * weight * scale[edges[1]]

    def scaled_laplacian(
        self,
        edge_index: torch.Tensor,
        num_nodes: int | None,
        edge_weight: torch.Tensor | None,
        normalization: str | None,
        lambda_max: torch.Tensor | float | None = None,
        dtype: torch.dtype | None = None,
        batch: torch.Tensor | None = None,
    ) -> Edges:
        """``ChebConv.__norm__``: 2 L / lambda_max - I, where lambda_max None stands for twice the largest entry of L.
        Collective.
        """
        if batch is not None:
            raise HpcgnnError("ChebConv with batch, for several graphs at once, cannot be distributed")
        largest = None if lambda_max is None else float(lambda_max)
        key = ("laplacian", normalization, largest, dtype)
        kept = self._kept.find(edge_index, edge_weight, key)
        if kept is not None:
            return self._marked(kept)
        with torch._C.DisableTorchFunction():
            edges, weight = self._laplacian(edge_index, edge_weight, normalization, dtype)
            if largest is None:
                mine = np.array([weight.detach().max().item() if weight.numel() else -np.inf])
                largest = 2 * float(self.bridge.messages.world.allreduce(mine, "max")[0])
            weight = 2 * weight / largest
            weight = torch.where(weight == float("inf"), 0, weight)
            result = edges, weight - (edges[0] == edges[1]).to(weight.dtype)
        return self._keep(edge_index, edge_weight, key, result, "fixed")

    def _laplacian(
        self, edge_index: torch.Tensor, edge_weight: torch.Tensor | None, kind: str | None, dtype: torch.dtype | None
    ) -> Edges:
        """``torch_geometric.utils.get_laplacian``, which uses the degrees of sources."""
        owned = self.bridge.graph.num_nodes
        edges, weight = remove_self_loops(edge_index, edge_weight)
        if weight is None:
            weight = torch.ones(edges.shape[1], dtype=dtype, device=edges.device)
        degree = self._out_degrees(edges, weight)
        if kind is None:
            looped, _ = add_self_loops(edges, num_nodes=owned)
            return looped, torch.cat((-weight, degree[:owned]))
        if kind == "sym":
            scale = _inverse_root(degree)
            weight = scale[edges[0]] * weight * scale[edges[1]]
        else:
            weight = torch.where(degree > 0, 1 / degree, 0)[edges[0]] * weight
        looped, values = add_self_loops(edges, -weight, fill_value=1.0, num_nodes=owned)
        return looped, values

    def _out_degrees(self, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """(n + h,) sums of the weights of each node's out-edges, on all ranks at which they end. Collective."""
        mine = scatter(weight, edges[0], 0, self.bridge.num_extended, "sum")
        return self.bridge.exact.extended(self.bridge.exact.summed(mine))

    def _marked(self, result: Edges) -> Edges:
        self.bridge.mode.mark(result[0], ENDS, 1)
        self.bridge.mode.mark(result[1], EDGES)
        return result

    # -- results of earlier passes ----------------------------------------------------------------------------------------

    def _keep(
        self, edge_index: torch.Tensor, weight: torch.Tensor | None, key: tuple[Any, ...], result: Edges, kind: str
    ) -> Edges:
        self._marked(result)
        if weight is not None and weight.requires_grad:
            return result
        is_graphs = weight is None and self.bridge.is_graphs(edge_index)
        if self._recurrence.comes_again(key, edge_index, weight) or is_graphs:
            self._kept.keep(edge_index, weight, result, key)
            self.bridge.note_kind(*result, kind)
        return result


def _inverse_root(degree: torch.Tensor) -> torch.Tensor:
    return torch.where(degree > 0, degree.clamp(min=0) ** -0.5, 0)
