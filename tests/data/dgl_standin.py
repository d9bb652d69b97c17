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


class _Types(dict[Any, SimpleNamespace]):
    """Values by type, ``graph.edges[TYPE].data``; called as ``graph.edges(etype=TYPE)``, both ends of its edges."""

    def __call__(self, *, etype: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        return (self[etype] if etype else next(iter(self.values()))).ends


class DGLGraph:
    """A graph with types, which has ``ndata`` and ``edata`` if there is one of each."""

    def __init__(self, data: dict[Any, tuple[torch.Tensor, torch.Tensor]], counts: dict[str, int]) -> None:
        self.canonical_etypes, self.ntypes, self._counts = sorted(data), sorted(counts), counts
        self.nodes = _Types({name: SimpleNamespace(data=_Frame(count)) for name, count in counts.items()})
        self.edges = _Types()
        for key, (source, destination) in data.items():
            assert source.dtype == destination.dtype == torch.int64
            for ids, end in ((source, key[0]), (destination, key[2])):
                assert not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < counts[end]
            self.edges[key] = SimpleNamespace(data=_Frame(len(source)), ends=(source, destination))
        if len(data) == len(counts) == 1:
            self.ndata, self.edata = (next(iter(each.values())).data for each in (self.nodes, self.edges))

    def num_nodes(self, ntype: str = "_N") -> int:
        return self._counts[ntype]


def module() -> Any:
    """A module for ``import dgl``."""
    dgl = ModuleType("dgl")
    dgl.graph = lambda data, *, num_nodes: DGLGraph({("_N", "_E", "_N"): data}, {"_N": num_nodes})  # type: ignore[attr-defined]
    dgl.heterograph = lambda data, num_nodes_dict: DGLGraph(data, num_nodes_dict)  # type: ignore[attr-defined]
    return dgl
