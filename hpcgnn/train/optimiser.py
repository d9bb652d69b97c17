"""A step of an optimiser on all ranks: the reduction of gradients, and Adam."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count as counting
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from hpcgnn.base.arguments import check_type, check_world
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU, Device
from hpcgnn.nn import GraphModel
from hpcgnn.train.tasks import Trainable
from hpcgnn.world import Buffer, World
from hpcgnn.world.buffer import Pending

# The smallest sum over ranks that starts on its own: one more of 64 KiB takes 0.1 ms more on 4 ranks that share 2 cores, as long
# as 64 KiB travel at 5 Gbit/s.
_LEAST_BYTES = 64 << 10


def by_completion(named: Iterable[tuple[str, torch.nn.Parameter]]) -> list[list[torch.nn.Parameter]]:
    """Named parameters in groups of 64 KiB or more, except for the last group, in the order in which a backward pass completes
    their gradients: from the last layer to the first, by the first number in a name. Names without a number come last. Ranks
    agree, because they have one model."""

    def layer(each: tuple[str, torch.nn.Parameter]) -> int:
        number = re.search(r"\d+", each[0])
        return -1 if number is None else int(number[0])

    groups: list[list[torch.nn.Parameter]] = []
    for _, of_layer in itertools.groupby(sorted(named, key=layer, reverse=True), layer):
        if not groups or sum(parameter.numel() * parameter.itemsize for parameter in groups[-1]) >= _LEAST_BYTES:
            groups.append([])
        groups[-1] += [parameter for _, parameter in of_layer]
    return groups


@dataclass(eq=False)
class _Group:
    """Gradients that are summed in one all-reduce. flat: this rank's. places: each parameter with its piece of flat, and of the
    sums. buffers: both, as MPI takes them. missing: number of gradients that backward has not made yet."""

    flat: Tensor
    places: list[tuple[torch.nn.Parameter, Tensor, Tensor]]
    buffers: tuple[Buffer, Buffer]
    missing: int = 0
    pending: Pending | None = None

    def fill(self) -> None:
        """Copy the gradients to this rank's memory."""
        given = [(piece, parameter.grad) for parameter, piece, _ in self.places if parameter.grad is not None]
        if len(given) < len(self.places):
            self.flat.zero_()
        if given:
            torch._foreach_copy_([piece for piece, _ in given], [gradient for _, gradient in given])


class GradientBucket:
    """Means of gradients, in the type of the parameters, and sums of a few float64 scalars over ranks, in concurrent all-reduces:
    one for the scalars, and one for each group of parameters. All buffers are allocated once. Values on a device are copied to
    the host together, with one wait. groups: the parameters, in the order in which backward completes their gradients. owned:
    those of them of which each rank has rows of its own, whose gradients are already sums. Collective when made."""

    def __init__(
        self,
        world: World,
        groups: Sequence[Sequence[torch.nn.Parameter]],
        num_scalars: int,
        device: Device = CPU,
        owned: Sequence[torch.nn.Parameter] = (),
    ) -> None:
        def host_zeros(size: int, dtype: torch.dtype) -> Tensor:  # from which the device copies directly
            return device.host_memory(size * dtype.itemsize).view(dtype).zero_()

        self._world, self._device, self._owned = world, device, owned
        its_own = {id(parameter) for parameter in owned}
        shared = [[parameter for parameter in group if id(parameter) not in its_own] for group in groups]
        parameters = [parameter for group in shared for parameter in group]
        size, dtype = sum(parameter.numel() for parameter in parameters), groups[0][0].dtype
        all_scalars = num_scalars + 1 + len(parameters)
        self._mine, self._sums = (host_zeros(size, dtype) for _ in range(2))
        self._my_scalars, self._scalar_sums, self._on_device = (
            host_zeros(length, torch.float64) for length in (all_scalars, all_scalars, num_scalars)
        )
        self._scalar_buffers = Buffer.of(self._my_scalars), Buffer.of(self._scalar_sums)
        # On the host itself there is nothing to copy.
        self._is_host = device.torch_device.type == "cpu"
        self._flat = self._mine if self._is_host else torch.zeros_like(self._mine, device=device.torch_device)
        self._summed = self._sums if self._is_host else torch.zeros_like(self._sums, device=device.torch_device)
        pieces = (_pieces(flat, parameters) for flat in (self._flat, self._summed))
        self._places = list(zip(parameters, *pieces, strict=True))
        # Messages of the backward pass are under way beside these sums, in another order on each rank.
        self._apart = world.apart() if len(groups) > 1 else None
        self._groups: list[_Group] = []
        places, end = iter(self._places), 0
        for group in shared:
            begin, end = end, end + sum(parameter.numel() for parameter in group)
            buffers = Buffer.of(self._mine[begin:end]), Buffer.of(self._sums[begin:end])
            self._groups.append(_Group(self._flat[begin:end], list(itertools.islice(places, len(group))), buffers))

    @contextlib.contextmanager
    def during_backward(self) -> Iterator[None]:
        """Start the sum of a group as soon as the backward pass, which runs in this context, has made its last gradient and all
        groups before it have started. Only for a pass that makes each gradient once. On a device, no sum starts early. The
        caller calls :meth:`reduce` afterwards."""
        hooks = []
        if self._apart is not None and self._is_host:
            for group in self._groups:
                asked = [parameter for parameter, _, _ in group.places if parameter.requires_grad]
                group.missing, group.pending = len(asked), None  # a step that failed has left its sums
                hooks += [each.register_post_accumulate_grad_hook(partial(self._note, group)) for each in asked]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _note(self, group: _Group, _: Tensor) -> None:
        """Note that a gradient of ``group`` is there."""
        group.missing -= 1
        if group.missing < 0:
            raise HpcgnnError(
                "a model made the gradient of a parameter twice in one step, as with reentrant checkpointing, and its sum over "
                "ranks has started already: use --overlap off",
                agreed=True,
            )
        for each in self._groups:
            if each.missing:
                return
            if each.pending is None:
                each.fill()
                self._world.watch(self._start(each))

    def _start(self, group: _Group) -> Pending:
        group.pending = (self._apart or self._world).start_allreduce(*group.buffers, "sum", "gradients")
        return group.pending

    def reduce(self, scalars: list[float | Tensor], count: int) -> tuple[list[float], int]:
        """Replace every gradient of a sum over ``count`` nodes of this rank by the gradient of the mean over all ranks' nodes.

        A parameter without a gradient on any rank keeps none, so that weight decay does not move it, as in one process. Returns
        the sums of ``scalars``, which may be on the device, and of ``count``; if that is 0, gradients are only summed.
        Collective.
        """
        for group in self._groups:
            if group.pending is None:
                group.fill()
        has_gradient = [float(parameter.grad is not None) for parameter, _, _ in self._places]
        self._bring_to_host([*scalars, count, *has_gradient])
        agreed = self._world.start_allreduce(*self._scalar_buffers, "sum", "gradients")
        for pending in (agreed, *(group.pending or self._start(group) for group in self._groups)):
            self._world.wait(pending)
        for group in self._groups:
            group.pending = None
        sums = self._scalar_sums.tolist()
        totals, total_count, have_gradient = sums[: len(scalars)], sums[len(scalars)], sums[len(scalars) + 1 :]
        self._sums /= max(total_count, 1)
        if self._summed is not self._sums:
            self._device.follow(self._device.copy(self._summed, self._sums))
        for (parameter, _, piece), ranks in zip(self._places, have_gradient, strict=True):
            if ranks:
                parameter.grad = piece
        for parameter in self._owned:
            if parameter.grad is not None:
                parameter.grad /= max(total_count, 1)
        return totals, int(total_count)

    def is_finite(self) -> bool:
        """Return whether all gradients of the last :meth:`reduce` are finite. Ranks must compare their answers: the last bit of a
        sum, and so whether it is infinite, may differ among them."""
        gradients = [self._sums, *(parameter.grad for parameter in self._owned if parameter.grad is not None)]
        return all(math.isfinite(end) for each in gradients if each.numel() for end in torch.aminmax(each))

    def _bring_to_host(self, scalars: list[float | Tensor]) -> None:
        """Fill the buffers that are sent. Only here, in a step, the host waits for all work of the device."""
        if self._flat is not self._mine:
            device, numbers = self._device, [k for k, value in enumerate(scalars) if isinstance(value, Tensor)]
            copies = []
            if numbers:
                stacked = torch.stack([scalars[k].detach().double() for k in numbers])  # type: ignore[union-attr]
                copies.append(device.copy(self._on_device[: len(numbers)], stacked, device.record()))
            copies.append(device.copy(self._mine, self._flat, device.record()))
            for copied in copies:
                copied.synchronize()
            known = dict(zip(numbers, self._on_device.tolist(), strict=False))
            scalars = [known.get(k, value) for k, value in enumerate(scalars)]
        self._my_scalars.copy_(torch.tensor([float(value) for value in scalars], dtype=torch.float64))


def _pieces(flat: Tensor, parameters: list[torch.nn.Parameter]) -> list[Tensor]:
    """Views of ``flat`` with the shapes of the parameters, one after another."""
    sizes = [parameter.numel() for parameter in parameters]
    pieces = flat[: sum(sizes)].split(sizes)
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]


def sum_gradients(model: torch.nn.Module, world: World | None = None) -> None:
    """Replace every gradient of a model by its sum over all ranks, between ``backward`` and the optimiser's step. Collective.

    For a training loop without a ``Trainer``. It is called once for each step, after the last ``backward``. ``backward``
    starts from ``hpcgnn.mean_loss``; the result is the gradient of the mean loss over the whole graph.

    Example:
        ``losses = F.cross_entropy(scores[train], graph.y[train], reduction="none")``, then
        ``hpcgnn.mean_loss(losses, graph).backward()``, then ``hpcgnn.sum_gradients(model, graph.world)``, then
        ``optimiser.step()``.

    Args:
        model: a module with the same parameters on all ranks. A parameter without a gradient on some rank counts as zeros
            there. Without one on any rank, it keeps none, as in one process, so that weight decay does not move it.
        world: the ranks, ``graph.world``; None takes the ranks of a model from ``hpcgnn.distribute``.

    Raises:
        HpcgnnError: if ``world`` is None and the model is not distributed; on every rank, if no parameter has a gradient, or
            if gradients are sums over ranks already, because they were not set to None since the last call.
    """
    check_type("model", model, torch.nn.Module)
    check_world(world)
    if world is None:
        from hpcgnn.pyg.distribution import distribution_of

        world = distribution_of(model).graph.world
    kind = type(model).__name__
    owned = model.owned_parameters() if isinstance(model, GraphModel) else {}
    named = {name: each for name, each in model.named_parameters() if each.requires_grad and name not in owned}
    if not named:
        raise HpcgnnError(f"{kind} has no parameter that needs a gradient")
    parameters = list(named.values())
    flags = [[parameter.grad is not None, _is_sum(parameter.grad)] for parameter in parameters]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad.to_dense()).reshape(-1) for p in parameters])
    total = world.allreduce(torch.cat((flat, torch.tensor(flags).reshape(-1).to(flat))), what="gradients")
    have_gradient, are_sums = total[flat.numel() :].reshape(-1, 2).T.tolist()
    if not any(have_gradient):
        raise HpcgnnError(
            f"no parameter of {kind} has a gradient on any rank: call hpcgnn.sum_gradients after loss.backward() and before "
            "the optimiser's step",
            agreed=True,
        )
    if again := [name for name, ranks in zip(named, are_sums, strict=True) if ranks]:
        raise HpcgnnError(
            f"the gradient of {again[0]} is a sum over all ranks already, and a second sum would count it once for each rank: "
            "call hpcgnn.sum_gradients once for each step, after the last loss.backward(), and optimiser.zero_grad() before "
            "the first one",
            agreed=True,
        )
    for parameter, piece, ranks in zip(parameters, _pieces(total, parameters), have_gradient, strict=True):
        if ranks:
            gradient: Any = piece.to(parameter.dtype, copy=True)
            gradient.version_of_sum = gradient._version
            parameter.grad = gradient


def _is_sum(gradient: Tensor | None) -> bool:
    """Return whether ``gradient`` is a result of :func:`sum_gradients`, to which at most one ``backward`` has added its own. One
    change in place, which a tensor's version counts, that leaves zeros is a ``zero_grad`` that keeps tensors."""
    before = getattr(gradient, "version_of_sum", None)
    if gradient is None or before is None or gradient._version > before + 1:
        return False
    return gradient._version == before or bool(gradient.any())


# The options of a parameter group of torch, so each optimiser can load the state of the other.
_RATES = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
_SWITCHES = {"amsgrad": False, "maximize": False, "foreach": True, "capturable": False, "differentiable": False}
_OPTIONS = _RATES | _SWITCHES | {"fused": None, "decoupled_weight_decay": False}
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Adam:
    """:class:`torch.optim.Adam` with ``foreach=True``, bit for bit; each can load the ``state_dict`` of the other.

    torch's class imports torch's compiler at its first step, which costs each rank a second and about 75 MB for nothing; the
    function behind it does not. groups: parameter groups as torch has them. lr: learning rate of all groups, which the trainer
    changes in ``param_groups``.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float) -> None:
        self.param_groups: list[dict[str, Any]] = [_OPTIONS | {"lr": lr} | group for group in groups]
        self.state: dict[int, dict[str, Tensor]] = {}  # by the number of the parameter

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for parameter in self._parameters():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient."""
        numbers = counting()
        for group in self.param_groups:
            moved = {k: p for p, k in zip(group["params"], numbers, strict=False) if p.grad is not None}
            for number, parameter in moved.items():
                if number not in self.state:
                    moments = {name: torch.zeros_like(parameter) for name in _MOMENTS}
                    self.state[number] = {"step": torch.zeros(())} | moments
            means, squares, steps = ([self.state[k][name] for k in moved] for name in (*_MOMENTS, "step"))
            if moved:
                adam(
                    list(moved.values()), [p.grad for p in moved.values()], means, squares, [], steps, foreach=True,
                    amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"],
                    weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
                )  # fmt: skip

    def state_dict(self, without: Iterable[Tensor] = ()) -> dict[str, Any]:
        """The state in torch's format, in which parameters are numbered. without: parameters whose moments are left out."""
        numbers = counting()
        groups = [group | {"params": [next(numbers) for _ in group["params"]]} for group in self.param_groups]
        left = {self._number(parameter) for parameter in without}
        states = {number: state for number, state in self.state.items() if number not in left}
        return {"state": states, "param_groups": groups}

    def moments(self, parameter: Tensor) -> dict[str, Tensor] | None:
        """The state of one parameter: ``step`` and the moments; None before its first step."""
        return self.state.get(self._number(parameter))

    def set_moments(self, parameter: Tensor, state: dict[str, Any]) -> None:
        """Continue from the state of one parameter."""
        self.state[self._number(parameter)] = state | {"step": torch.tensor(float(state["step"]))}

    def _number(self, parameter: Tensor) -> int:
        return next(number for number, each in enumerate(self._parameters()) if each is parameter)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict` of an optimiser of as many parameters, in the same order."""
        parameters = list(self._parameters())
        self.param_groups = [
            theirs | {"params": mine["params"]}
            for mine, theirs in zip(self.param_groups, state["param_groups"], strict=True)
        ]
        self.state = {
            number: {"step": torch.tensor(float(values["step"]))}
            | {name: values[name].to(parameters[number].device, copy=True) for name in _MOMENTS}
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
