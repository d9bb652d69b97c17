"""A copy of a PyG model whose layers exchange boundary rows: the result of :func:`hpcgnn.distribute`."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch_geometric.nn import BatchNorm, MessagePassing
from torch_geometric.nn.dense import Linear

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.activations import Activations
from hpcgnn.nn.config import FLOAT32, INT8_ALWAYS, INTEGERS, KEEP, DistributedConfig, Int8Config
from hpcgnn.nn.int8 import Int8, Int8Operand, make_int8
from hpcgnn.nn.linear import matmul
from hpcgnn.nn.whole_graph import among
from hpcgnn.pyg import convolutions, norms
from hpcgnn.pyg.bridge import Bridge, draws_of_rank
from hpcgnn.pyg.convolutions import Normaliser, OnRanks, replace_method, restore_methods
from hpcgnn.pyg.given import Given
from hpcgnn.pyg.rows import DirectedError, Refused, Reversed
from hpcgnn.world import World

_RELATIVE = 1e-3  # of a parameter's change; a sum over ranks may have another last bit on each of them
_ROUNDING = 1e-9


class SameWeights:
    """Compares sums of parameters, and later their changes, in calls 1, 2, 4, 8 and so on of a model."""

    def __init__(self, world: World) -> None:
        self._world, self._calls = world, 0
        self._before: torch.Tensor | None = None

    @torch.no_grad()
    def check(self, model: torch.nn.Module) -> None:
        """Raise HpcgnnError, on every rank, if most parameters differ between ranks. Collective.

        Single ones may differ, because rounding errors are all that moves a bias before a norm.
        """
        self._calls += 1
        if self._world.size == 1 or self._calls & (self._calls - 1):
            return
        named = dict(model.named_parameters())
        sums = [(p.sum(dtype=torch.float64), p.abs().sum(dtype=torch.float64)) for p in named.values()]
        if not sums:
            return
        now, size = torch.tensor([[float(total), float(of_absolute)] for total, of_absolute in sums]).double().T
        change = now if self._before is None else now - self._before
        self._before = now
        most, least = self._world.allreduce(torch.cat((change, -change)), "max", "sums of weights").chunk(2)
        scale = torch.maximum(most.abs(), least.abs())
        differs = (most + least > _RELATIVE * scale + _ROUNDING * size.clamp(min=1)).tolist()
        if 2 * sum(differs) > len(named):
            first = next(name for name, wrong in zip(named, differs, strict=True) if wrong)
            raise HpcgnnError(
                f"the weights of {type(model).__name__} differ between ranks (first {first}): call hpcgnn.sum_gradients(model) "
                "between loss.backward() and the optimiser's step, and load or change weights on all ranks alike",
                agreed=True,
            )


_LINEAR = (torch.nn.Linear, Linear)


def use_integers(model: torch.nn.Module, bridge: Bridge, int8: Int8) -> None:
    """Use 8-bit integers until :attr:`Bridge.int8` is None again, in linear layers and in linear convolutions.

    Other convolutions compute with their own code, in float32. So does the layer before the softmax: the last convolution, or a
    linear layer after it, in the order in which the model's class names them.
    """
    tops: list[torch.nn.Module] = []  # convolutions, and linear layers outside of convolutions, in the model's order
    inside: set[torch.nn.Module] = set()
    for module in model.modules():
        if module not in inside and isinstance(module, (MessagePassing, *_LINEAR)):
            tops.append(module)
            inside |= set(module.modules())
    kept = set() if int8.config.before_softmax or not tops else set(tops[-1].modules())
    bridge.int8 = int8
    bridge.float32_layers = {number for number, module in enumerate(model.modules()) if module in kept}
    for module in model.modules():
        if type(module) in _LINEAR and module not in kept:
            replace_method(module, "forward", _linear, module, module.forward, bridge)
    first = next((each for each in tops if each not in kept), None)
    int8.watch(first, partial(setattr, bridge, "int8", None))


def _linear(
    layer: Any, original: Callable[[torch.Tensor], torch.Tensor], bridge: Bridge, x: torch.Tensor
) -> torch.Tensor:
    """Replaces ``forward`` of a linear layer."""
    if bridge.int8 is None or not isinstance(x, torch.Tensor) or x.dim() != 2 or x.dtype != torch.float32:
        return original(x)
    y = matmul(Int8Operand(x, bridge.int8), layer.weight.T, bridge.backend, bias=layer.bias)
    return bridge.mode.hand_on(x, y)


M = TypeVar("M", bound=torch.nn.Module)
_ATTRIBUTE = "_hpcgnn"


class Distribution:
    """The ranks behind a distributed model. bridge: its exchanges."""

    def __init__(self, graph: LocalGraph, messages: Messages, strategy: str, backend: str) -> None:
        self.graph, self.messages = graph, messages
        self.bridge = Bridge(graph, messages, strategy, backend)
        self.same_weights = SameWeights(graph.world)
        self.has_trainer = False
        self.int8: Int8 | None = None
        self.asked_compute = FLOAT32
        self.given = Given(graph)

    def another(self) -> Distribution:
        """A distribution for a copy of the model. Not collective: its exchanges are made in the copy's first call."""
        present, bridge, int8 = self.messages.current_pass, self.bridge, self.int8
        messages = Messages(self.graph.world, self.messages.config, seed=present.seed, device=self.graph.device)
        made = Distribution(self.graph, messages, bridge.strategy, bridge.backend)
        made.begin_epoch(present.epoch)
        made.bridge.activations = bridge.activations
        if int8 is not None:
            made.int8, made.asked_compute = Int8(int8.config, int8.uses, messages, bridge.backend), self.asked_compute
            made.int8.is_checked = int8.is_checked
        return made

    @property
    def compute(self) -> str:
        """The arithmetic of products, except for those of the user's own code: ``float32``, or one of 8-bit integers."""
        return FLOAT32 if self.bridge.int8 is None else self.asked_compute

    def use_compute(self, compute: str) -> None:
        """Compute products in this arithmetic from now on."""
        self.bridge.int8 = self.int8 if compute in INTEGERS else None

    def begin_epoch(self, epoch: int) -> None:
        """Begin a training step: dropout and messages use random numbers of this epoch from now on."""
        self.messages.begin_epoch(epoch)
        if self.int8 is not None:
            self.int8.begin_epoch(epoch)

    def begin_pass(self, *, training: bool) -> None:
        """Begin a call of the model. In a training loop without a trainer, each training pass is a step."""
        self.messages.begin_pass(is_training=training)
        if training and not self.has_trainer:
            self.begin_epoch(self.messages.current_pass.epoch + 1)
        self.bridge.begin_pass()


def on_ranks(
    model: M,
    graph: LocalGraph,
    messages: Messages,
    *,
    strategy: str = "hybrid",
    backend: str = "auto",
    compute: str = FLOAT32,
    int8: Int8Config | None = None,
    activations: str = KEEP,
) -> M:
    """Distribute a model as :func:`hpcgnn.distribute` does, but without a rehearsal. Collective."""
    twin = copy.deepcopy(model, _shared_tensors(model))
    distribution = Distribution(graph, messages, strategy, backend)
    distribution.bridge.activations = Activations(activations, backend)
    assert distribution.bridge.halo is not None  # made here, where all ranks are
    if compute in INTEGERS:
        distribution.asked_compute = compute
        distribution.int8 = make_int8(int8 or Int8Config(), messages, backend, always=compute == INT8_ALWAYS)
    _adapt(twin, distribution)
    return twin


def _adapt(model: torch.nn.Module, distribution: Distribution) -> None:
    """Make ``model`` itself run on the ranks of ``distribution``. Not collective."""
    bridge, world = distribution.bridge, distribution.graph.world
    normaliser = Normaliser(bridge)
    for number, (name, module) in enumerate(list(model.named_modules())):
        described = name or type(model).__name__
        if isinstance(module, MessagePassing):
            convolutions.adapt(module, number, bridge, normaliser, described)
        elif isinstance(module, BatchNorm) and getattr(module, "allow_single_element", False):
            raise HpcgnnError(
                f"{described} (BatchNorm) cannot be distributed with allow_single_element: a rank may own one node of many"
            )
        else:
            norms.adapt(module, world, described)
    if distribution.int8 is not None and distribution.int8.is_useful:
        use_integers(model, bridge, distribution.int8)
    forward = model.forward
    functools.update_wrapper(replace_method(model, "forward", _forward_on_ranks, model, forward, distribution), forward)
    object.__setattr__(model, _ATTRIBUTE, distribution)
    for name, method in {"__deepcopy__": _distributed_copy, "__reduce_ex__": _saved}.items():
        replace_method(model, name, method, model)


@torch.compiler.disable  # exchanges and roles of rows cannot be traced; PyG has imported the compiler, which takes a second
def _forward_on_ranks(
    model: torch.nn.Module, forward: Callable[..., Any], distribution: Distribution, *inputs: Any, **named: Any
) -> Any:
    """Replaces ``forward`` of the model."""
    # Training uses tensors that an evaluation has kept, so ``torch.inference_mode`` becomes ``torch.no_grad``.
    is_recorded, bridge = torch.is_grad_enabled(), distribution.bridge
    with torch.inference_mode(False), torch.set_grad_enabled(is_recorded):
        distribution.begin_pass(training=model.training)
        if not distribution.has_trainer:
            distribution.same_weights.check(model)
        inputs, named = distribution.given.prepare(model, bridge.mode, inputs, named)
        bridge.in_pass = True
        try:
            with among(distribution.graph.world), draws_of_rank(distribution.graph), bridge.mode:
                return forward(*inputs, **named)
        except Refused as refused:
            kind = DirectedError if isinstance(refused, Reversed) else HpcgnnError
            raise kind(f"{type(model).__name__} cannot be distributed: {refused}") from None
        finally:
            bridge.end_pass()


# -- copies ------------------------------------------------------------------------------------------------------------


def plain_copy(model: M) -> M:
    """The model of one process behind a distributed one, with the same parameters and buffers. Not collective."""
    return _undistributed(model, _shared_tensors(model))


def _distributed_copy(model: M, memo: dict[int, Any]) -> M:
    """Replaces ``__deepcopy__``: a copy with exchanges of its own. Not collective, because programs also copy on one rank."""
    distribution = distribution_of(model)
    twin = _undistributed(model, memo)
    others = distribution.another()
    _adapt(twin, others)
    others.use_compute(distribution.compute)
    return twin


def _saved(model: torch.nn.Module, protocol: Any) -> Any:
    """Replaces ``__reduce_ex__``: what ``pickle`` and ``torch.save`` write is the model of one process."""
    if sys._getframe(1).f_globals.get("__name__") == "copy":
        raise HpcgnnError(f"copy.copy of a distributed {type(model).__name__} shares its layers: use copy.deepcopy")
    return plain_copy(model).__reduce_ex__(protocol)


def _undistributed(model: M, memo: dict[int, Any]) -> M:
    """A copy of a distributed model in which nothing is adapted. memo: of ``copy.deepcopy``."""
    ours = {name: vars(model).pop(name) for name in (_ATTRIBUTE, "__deepcopy__", "__reduce_ex__")}
    for module in model.modules():
        memo |= {id(value): value for value in vars(module).values() if isinstance(value, OnRanks)}
    try:
        plain = copy.deepcopy(model, memo)
    finally:
        vars(model).update(ours)
    for module in plain.modules():
        restore_methods(module, memo)
        norms.restore(module)
        if isinstance(module, MessagePassing):
            convolutions.forget_caches(module)
        for number, hook in list(module._forward_hooks.items()):
            if getattr(hook, "__module__", None) == Int8.__module__:  # checks the bits in the first training pass
                del module._forward_hooks[number]
    return plain


def _shared_tensors(model: torch.nn.Module) -> dict[int, Any]:
    """The memo for ``copy.deepcopy`` with which a copy shares parameters and buffers."""
    return {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}


def is_distributed(model: torch.nn.Module) -> bool:
    """Return whether ``model`` is a result of :func:`hpcgnn.distribute`."""
    return hasattr(model, _ATTRIBUTE)


def config_of(model: torch.nn.Module) -> DistributedConfig:
    """The facts about a user's model, distributed or not."""
    rates = (module.p for module in model.modules() if isinstance(module, torch.nn.Dropout))
    return DistributedConfig(type(model).__name__, drops_rows=max(rates, default=0.0))


def distribution_of(model: torch.nn.Module) -> Distribution:
    """The ranks behind a model from :func:`hpcgnn.distribute`."""
    found = getattr(model, _ATTRIBUTE, None)
    if found is None:
        raise HpcgnnError(f"this {type(model).__name__} is not distributed: call hpcgnn.distribute(model, graph) first")
    return found
