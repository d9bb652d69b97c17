"""SGC (Wu et al.)."""

from __future__ import annotations

import torch

from hpcgnn.nn.config import ModelConfig, register
from hpcgnn.nn.graph_model import GraphModel, ModelContext, Part
from hpcgnn.nn.layers import Dense
from hpcgnn.nn.linear import Features, matmul, operand


@register("sgc")
class SGC(GraphModel):
    """``Â^hops x W + b``; PyG's ``SGConv``.

    Propagation commutes with the weight, so rows as wide as the number of classes travel; with kept input aggregations, the
    features travel instead, but only once.
    """

    begins_with_exchange = True

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.is_kept = context.keep_input_aggregation
        self.hops = [self.new_aggregator(keep=self.is_kept) for _ in range(config.num_hops)]
        self.dense = Dense(context.in_width, context.out_width, compute=context.compute, backend=self.backend)

    def before_softmax(self) -> list[Part]:
        """See :meth:`GraphModel.before_softmax`."""
        return [self.dense, self.hops[-1]]

    def scores(self, x: Features) -> torch.Tensor:
        """See :meth:`GraphModel.scores`."""
        if self.is_kept:
            assert isinstance(x, torch.Tensor)
            return self.dense(self._propagated(x))
        transformed = matmul(operand(x, self.dense.compute), self.dense.weight, self.backend)
        return self._propagated(transformed) + self.dense.bias

    def _propagated(self, x: torch.Tensor) -> torch.Tensor:
        for hop in self.hops:
            x = hop(x)
        return x
