"""DAGNN (Liu et al.)."""

from __future__ import annotations

import torch

from hpcgnn.nn.config import ModelConfig, register
from hpcgnn.nn.graph_model import ModelContext, Part
from hpcgnn.nn.layers import Dense
from hpcgnn.nn.linear import Features
from hpcgnn.nn.propagation import Propagation


@register("dagnn")
class DAGNN(Propagation):
    """``sum_k sigmoid(h_k s) h_k`` with ``h_k = Â^k h``: each node weights its hops by learned scores."""

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.gate = Dense(context.out_width, 1, compute=context.compute, backend=self.backend)

    def before_softmax(self) -> list[Part]:
        """See :meth:`GraphModel.before_softmax`."""
        return [*super().before_softmax(), self.gate]

    def scores(self, x: Features) -> torch.Tensor:
        """See :meth:`GraphModel.scores`."""
        h = self.transformed(x)
        total = self._weighed(h)
        for hop in self.hops:
            h = hop(h)
            total = total + self._weighed(h)
        return total

    def _weighed(self, h: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.gate(h)) * h
