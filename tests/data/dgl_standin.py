"""The part of DGL's interface that hpcgnn calls, with DGL's names, because its last releases do not load with this torch."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch


class _Frame(dict[str, torch.Tensor]):
    """Values by name, with a row for each node or edge, or DGL's error for wrong sizes."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows

    def __setitem__(self, name: str, values: torch.Tensor) -> None:
        assert isinstance(values, torch.Tensor)
        assert values.layout == torch.strided
        assert len(values) == self._rows, f"Expect number of features to match number of rows, {self._rows}"
        super().__setitem__(name, values)


class DGLGraph:
    def __init__(self, source: torch.Tensor, destination: torch.Tensor, num_nodes: int) -> None:
        assert source.shape == destination.shape
        assert source.dtype == destination.dtype == torch.int64
        self._edges, self._nodes = (source, destination), num_nodes
        self.ndata, self.edata = _Frame(num_nodes), _Frame(len(source))

    def edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._edges

    def num_nodes(self) -> int:
        return self._nodes


class _Types(dict[Any, SimpleNamespace]):
    """Values by type, ``graph.edges[TYPE].data``; called as ``graph.edges(etype=TYPE)``, both ends of its edges."""

    def __call__(self, *, etype: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self[etype].ends


class DGLHeteroGraph:
    def __init__(self, data: dict[Any, tuple[torch.Tensor, torch.Tensor]], counts: dict[str, int]) -> None:
        self.canonical_etypes, self.ntypes, self._counts = sorted(data), sorted(counts), counts
        self.nodes = _Types({name: SimpleNamespace(data=_Frame(count)) for name, count in counts.items()})
        self.edges = _Types()
        for key, (source, destination) in data.items():
            assert source.dtype == destination.dtype == torch.int64
            for ids, end in ((source, key[0]), (destination, key[2])):
                assert not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < counts[end]
            self.edges[key] = SimpleNamespace(data=_Frame(len(source)), ends=(source, destination))

    def num_nodes(self, ntype: str) -> int:
        return self._counts[ntype]


def module() -> Any:
    """A module for ``import dgl``."""
    dgl = ModuleType("dgl")
    dgl.DGLGraph = DGLGraph  # type: ignore[attr-defined]
    dgl.graph = lambda data, *, num_nodes=None: DGLGraph(*data, num_nodes=num_nodes)  # type: ignore[attr-defined]
    dgl.heterograph = lambda data, num_nodes_dict: DGLHeteroGraph(data, num_nodes_dict)  # type: ignore[attr-defined]
    return dgl
