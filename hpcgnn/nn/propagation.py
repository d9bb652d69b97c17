"""Models that transform each node by itself and propagate without weights: SGC, APPNP and DAGNN."""

from __future__ import annotations

from itertools import pairwise

import torch

from hpcgnn.nn.config import ModelConfig
from hpcgnn.nn.graph_model import Frame, GraphModel
from hpcgnn.nn.layers import Dense
from hpcgnn.nn.linear import Features, matmul, operand


class SGC(GraphModel):
    """``Â^hops x W + b`` (Wu et al.); PyG's ``SGConv``.

    Propagation commutes with the weight, so what travels is as wide as the classes; or, with kept input aggregations, the
    features, once.
    """

    def __init__(self, config: ModelConfig, frame: Frame) -> None:
        super().__init__(config, frame)
        self.is_kept = frame.keep_input_aggregation
        self.hops = [self.new_aggregator(keep=self.is_kept) for _ in range(config.num_hops)]
        self.dense = Dense(frame.in_width, frame.out_width, compute=frame.compute, backend=self.backend)

    def scores(self, x: Features) -> torch.Tensor:
        """As :meth:`GraphModel.scores`."""
        if self.is_kept:
            assert isinstance(x, torch.Tensor)
            return self.dense(self._propagated(x))
        transformed = matmul(operand(x, self.compute), self.dense.weight, self.backend)
        return self._propagated(transformed) + self.dense.bias

    def _propagated(self, x: torch.Tensor) -> torch.Tensor:
        for hop in self.hops:
            x = hop(x)
        return x


class _Propagation(GraphModel):
    """A dense network of ``layers`` layers, [dropout, dense, activation] repeated, and exchanges for ``hops`` hops."""

    def __init__(self, config: ModelConfig, frame: Frame) -> None:
        super().__init__(config, frame)
        widths = self.widths(frame)
        how = {"compute": frame.compute, "backend": self.backend}
        self.dense = torch.nn.ModuleList(Dense(width, next_width, **how) for width, next_width in pairwise(widths))
        self.norms = torch.nn.ModuleList(self.new_norm(width) for width in widths[1:-1])
        self.dropouts = torch.nn.ModuleList(self.new_dropout(config.dropout) for _ in self.norms)
        self.hops = [self.new_aggregator() for _ in range(config.num_hops)]

    def transformed(self, x: Features) -> torch.Tensor:
        """(n, C), each node by itself."""
        return self.through(x, self.dense, self.norms, self.dropouts)


class APPNP(_Propagation):
    """Personalised PageRank of predictions: ``z <- (1 - teleport) Â z + teleport h`` (Klicpera et al.); PyG's ``APPNP``."""

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        """The first layer's, as in the paper."""
        return list(self.dense[0].parameters())

    def scores(self, x: Features) -> torch.Tensor:
        """As :meth:`GraphModel.scores`."""
        h = self.transformed(x)
        z = h
        for hop in self.hops:
            under_way = hop.begin(z)
            restart = self.config.teleport * h  # while rows travel
            z = torch.add(restart, under_way.finish(), alpha=1 - self.config.teleport)
        return z


class DAGNN(_Propagation):
    """``sum_k sigmoid(h_k s) h_k`` with ``h_k = Â^k h``: each node weighs its hops (Liu et al.)."""

    def __init__(self, config: ModelConfig, frame: Frame) -> None:
        super().__init__(config, frame)
        self.gate = Dense(frame.out_width, 1, compute=frame.compute, backend=self.backend)

    def scores(self, x: Features) -> torch.Tensor:
        """As :meth:`GraphModel.scores`."""
        h = self.transformed(x)
        total = self._weighed(h)
        for hop in self.hops:
            h = hop(h)
            total = total + self._weighed(h)
        return total

    def _weighed(self, h: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.gate(h)) * h
