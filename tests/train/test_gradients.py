"""Sums of gradients over ranks: which parameters have one, and calls that would count gradients twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import small_graphs
import torch
from ranks.gradients import (
    a_gradient_that_is_made_twice,
    sums_start_early,
    weights_with_and_without_overlap,
)
from torch import nn

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.train.optimiser import GradientBucket
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

RANKS = 3


class Part(nn.Module):
    """Of these parameters, ``everyones`` has a gradient on all ranks, ``ones`` on one, ``frozen`` and ``unused`` on none."""

    def __init__(self) -> None:
        super().__init__()
        self.everyones, self.ones, self.unused, self.frozen = (nn.Parameter(torch.ones(2)) for _ in range(4))
        self.frozen.requires_grad_(False)

    def backward(self, world: World) -> None:
        (self.everyones.sum() * (world.rank + 1)).backward()
        if world.rank == 1:
            (self.ones * 5).sum().backward()


def gradients_on_ranks(use: Callable[[Part, World], Any]) -> list[Any]:
    def program(world: World) -> Any:
        model = Part()
        model.backward(world)
        use(model, world)
        return {name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()}

    return on_threads(RANKS, program)


def test_gradients_are_summed_and_a_parameter_without_one_keeps_none() -> None:
    found = gradients_on_ranks(lambda model, world: hpcgnn.sum_gradients(model, world))
    assert found == [{"everyones": [6.0, 6.0], "ones": [5.0, 5.0], "unused": None, "frozen": None}] * RANKS


def test_a_trainer_leaves_parameters_without_a_gradient_alone() -> None:
    def reduce(model: Part, world: World) -> None:
        sums, count = GradientBucket(world, [list(model.parameters())], 1).reduce([2.0], 1)
        assert (sums, count) == ([2.0 * RANKS], RANKS)

    found = gradients_on_ranks(reduce)
    mean = pytest.approx([5 / RANKS] * 2)
    assert found == [{"everyones": [2.0, 2.0], "ones": mean, "unused": None, "frozen": None}] * RANKS


AGAIN = {
    "twice": lambda model, world: None,
    "once more after another backward": lambda model, world: model.backward(world),
    "by one rank's mistake": lambda model, world: model.zero_grad() or model.backward(world) if world.rank else None,
}


@pytest.mark.parametrize("then", AGAIN.values(), ids=AGAIN)
def test_sums_are_not_summed_again(then: Callable[[Part, World], Any]) -> None:
    def use(model: Part, world: World) -> None:
        hpcgnn.sum_gradients(model, world)
        then(model, world)
        with pytest.raises(
            HpcgnnError, match=r"gradient of everyones is a sum over all ranks already.*once for each step"
        ):
            hpcgnn.sum_gradients(model, world)

    gradients_on_ranks(use)


@pytest.mark.parametrize("to_none", [True, False])
def test_each_step_sums_its_own_gradients(to_none: bool) -> None:
    def use(model: Part, world: World) -> None:
        for _ in range(3):
            hpcgnn.sum_gradients(model, world)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            model.zero_grad(set_to_none=to_none)
            for _ in range(2):  # gradients that are accumulated
                model.backward(world)
        hpcgnn.sum_gradients(model, world)

    assert [found["everyones"] for found in gradients_on_ranks(use)] == [[12.0, 12.0]] * RANKS


@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_without_any_gradient_is_refused(frozen: bool) -> None:
    def program(world: World) -> None:
        model = Part().requires_grad_(not frozen)
        with pytest.raises(HpcgnnError, match="no parameter that needs" if frozen else r"after loss\.backward\(\)"):
            hpcgnn.sum_gradients(model, world)

    on_threads(RANKS, program)


def test_gradients_of_several_types_and_sparse_ones_keep_their_type() -> None:
    def program(world: World) -> None:
        model = nn.ModuleList([nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1).double()])
        model[0](torch.tensor([world.rank])).sum().backward()
        model[1](torch.ones(1, 2).double()).sum().backward()
        hpcgnn.sum_gradients(model, world)
        assert model[0].weight.grad.tolist() == [[1.0, 1.0]] * RANKS + [[0.0, 0.0]]
        assert model[1].weight.grad.dtype == torch.float64

    on_threads(RANKS, program)


@pytest.mark.mpi
def test_the_sums_of_a_layer_start_once_its_gradients_are_there(mpi_ranks) -> None:
    found = mpi_ranks(3).run(sums_start_early)
    of_first, of_c, of_d = 2 * (1 + 2 + 3) / 3, 2 * (1 + 2 + 3) / 3, 2 * (1 + 3) / 3
    for rank, (events, gradients) in enumerate(found):
        late = ["first layer", "end", "sum", "sum"]
        assert events == (late if rank == 1 else ["sum", "first layer", "sum", "end"])
        wanted = [[value] * 2 for value in (of_first, of_first, of_c, of_d)]
        torch.testing.assert_close(torch.tensor(gradients), torch.tensor(wanted))


@pytest.mark.mpi
def test_a_gradient_that_is_made_twice_is_refused(mpi_ranks) -> None:
    mpi_ranks(3).run(a_gradient_that_is_made_twice)


@pytest.mark.mpi
@pytest.mark.parametrize("model", ["sage", "gat", "gcnii"])
def test_sums_that_start_early_change_no_bit(mpi_ranks, tmp_path, model: str) -> None:
    parts = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 3)
    for early, late in mpi_ranks(3).run(weights_with_and_without_overlap, parts, model):
        assert early.keys() == late.keys()
        assert all(torch.equal(early[name], late[name]) for name in early)
