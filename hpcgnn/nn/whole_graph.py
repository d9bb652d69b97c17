"""Values of all nodes of a graph, from the rows of each rank's own nodes, and the loss of a whole graph.

Their results are the same on all ranks. Gradients follow one rule: each rank starts ``backward`` from the loss that
:func:`mean_loss` gives it, and ``hpcgnn.sum_gradients`` adds up what each rank has found.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from hpcgnn.base.arguments import check_type
from hpcgnn.base.errors import HpcgnnError, WrongTypeError, WrongValueError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels.activation import column_sums
from hpcgnn.kernels.again import once
from hpcgnn.kernels.autograd import recorded_linear, tracked
from hpcgnn.world import World

SUMS_OVER_NODES = "sums over nodes"  # for which ranks wait


def _total(values: torch.Tensor, world: World) -> torch.Tensor:
    """The sum of all ranks' values, as a tensor of its own: the result knows the graph, and a part that runs again keeps what
    came."""
    return values.clone() if world.size == 1 else once(lambda: _summed(values.detach(), world)).clone()


def _summed(values: torch.Tensor, world: World) -> torch.Tensor:
    world.meet()
    return world.allreduce(values, what=SUMS_OVER_NODES)


def _sums_of_columns(x: torch.Tensor, backend: str) -> torch.Tensor:
    """(F,) float64 sums of the columns of (n, F), differentiable, without a copy of it in float64."""
    if not tracked(x):
        return column_sums(x.detach(), backend)
    shape, dtype = x.shape, x.dtype
    return recorded_linear(x, partial(column_sums, backend=backend), lambda sums: sums.to(dtype).expand(shape))


def sum_over_ranks(values: torch.Tensor, world: World) -> torch.Tensor:
    """The sum of all ranks' ``values``, differentiable; with one rank, it may be ``values``. Collective, forward and backward."""
    if tracked(values):
        total = partial(_total, world=world)
        return recorded_linear(values, total, total)
    return values if world.size == 1 else _total(values, world)


def mean_over_ranks(x: torch.Tensor, world: World, backend: str = "auto") -> tuple[torch.Tensor, float]:
    """The (F,) float64 mean of all ranks' (n, F) rows, and the number of rows. Collective, forward and backward."""
    sums, rows = _sums_of_columns(x, backend), float(x.shape[0])
    if world.size == 1:  # its device need not wait for the host
        return sums / rows, rows
    sums = sum_over_ranks(torch.cat((sums, sums.new_full((1,), rows))), world)
    total = float(sums[-1].detach())
    return sums[:-1] / total, total


def moments_over_ranks(x: torch.Tensor, world: World) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The mean and the variance around it, both (F,) float64, and the number of rows. Collective, forward and backward."""
    mean, total = mean_over_ranks(x, world)
    return mean, sum_over_ranks(((x.double() - mean) ** 2).sum(0), world) / total, total


_PRESENT = threading.local()  # ranks that are threads have one each


@contextmanager
def among(world: World) -> Iterator[None]:
    """In this context, all nodes are those of the ranks of ``world``, whatever graph is given: that of a rehearsal, perhaps."""
    before = getattr(_PRESENT, "world", None)
    _PRESENT.world = world
    try:
        yield
    finally:
        _PRESENT.world = before


def mean(x: torch.Tensor, graph: LocalGraph) -> torch.Tensor:
    """The mean of the rows of all ranks, as ``x.mean(0)`` of one process. Collective, forward and backward.

    It may be used in the ``forward`` of a distributed model, and for values of nodes that enter :func:`mean_loss`. A mean over
    some nodes is ``hpcgnn.mean(x[mask], graph)``. In a loss, add a value of all nodes to each of the values of ``mean_loss``:
    beside it, it would count once for each rank.

    Args:
        x: (n, ...) tensor with any number of rows on this rank, also none; of the same shape beyond that on all ranks.
        graph: this rank's part, as ``hpcgnn.load`` returns it.

    Returns:
        A tensor of shape ``x.shape[1:]``, of the type of ``x`` or, for integers, torch's default type. The same on all ranks,
        differentiable.

    Raises:
        HpcgnnError: if ``x`` is no tensor of real numbers with rows; on every rank, if no rank has a row.
    """
    rows, world = _rows(x), _world(graph)
    with torch._C.DisableTorchFunction():
        found, total = mean_over_ranks(rows, world)
        _check_any("mean", total)
        return found.view(x.shape[1:]).to(x.dtype if x.is_floating_point() else torch.get_default_dtype())


def sum(x: torch.Tensor, graph: LocalGraph) -> torch.Tensor:
    """The sum of the rows of all ranks, as ``x.sum(0)`` of one process. Collective, forward and backward.

    See :func:`mean` for where it may be used. ``hpcgnn.sum(graph.masks["train_mask"], graph)`` counts training nodes.

    Args:
        x: (n, ...) tensor, as for :func:`mean`. Integers are added exactly below 2**53.
        graph: this rank's part, as ``hpcgnn.load`` returns it.

    Returns:
        A tensor of shape ``x.shape[1:]``, of the type of ``x`` or, for integers and bool, int64. The same on all ranks,
        differentiable.

    Raises:
        HpcgnnError: if ``x`` is no tensor of real numbers with rows.
    """
    rows, world = _rows(x), _world(graph)
    with torch._C.DisableTorchFunction():
        found = sum_over_ranks(_sums_of_columns(rows, "auto"), world).view(x.shape[1:])
        return found.to(x.dtype if x.is_floating_point() else torch.int64)


def max(x: torch.Tensor, graph: LocalGraph) -> torch.Tensor:
    """The largest value of each column over the rows of all ranks, as ``x.amax(0)`` of one process. Collective, forward and
    backward.

    See :func:`mean` for where it may be used. Gradients are divided evenly among equal largest values, as torch's ``amax`` does.

    Args:
        x: (n, ...) tensor, as for :func:`mean`. Integers are exact below 2**53.
        graph: this rank's part, as ``hpcgnn.load`` returns it.

    Returns:
        A tensor of shape ``x.shape[1:]``, of the type of ``x``. The same on all ranks, differentiable. NaN where some row is.

    Raises:
        HpcgnnError: if ``x`` is no tensor of real numbers with rows; on every rank, if no rank has a row.
    """
    return _largest("max", x, graph, 1)


def min(x: torch.Tensor, graph: LocalGraph) -> torch.Tensor:
    """The smallest value of each column over the rows of all ranks, as ``x.amin(0)`` of one process. Collective, forward and
    backward.

    Args:
        x: (n, ...) tensor, as for :func:`max`.
        graph: this rank's part, as ``hpcgnn.load`` returns it.

    Returns:
        A tensor of shape ``x.shape[1:]``, see :func:`max`.

    Raises:
        HpcgnnError: as :func:`max`.
    """
    return _largest("min", x, graph, -1)


def softmax(x: torch.Tensor, graph: LocalGraph) -> torch.Tensor:
    """The softmax of each column over the rows of all ranks, as ``x.softmax(0)`` of one process. Collective, forward and
    backward.

    Args:
        x: (n, ...) tensor of floats, as for :func:`mean`.
        graph: this rank's part, as ``hpcgnn.load`` returns it.

    Returns:
        An (n, ...) tensor of the shape and type of ``x``, with this rank's rows of the result; differentiable.

    Raises:
        HpcgnnError: if ``x`` is no tensor of real numbers with rows; on every rank, if no rank has a row.
    """
    shares = (x - max(_rows_of("x", x).detach(), graph)).exp()
    return shares / sum(shares, graph)


def mean_loss(values: torch.Tensor, graph: LocalGraph) -> torch.Tensor:
    """The mean of all ranks' values of a loss, for a training loop of one's own. Collective.

    ``backward`` from it leaves this rank's share of the gradients in the parameters, and ``hpcgnn.sum_gradients`` turns the
    shares into the gradients of the mean over the whole graph. It is the same for any number of ranks, and equal to a loss with
    ``reduction="mean"`` of one process. Terms that are no sums over nodes, such as the squared norm of weights, are added to
    the values, and so count once: ``mean_loss(values + 1e-4 * norm, graph)``.

    Example:
        ``hpcgnn.mean_loss(F.cross_entropy(scores[train], graph.y[train], reduction="none"), graph).backward()``

    Args:
        values: (k,) or (k, ...) losses of k nodes of this rank, from ``reduction="none"``. k may be 0.
        graph: this rank's part, as ``hpcgnn.load`` returns it.

    Returns:
        A tensor () with the mean over the values of all ranks, of their type or, for integers and bool, torch's default type.
        The same on all ranks.

    Raises:
        HpcgnnError: if ``values`` is a single number, which is a mean or a sum already; on every rank, if no rank has a value.
    """
    check_type("values", values, torch.Tensor)
    if values.dim() == 0:
        raise WrongValueError(
            'values must have an entry for each node, not be a mean or a sum of them: give the loss reduction="none"'
        )
    _rows_of("values", values)
    return _MeanLoss.apply(values, _world(graph))


class _MeanLoss(torch.autograd.Function):
    """The mean over the values of all ranks in forward; in backward, the gradients of this rank's own values alone."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, world: World) -> torch.Tensor:
        mine = torch.stack((values.double().sum(), values.new_tensor(values.numel(), dtype=torch.float64)))
        total, count = world.allreduce(mine, what="the mean of losses").unbind()
        _check_any("mean_loss", float(count))
        ctx.shape, ctx.count = values.shape, float(count)
        return (total / count).to(values.dtype if values.is_floating_point() else torch.get_default_dtype())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (gradients[0] / ctx.count).expand(ctx.shape), None


class _Largest(torch.autograd.Function):
    """The (F,) largest values of all ranks' (n, F) float64 rows. Collective in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, world: World, name: str) -> torch.Tensor:
        lowest = rows.new_full((1, rows.shape[1]), -torch.inf)
        mine = torch.cat((lowest, rows)).nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(0)
        flags = torch.cat((rows.isnan().any(0).double(), rows.new_tensor([float(len(rows) > 0)])))
        world.meet()
        all_ = world.allreduce(torch.cat((mine, flags)), "max", f"the {name} over nodes")
        _check_any(name, float(all_[-1]))
        found = torch.where(all_[rows.shape[1] : -1] > 0, torch.nan, all_[: rows.shape[1]])
        ctx.world = world
        ctx.save_for_backward(rows == found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (is_largest,) = ctx.saved_tensors
        total, ties = sum_over_ranks(torch.cat((gradients[0], is_largest.double().sum(0))), ctx.world).chunk(2)
        return is_largest * (total / ties.clamp(min=1)), None, None


def _largest(name: str, x: torch.Tensor, graph: LocalGraph, sign: int) -> torch.Tensor:
    rows, world = _rows(x), _world(graph)
    with torch._C.DisableTorchFunction():
        found = sign * _Largest.apply(sign * rows.double(), world, name)
        return found.view(x.shape[1:]).to(x.dtype)


def _world(graph: LocalGraph) -> World:
    check_type("graph", graph, LocalGraph)
    return getattr(_PRESENT, "world", None) or graph.world


def _rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` as (n, F)."""
    with torch._C.DisableTorchFunction():
        return _rows_of("x", x).reshape(x.shape[0], x.shape[1:].numel())


def _rows_of(name: str, x: torch.Tensor) -> torch.Tensor:
    check_type(name, x, torch.Tensor)
    if x.is_complex() or x.layout != torch.strided:
        raise WrongTypeError(f"{name} must be a dense tensor of real numbers, not {x.dtype} of layout {x.layout}")
    if x.dim() == 0:
        raise WrongValueError(f"{name} must have a row for each of some nodes of this rank, not be a single number")
    return x


def _check_any(name: str, total: float) -> None:
    if not total:
        raise HpcgnnError(f"hpcgnn.{name} has no row on any rank", agreed=True)
