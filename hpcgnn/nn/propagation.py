"""What models have in common that propagate without weights, or that mix in the first result."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch

from hpcgnn.nn.config import LayerSettings, ModelConfig
from hpcgnn.nn.graph_model import Frame, GraphModel, Part
from hpcgnn.nn.layers import Dense
from hpcgnn.nn.linear import Features
from hpcgnn.settings import setting


@dataclass(frozen=True)
class HopSettings:
    """Of models that propagate."""

    hops: int = setting(0, "how often to propagate; 0 as in their papers (sgc: 2, others: 10).", least=0, most=10_000)

    @property
    def num_hops(self) -> int:
        """``hops``, or the papers' number."""
        return self.hops or 10


@dataclass(frozen=True)
class TeleportSettings:
    """Of models that mix the first result in."""

    teleport: float = setting(0.1, "alpha, the share of the first result in each hop or layer.", least=0, most=1)


class Propagation(GraphModel):
    """A dense network of ``layers`` layers, [dropout, dense, activation] repeated, and exchanges for ``hops`` hops."""

    settings: ClassVar[tuple[type, ...]] = (LayerSettings, HopSettings)

    def __init__(self, config: ModelConfig, frame: Frame) -> None:
        super().__init__(config, frame)
        widths = self.widths(frame)
        how = {"compute": frame.compute, "backend": self.backend}
        self.dense = torch.nn.ModuleList(Dense(width, next_width, **how) for width, next_width in pairwise(widths))
        self.norms = torch.nn.ModuleList(map(self.new_norm, widths[1:-1], self.dense))
        self.dropouts = torch.nn.ModuleList(self.new_dropout(config.dropout) for _ in self.norms)
        self.hops = [self.new_aggregator() for _ in range(config.num_hops)]

    def before_softmax(self) -> list[Part]:
        """As :meth:`GraphModel.before_softmax`."""
        return [self.dense[-1], self.hops[-1]]

    def transformed(self, x: Features) -> torch.Tensor:
        """(n, C), each node by itself."""
        return self.through(x, self.dense, self.norms, self.dropouts)
