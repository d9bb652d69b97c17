"""Products and aggregations of a distributed model in 8-bit integers (:mod:`hpcgnn.nn.int8`).

Linear layers, torch's and PyG's, multiply in integers, and linear convolutions aggregate in integers. Other convolutions
compute with their own code, in float32. The layer before the softmax is the last convolution, or a linear layer after it, in
the order in which the model's class names them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.dense import Linear

from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.linear import matmul
from hpcgnn.pyg.bridge import Bridge
from hpcgnn.pyg.methods import OnRanks, replace_method

_LINEAR = (torch.nn.Linear, Linear)


def use_integers(model: torch.nn.Module, bridge: Bridge, int8: Int8) -> None:
    """Use integers until :attr:`Bridge.int8` is None again."""
    tops = _tops(model)
    kept = set() if int8.config.before_softmax or not tops else set(tops[-1].modules())
    bridge.int8 = int8
    bridge.float32_layers = {number for number, module in enumerate(model.modules()) if module in kept}
    for module in model.modules():
        if type(module) in _LINEAR and module not in kept:
            replace_method(module, "forward", OnRanks(_linear, module, module.forward, bridge))
    first = next((each for each in tops if each not in kept), None)
    int8.watch(first, partial(setattr, bridge, "int8", None))


def _tops(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Convolutions, and linear layers outside of convolutions, in the model's order."""
    found: list[torch.nn.Module] = []
    inside: set[torch.nn.Module] = set()
    for module in model.modules():
        if module not in inside and isinstance(module, (MessagePassing, *_LINEAR)):
            found.append(module)
            inside |= set(module.modules())
    return found


def _linear(
    layer: torch.nn.Module, original: Callable[[torch.Tensor], torch.Tensor], bridge: Bridge, x: torch.Tensor
) -> torch.Tensor:
    """Replaces ``forward`` of a linear layer."""
    assert isinstance(layer, _LINEAR)
    if bridge.int8 is None or not isinstance(x, torch.Tensor) or x.dim() != 2 or x.dtype != torch.float32:
        return original(x)
    y = matmul(bridge.int8.operand(x), layer.weight.T, bridge.backend, bias=layer.bias)
    return bridge.mode.hand_on(x, y)
