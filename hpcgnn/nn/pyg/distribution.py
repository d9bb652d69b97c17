"""A copy of a PyG model whose layers exchange boundary rows: the result of :func:`hpcgnn.distribute`."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch_geometric.nn import BatchNorm, MessagePassing

from hpcgnn.comm import Messages
from hpcgnn.errors import HpcgnnError
from hpcgnn.graph import LocalGraph
from hpcgnn.nn.compute_config import FLOAT32, INT8_ALWAYS, INTEGERS, Int8Config
from hpcgnn.nn.dropout import DropoutKeys, KeyedDropout
from hpcgnn.nn.int8 import Int8, make_int8
from hpcgnn.nn.pyg import convolutions, norms
from hpcgnn.nn.pyg.bridge import Bridge
from hpcgnn.nn.pyg.integers import use_integers
from hpcgnn.nn.pyg.normalise import Normaliser

M = TypeVar("M", bound=torch.nn.Module)
_ATTRIBUTE = "_hpcgnn"


class Distribution:
    """The ranks behind a distributed model. bridge: its exchanges. keys: of its dropouts."""

    def __init__(self, graph: LocalGraph, messages: Messages, strategy: str, backend: str) -> None:
        self.graph, self.messages = graph, messages
        self.bridge = Bridge(graph, messages, strategy, backend)
        self.normaliser = Normaliser(self.bridge)
        self.keys = DropoutKeys(graph.original_ids.to(graph.device.torch_device), messages.current_pass.seed)
        self.has_trainer = False
        self.int8: Int8 | None = None
        self.asked_compute = FLOAT32
        self._made_dense: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def compute(self) -> str:
        """The arithmetic of products, except for those of the user's own code: ``float32``, or one of 8-bit integers."""
        return FLOAT32 if self.bridge.int8 is None else self.asked_compute

    def use_compute(self, compute: str) -> None:
        """Compute products in this arithmetic from now on."""
        self.bridge.int8 = self.int8 if compute in INTEGERS else None

    def dense(self, value: Any) -> Any:
        """A sparse CSR tensor, such as a graph's sparse features, as a dense tensor, which most layers need."""
        if not isinstance(value, torch.Tensor) or value.layout is not torch.sparse_csr:
            return value
        if self._made_dense is None or self._made_dense[0] is not value:
            self._made_dense = value, value.to_dense()
        return self._made_dense[1]

    def begin_epoch(self, epoch: int) -> None:
        """Begin a training step: dropout and messages use random numbers of this epoch from now on."""
        self.keys.epoch = epoch
        self.messages.begin_epoch(epoch)
        if self.int8 is not None:
            self.int8.begin_epoch(epoch)

    def begin_pass(self, *, training: bool) -> None:
        """Begin a call of the model. In a training loop without a trainer, each training pass is a step."""
        self.messages.begin_pass(is_training=training)
        if training and not self.has_trainer:
            self.begin_epoch(self.keys.epoch + 1)
        self.bridge.begin_pass()
        self.normaliser.begin_pass()


def on_ranks(
    model: M,
    graph: LocalGraph,
    messages: Messages,
    *,
    strategy: str = "hybrid",
    backend: str = "auto",
    compute: str = FLOAT32,
    int8: Int8Config | None = None,
) -> M:
    """Distribute a model as :func:`hpcgnn.distribute` does, but without a rehearsal. Collective."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    distribution = Distribution(graph, messages, strategy, backend)
    for number, (name, module) in enumerate(list(twin.named_modules())):
        described = name or type(model).__name__
        if isinstance(module, MessagePassing):
            convolutions.adapt(module, number, distribution.bridge, distribution.normaliser, described)
        elif isinstance(module, BatchNorm) and getattr(module, "allow_single_element", False):
            raise HpcgnnError(
                f"{described} (BatchNorm) cannot be distributed with allow_single_element: a rank may own one node of many"
            )
        else:
            norms.adapt(module, graph.world, described)
    _key_dropouts(twin, distribution.keys, backend)
    if compute in INTEGERS:
        distribution.asked_compute = compute
        distribution.int8 = made = make_int8(int8 or Int8Config(), messages, backend, always=compute == INT8_ALWAYS)
        if made.is_useful:
            use_integers(twin, distribution.bridge, made)
    twin.forward = _with_passes(twin, twin.forward, distribution)
    object.__setattr__(twin, _ATTRIBUTE, distribution)
    return twin


def _with_passes(model: torch.nn.Module, forward: Callable[..., Any], distribution: Distribution) -> Callable[..., Any]:
    """``forward``, extended by a call of :meth:`Distribution.begin_pass`."""

    @functools.wraps(forward)
    def on_ranks_forward(*inputs: Any, **named: Any) -> Any:
        distribution.begin_pass(training=model.training)
        dense = distribution.dense
        return forward(*map(dense, inputs), **{name: dense(value) for name, value in named.items()})

    return on_ranks_forward


def is_distributed(model: torch.nn.Module) -> bool:
    """Return whether ``model`` is a result of :func:`hpcgnn.distribute`."""
    return hasattr(model, _ATTRIBUTE)


def distribution_of(model: torch.nn.Module) -> Distribution:
    """The ranks behind a model from :func:`hpcgnn.distribute`."""
    found = getattr(model, _ATTRIBUTE, None)
    if found is None:
        raise HpcgnnError(f"this {type(model).__name__} is not distributed: call hpcgnn.distribute(model, graph) first")
    return found


def _key_dropouts(model: torch.nn.Module, keys: DropoutKeys, backend: str) -> None:
    """Replace ``torch.nn.Dropout`` modules, which have no parameters or buffers, by dropouts keyed by original node id."""
    number = 0
    for parent in model.modules():
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Dropout:
                setattr(parent, name, NodeDropout(keys, number, child.p, backend))
                number += 1


class NodeDropout(KeyedDropout):
    """:class:`torch.nn.Dropout` for the nodes of this rank. Tensors of other shapes are treated as torch does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Apply dropout to (n, ...)."""
        if x.shape[:1] != self.keys.ids.shape or not x.is_floating_point():
            return torch.nn.functional.dropout(x, self.probability, self.training)
        return super().forward(x.reshape(x.shape[0], math.prod(x.shape[1:]))).view(x.shape)  # type: ignore[union-attr]
