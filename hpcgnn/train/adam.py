"""Adam with torch's own arithmetic, but without torch's optimiser class.

torch's class imports torch's compiler at its first step, which costs each rank a second and about 75 MB for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.adam import adam

from hpcgnn.nn.trainable import Trainable

# The options of a parameter group of torch, so each optimiser can load the state of the other.
_OPTIONS = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "amsgrad": False,
    "maximize": False,
    "foreach": True,
    "capturable": False,
    "differentiable": False,
    "fused": None,
    "decoupled_weight_decay": False,
}
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Adam:
    """:class:`torch.optim.Adam` with ``foreach=True``, bit for bit; each can load the ``state_dict`` of the other.

    groups: parameter groups as torch has them, with ``params`` and ``weight_decay``. lr: learning rate of all groups, which the
    trainer changes in ``param_groups``.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float) -> None:
        self.param_groups: list[dict[str, Any]] = [_OPTIONS | {"lr": lr} | group for group in groups]
        self.state: dict[torch.Tensor, dict[str, torch.Tensor]] = {}

    def _parameters(self) -> Iterator[torch.Tensor]:
        for group in self.param_groups:
            yield from group["params"]

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for parameter in self._parameters():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            moved: list[torch.Tensor] = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self._state(parameter) for parameter in moved]
            beta1, beta2 = group["betas"]
            adam(
                moved,
                [parameter.grad for parameter in moved if parameter.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                foreach=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )

    def _state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        if parameter not in self.state:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.state[parameter] = {"step": torch.tensor(0.0)} | moments
        return self.state[parameter]

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state in torch's format, in which parameters are numbered."""
        number = {parameter: index for index, parameter in enumerate(self._parameters())}
        groups = [group | {"params": [number[p] for p in group["params"]]} for group in self.param_groups]
        return {"state": {number[p]: dict(state) for p, state in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict` of an optimiser of as many parameters, in the same order."""
        parameters = list(self._parameters())
        self.param_groups = [
            theirs | {"params": mine["params"]}
            for mine, theirs in zip(self.param_groups, state["param_groups"], strict=True)
        ]
        self.state = {
            parameters[number]: {
                name: values[name].clone() if name == "step" else values[name].to(parameters[number].device, copy=True)
                for name in _MOMENTS
            }
            for number, values in state["state"].items()
        }


def parameter_groups(model: Trainable, weight_decay: float, dense_weight_decay: float | None) -> list[dict[str, Any]]:
    """One parameter group, or two if the model's ``dense_parameters`` have a weight decay of their own."""
    dense = model.dense_parameters()
    if dense_weight_decay is None or not dense:
        return [{"params": list(model.parameters()), "weight_decay": weight_decay}]
    known = {id(parameter) for parameter in dense}
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return [{"params": others, "weight_decay": weight_decay}, {"params": dense, "weight_decay": dense_weight_decay}]
