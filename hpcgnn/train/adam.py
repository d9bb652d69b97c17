"""Adam with torch's own arithmetic, but without torch's optimiser class.

torch's class imports torch's compiler at its first step, which costs each rank a second and about 75 MB for nothing. Its function
for a step costs as much for small parameters as the arithmetic, because it examines each of its arguments anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from hpcgnn.train.trainable import Trainable

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
_ONE = torch.tensor(1.0)
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Adam:
    """:class:`torch.optim.Adam` with ``foreach=True``, bit for bit; each can load the ``state_dict`` of the other.

    groups: parameter groups as torch has them, with ``params`` and ``weight_decay``. lr: learning rate of all groups, which the
    trainer changes in ``param_groups``.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float) -> None:
        self.param_groups: list[dict[str, Any]] = [_OPTIONS | {"lr": lr} | group for group in groups]
        self.state: dict[int, dict[str, torch.Tensor]] = {}  # by the number of the parameter

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
        first = 0
        for group in self.param_groups:
            moved = [(first + k, p) for k, p in enumerate(group["params"]) if p.grad is not None]
            first += len(group["params"])
            for number, parameter in moved:
                if number not in self.state:
                    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    self.state[number] = {"step": torch.tensor(0.0)} | moments
            if moved:
                _update(group, [parameter for _, parameter in moved], [self.state[number] for number, _ in moved])

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state in torch's format, in which parameters are numbered."""
        numbers = iter(range(sum(len(group["params"]) for group in self.param_groups)))
        groups = [group | {"params": [next(numbers) for _ in group["params"]]} for group in self.param_groups]
        return {"state": {number: dict(state) for number, state in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict` of an optimiser of as many parameters, in the same order."""
        parameters = list(self._parameters())
        self.param_groups = [
            theirs | {"params": mine["params"]}
            for mine, theirs in zip(self.param_groups, state["param_groups"], strict=True)
        ]
        self.state = {
            number: {
                name: values[name].clone() if name == "step" else values[name].to(parameters[number].device, copy=True)
                for name in _MOMENTS
            }
            for number, values in state["state"].items()
        }


def _update(group: dict[str, Any], parameters: list[torch.Tensor], states: list[dict[str, torch.Tensor]]) -> None:
    """One step of the parameters of a group, by the operations of torch's ``foreach`` in their order."""
    gradients: tuple[torch.Tensor, ...] = tuple(p.grad for p in parameters if p.grad is not None)
    means, squares, steps = ([state[name] for state in states] for name in _MOMENTS)
    beta1, beta2 = group["betas"]
    torch._foreach_add_(steps, _ONE, alpha=1.0)
    if group["weight_decay"] != 0:
        gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
    counts = [step.item() for step in steps]
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, [(1 - beta2**count) ** 0.5 for count in counts])
    torch._foreach_add_(roots, group["eps"])
    torch._foreach_addcdiv_(parameters, means, roots, [(group["lr"] / (1 - beta1**count)) * -1 for count in counts])


def parameter_groups(model: Trainable, weight_decay: float, dense_weight_decay: float | None) -> list[dict[str, Any]]:
    """One parameter group, or two if the model's ``dense_parameters`` have a weight decay of their own."""
    dense = model.dense_parameters()
    if dense_weight_decay is None or not dense:
        return [{"params": list(model.parameters()), "weight_decay": weight_decay}]
    known = {id(parameter) for parameter in dense}
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return [{"params": others, "weight_decay": weight_decay}, {"params": dense, "weight_decay": dense_weight_decay}]
