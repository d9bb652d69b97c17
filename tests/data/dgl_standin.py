"""The part of DGL's interface that hpcgnn calls, with DGL's names, because its last releases do not load with this torch."""

from __future__ import annotations

from types import ModuleType
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


def module() -> Any:
    """A module for ``import dgl``."""
    dgl = ModuleType("dgl")
    dgl.DGLGraph = DGLGraph  # type: ignore[attr-defined]
    dgl.graph = lambda data, *, num_nodes=None: DGLGraph(*data, num_nodes=num_nodes)  # type: ignore[attr-defined]
    return dgl
