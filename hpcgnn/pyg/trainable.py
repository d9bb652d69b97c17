"""A wrapper that gives a distributed model the interface of a :class:`hpcgnn.nn.GraphModel`, for trainers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
import torch.fx

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.layers import DropoutKeys
from hpcgnn.nn.linear import Given
from hpcgnn.policy.base import ExchangeFacts
from hpcgnn.pyg.distribution import config_of, distribution_of
from hpcgnn.world import raise_on_all_ranks

_WARM_UPS = 2  # edges that were used in the previous pass get a plan


class TrainableModule:
    """``model(features)`` is the distributed model's result for the edges of its graph. Collective, and so is construction.

    A model whose arguments are named ``x_dict``, ``edge_index_dict`` and, where it reads it, ``edge_attr_dict``, and one made by
    ``to_hetero``, gets the dictionaries of its graph by type. Its result is a tensor with rows of the type of nodes that has
    labels, or a dictionary with such a tensor.

    Construction runs warm-up passes, so that all exchanges are known to policies.

    Raises:
        HpcgnnError: on every rank, for a result without rows of that type, and for a graph with labels of several types.
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
        self.int8: Int8 | None = self._of.int8
        self.asked_compute = self._of.asked_compute
        self.keeps_input = False
        self.activations = self._of.bridge.activations
        self.config = config_of(model)
        dtype, weight = next(model.parameters()).dtype, self.graph.edge_weight
        self._others: dict[str, Any] = {}
        names = list(inspect.signature(model.forward).parameters)
        if weight is not None and "edge_weight" in names:
            self._others["edge_weight"] = weight.to(self.graph.device.torch_device, dtype)
        graph, self.target, self._places = self.graph, "", torch.empty(0, dtype=torch.int64)
        self._edges: Any = graph.edge_index
        self._x: Any = None
        takes_types = names[:1] == ["x_dict"]
        if not graph.meta.node_types and (takes_types or graph.x is None):
            needs = "dictionaries by type, and {} has no types of nodes" if takes_types else "features, and {} has none"
            raise HpcgnnError(f"{type(model).__name__} takes {needs.format(graph.path)}", agreed=True)
        if graph.meta.node_types and (takes_types or isinstance(model, torch.fx.GraphModule)):
            self.target = _target(graph)
            self._places = graph.nodes_by_type.owned[graph.node_type_number(self.target)].to(graph.device.torch_device)
            self._edges, self._x = graph.edge_index_dict, _cast(graph.x_dict, dtype)
            if "edge_attr_dict" in names:
                self._others["edge_attr_dict"] = _cast(graph.edge_attr_dict, dtype)
        else:
            features = graph.x
            assert features is not None
            self._x = (features if features.layout == torch.strided else features.to_dense()).to(dtype)
        was_training = model.training
        model.eval()
        with torch.no_grad():
            for _ in range(_WARM_UPS):
                found = self.module(self._x, self._edges, **self._others)
        model.train(was_training)
        if self.target:
            with raise_on_all_ranks(self.graph.world, f"train {type(model).__name__}"):
                self._check(found)

    def __call__(self, features: Given, labels: Csr | None = None) -> torch.Tensor:
        """(n, F) features to the model's (n, C) result. Sparse features are made dense. The result of a model on dictionaries
        has zeros for nodes of other types than that with labels."""
        given = features if isinstance(features, torch.Tensor) and not self.target else self._x
        found = self.module(given, self._edges, **self._others)
        if not self.target:
            return found
        rows = found[self.target] if isinstance(found, dict) else found
        return rows.new_zeros(self.graph.num_nodes, rows.shape[1]).index_copy_(0, self._places, rows)

    def _check(self, found: Any) -> None:
        """Raise HpcgnnError unless the result has a row of classes for each node of the type with labels."""
        rows = found.get(self.target) if isinstance(found, dict) else found
        wanted = self._places.numel(), self.graph.meta.num_classes
        if not isinstance(rows, torch.Tensor) or tuple(rows.shape) != wanted:
            told = (
                f"of shape {tuple(rows.shape)}"
                if isinstance(rows, torch.Tensor)
                else f"that is no tensor for {self.target!r}"
            )
            raise HpcgnnError(
                f"the model gives a result {told}, and not of shape {wanted}, with a row for each node of type "
                f"{self.target!r} of this rank: return it, or a dictionary with it"
            )

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


def _target(graph: LocalGraph) -> str:
    """The name of the only type of nodes with labels. HpcgnnError, on every rank, if there are several, or none."""
    labelled = [each.name for each in graph.meta.node_types if each.classes]
    if len(labelled) != 1:
        has = (
            f"labels of {', '.join(labelled)}: choose one by graph.with_target(NAME) before distribute"
            if labelled
            else "no labels"
        )
        raise HpcgnnError(f"a trainer needs labels of one type of nodes, and {graph.path} has {has}", agreed=True)
    return labelled[0]


def _cast(values: dict[Any, torch.Tensor], dtype: torch.dtype) -> dict[Any, torch.Tensor]:
    return {key: value.to(dtype) for key, value in values.items()}
