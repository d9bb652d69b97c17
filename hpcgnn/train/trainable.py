"""The methods of a model that a trainer calls. Native models have them; distributed ones are wrapped to have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.exchange import Messages
from hpcgnn.kernels import Csr
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.config import DistributedConfig, ModelConfig
from hpcgnn.nn.graph_model import GraphModel
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.layers import DropoutKeys
from hpcgnn.nn.linear import Features
from hpcgnn.policy.base import Channel


class Trainable(Protocol):
    """The interface of a trainable model; see :class:`hpcgnn.nn.GraphModel`."""

    asked_compute: str
    int8: Int8 | None
    keeps_input: bool
    messages: Messages
    keys: DropoutKeys
    aggregator: Aggregator

    @property
    def compute(self) -> str:
        """The arithmetic of the model's products."""
        ...

    @property
    def config(self) -> ModelConfig | DistributedConfig:
        """The configuration of the model."""
        ...

    def __call__(self, features: Features, labels: Csr | None = None) -> torch.Tensor:
        """(n, F) features to (n, C) scores. Collective."""
        ...

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """See :class:`torch.nn.Module`, also for the next four methods."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by name."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Load parameters and buffers from a checkpoint."""
        ...

    def train(self) -> Any:
        """Begin training passes."""
        ...

    def eval(self) -> Any:
        """Begin evaluation passes."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """Begin a training step."""
        ...

    def channels(self, degrees: np.ndarray) -> list[Channel]:
        """The exchanges that policies control. degrees: (n,) int64 in-degrees."""
        ...

    def use_compute(self, compute: str) -> None:
        """Use another arithmetic of dense products from now on."""
        ...

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that may have a weight decay of their own."""
        ...

    def description(self) -> dict[str, Any]:
        """The facts in which a checkpoint must agree with the model."""
        ...


def as_trainable(model: torch.nn.Module) -> Trainable:
    """A trainable model: a native model itself, or a wrapper of a distributed one. Collective."""
    if isinstance(model, GraphModel):
        return model
    from hpcgnn.pyg.trainable import TrainableModule  # PyG is optional, and is installed if it made the model

    return TrainableModule(model)
