"""The part of DGL's interface that `hpcgnn bench dgl` calls, with DGL's names and PyG's layers, because DGL has no wheel for this
torch."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


class _Edges:
    """A graph of ``dgl.graph`` with 32-bit ids, as far as benches make one."""

    def __init__(self, data: Any, *, num_nodes: int, idtype: torch.dtype) -> None:
        assert idtype == torch.int32
        self.edges, self.num_nodes = torch.stack(data), num_nodes

    def formats(self, names: list[str]) -> _Edges:
        assert names == ["csr", "csc"]
        return self

    def with_edges(self, edges: torch.Tensor) -> _Edges:
        return _Edges((edges[0], edges[1]), num_nodes=self.num_nodes, idtype=torch.int32)


def modules() -> dict[str, Any]:
    """Modules for ``dgl`` and ``dgl.nn.pytorch``, with layers made of PyG's that add no edges themselves."""
    from torch_geometric.nn import GATConv, GCNConv, RGCNConv, SAGEConv
    from torch_geometric.utils import add_self_loops, remove_self_loops

    def layer_of(make: Any) -> Any:
        class Layer(torch.nn.Module):
            def __init__(self, *sizes: Any, **settings: Any) -> None:
                super().__init__()
                self.layer, self.heads = make(*sizes, **settings), sizes[2] if make is gat else 0

            def forward(
                self, graph: _Edges, x: torch.Tensor, *kinds: torch.Tensor, **sorted_means: Any
            ) -> torch.Tensor:
                y: torch.Tensor = self.layer(x, graph.edges, *kinds)
                if kinds:
                    assert sorted_means["presorted"]
                    assert (kinds[0].diff() >= 0).all()
                    ends = torch.stack((graph.edges[1], kinds[0]), 1)
                    _, place, count = torch.unique(ends, dim=0, return_inverse=True, return_counts=True)
                    assert torch.equal(sorted_means["norm"], 1 / count[place][:, None])
                return y.view(len(y), self.heads, -1) if self.heads else y

        return Layer

    def gat(width: int, next_width: int, heads: int, *, allow_zero_in_degree: bool) -> Any:
        return GATConv(width, next_width, heads, add_self_loops=False)

    def rgcn(width: int, next_width: int, types: int) -> Any:
        return RGCNConv(width, next_width, types)

    def gcn(width: int, next_width: int, *, norm: str, allow_zero_in_degree: bool) -> Any:
        assert norm == "both"
        return GCNConv(width, next_width, add_self_loops=False)

    def sage(width: int, next_width: int, aggregator: str) -> Any:
        return SAGEConv(width, next_width, aggr=aggregator)

    dgl, nn, pytorch = ModuleType("dgl"), ModuleType("dgl.nn"), ModuleType("dgl.nn.pytorch")
    dgl.graph = _Edges  # type: ignore[attr-defined]
    dgl.remove_self_loop = lambda graph: graph.with_edges(remove_self_loops(graph.edges)[0])  # type: ignore[attr-defined]
    dgl.add_self_loop = lambda graph: graph.with_edges(  # type: ignore[attr-defined]
        add_self_loops(graph.edges, num_nodes=graph.num_nodes)[0]
    )
    for name, make in (("GATConv", gat), ("GraphConv", gcn), ("SAGEConv", sage), ("RelGraphConv", rgcn)):
        setattr(pytorch, name, layer_of(make))
    return {"dgl": dgl, "dgl.nn": nn, "dgl.nn.pytorch": pytorch}
