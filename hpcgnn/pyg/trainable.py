"""A wrapper that gives a distributed model the interface of a :class:`hpcgnn.nn.GraphModel`, for trainers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch

from hpcgnn.kernels import Csr
from hpcgnn.nn.config import DistributedConfig
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.layers import DropoutKeys
from hpcgnn.policy.base import ExchangeFacts
from hpcgnn.pyg.distribution import distribution_of

_WARM_UPS = 2  # edges that were used in the previous pass get a plan


class TrainableModule:
    """``model(features)`` is the distributed model's result for the edges of its graph. Collective, and so is construction.

    Construction runs warm-up passes, so that all exchanges are known to policies.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.module, self._of = model, distribution_of(model)
        self.parameters, self.state_dict = model.parameters, model.state_dict
        self.load_state_dict, self.train, self.eval = model.load_state_dict, model.train, model.eval
        self._of.has_trainer = True
        self.begin_epoch, self.use_compute = self._of.begin_epoch, self._of.use_compute
        self.graph, self.messages = self._of.graph, self._of.messages
        self.keys = DropoutKeys(self.graph.original_ids, self.messages.current_pass.seed)
        self.aggregator = self._of.bridge.halo
        rates = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
        self.int8: Int8 | None = self._of.int8
        self.asked_compute = self._of.asked_compute
        self.keeps_input = False
        self.config = DistributedConfig(type(model).__name__, drops_rows=max(rates, default=0.0))
        dtype, weight = next(model.parameters()).dtype, self.graph.edge_weight
        self._others = {}
        if weight is not None and "edge_weight" in inspect.signature(model.forward).parameters:
            self._others["edge_weight"] = weight.to(self.graph.device.torch_device, dtype)
        was_training = model.training
        model.eval()
        features = self.graph.x
        assert features is not None
        self._x = (features.to_dense() if isinstance(self.graph.features, Csr) else features).to(dtype)
        with torch.no_grad():
            for _ in range(_WARM_UPS):
                self(self._x)
        model.train(was_training)

    def __call__(self, features: torch.Tensor | Csr, labels: Csr | None = None) -> torch.Tensor:
        """(n, F) features to the model's (n, C) result. Sparse features are made dense."""
        return self.module(self._x if isinstance(features, Csr) else features, self.graph.edge_index, **self._others)

    def exchange_facts(self, degrees: np.ndarray) -> list[ExchangeFacts]:
        return [facts for each in self._of.bridge.exchanges.values() for facts in each.exchange_facts(degrees)]

    @property
    def compute(self) -> str:
        """The arithmetic of linear layers; other layers compute with their own code."""
        return self._of.compute

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        return []

    def owned_parameters(self) -> dict[str, torch.nn.Parameter]:
        return {}

    def description(self) -> dict[str, Any]:
        shapes = {name: list(value.shape) for name, value in self.state_dict().items()}
        return {"class": type(self.module).__name__, "shapes": shapes}
