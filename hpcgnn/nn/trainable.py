"""The methods that a trainer needs of a model: native models have them, and distributed ones are given them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.comm import Messages
from hpcgnn.kernels import Csr
from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.config import DistributedConfig, ModelConfig
from hpcgnn.nn.dropout import DropoutKeys
from hpcgnn.nn.graph_model import GraphModel
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.linear import Features
from hpcgnn.policy.channel import Channel


class Trainable(Protocol):
    """See :class:`hpcgnn.nn.GraphModel`."""

    asked_compute: str
    int8: Int8 | None
    keeps_input: bool
    messages: Messages
    keys: DropoutKeys
    aggregator: Aggregator

    @property
    def compute(self) -> str:
        """The arithmetic of its products."""
        ...

    @property
    def config(self) -> ModelConfig | DistributedConfig:
        """The configuration of the model."""
        ...

    def __call__(self, features: Features, labels: Csr | None = None) -> torch.Tensor:
        """(n, F) features to (n, C) scores. Collective."""
        ...

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """As of a module, and so are the next two."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by name."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Take them from a checkpoint."""
        ...

    def train(self) -> Any:
        """Begin training passes."""
        ...

    def eval(self) -> Any:
        """Begin evaluation passes."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """A training step begins."""
        ...

    def channels(self, degrees: np.ndarray) -> list[Channel]:
        """The exchanges that policies decide about. degrees: (n,) int64 in-degrees."""
        ...

    def use_compute(self, compute: str) -> None:
        """Another arithmetic of dense products from now on."""
        ...

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        """Those that may have a weight decay of their own."""
        ...

    def description(self) -> dict[str, Any]:
        """The facts that a checkpoint must share with the model."""
        ...


def as_trainable(model: torch.nn.Module) -> Trainable:
    """A native model as it is, or what makes a distributed one like it. Collective."""
    if isinstance(model, GraphModel):
        return model
    from hpcgnn.nn.pyg.trainable import TrainableModule  # PyG is optional, and made the model

    return TrainableModule(model)
