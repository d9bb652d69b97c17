"""The optimiser, its schedule, losses and metrics, without a run."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rank_pool import ThreadPool
from ranks import metrics

from hpcgnn.kernels.sizes import scaled_by
from hpcgnn.train import objective
from hpcgnn.train.config import Best, ScheduleConfig, learning_rate_factor
from hpcgnn.train.optimiser import Adam, parameter_groups
from hpcgnn.world.thread_world import one_rank

# -- Adam equals torch's bit for bit -----------------------------------------------------------------------------------


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((5, 3), (7,), (2, 2))]


def steps(optimiser, parameters: list[torch.nn.Parameter], numbers: range) -> None:
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        optimiser.zero_grad()
        for parameter in parameters[: 2 if number == 2 else 3]:  # once, the last one has no gradient
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for group in optimiser.param_groups:
            group["lr"] = 0.01 / (1 + number)
        optimiser.step()


def groups(parameters: list[torch.nn.Parameter]) -> list[dict]:
    return [{"params": parameters[:1], "weight_decay": 0.1}, {"params": parameters[1:], "weight_decay": 0.0}]


def test_it_is_torchs_bit_for_bit_and_takes_its_state():
    mine, theirs = parameters(), parameters()
    optimiser, wanted = Adam(groups(mine), lr=0.5), torch.optim.Adam(groups(theirs), lr=0.5, foreach=True)
    steps(optimiser, mine, range(4))
    steps(wanted, theirs, range(4))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert optimiser.state_dict()["param_groups"] == wanted.state_dict()["param_groups"]
    resumed, wanted_again = Adam(groups(mine), lr=9.0), torch.optim.Adam(groups(theirs), lr=9.0, foreach=True)
    resumed.load_state_dict(wanted.state_dict())
    wanted_again.load_state_dict(optimiser.state_dict())
    steps(resumed, mine, range(4, 7))
    steps(wanted_again, theirs, range(4, 7))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.slow
def test_training_does_not_import_the_compiler():
    program = (
        "import sys, torch; from hpcgnn.train.optimiser import Adam; from hpcgnn.train.trainer import Trainer\n"
        "p = torch.nn.Parameter(torch.ones(2)); p.grad = torch.ones(2)\n"
        "Adam([{'params': [p]}], lr=0.1).step()\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_dense_parameters_may_have_a_weight_decay_of_their_own():
    first, second, third = parameters()
    model = SimpleNamespace(dense_parameters=lambda: [second], parameters=lambda: iter([first, second, third]))
    decays = {id(p): group["weight_decay"] for group in parameter_groups(model, 0.1, 0.5) for p in group["params"]}
    assert decays == {id(first): 0.1, id(second): 0.5, id(third): 0.1}


# -- learning rates and early stopping ---------------------------------------------------------------------------------


def factors(config: ScheduleConfig, epochs: int = 10) -> list[float]:
    return [learning_rate_factor(config, epoch, epochs, Best()) for epoch in range(epochs)]


def test_constant_with_warmup():
    assert factors(ScheduleConfig(warmup=4))[:5] == [0.25, 0.5, 0.75, 1, 1]


def test_cosine_and_steps():
    found = factors(ScheduleConfig("cosine"))
    assert found[0] == 1
    assert found == sorted(found, reverse=True)
    assert found[5] == pytest.approx(0.5)
    assert factors(ScheduleConfig("step", decay=0.1, decay_every=4)) == pytest.approx([1] * 4 + [0.1] * 4 + [0.01] * 2)


def test_plateau_falls_when_nothing_improves():
    config, best, found = ScheduleConfig("plateau", decay=0.5, decay_every=2), Best(), []
    for epoch, metric in enumerate([0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.9, 0.8]):
        found.append(learning_rate_factor(config, epoch, 8, best))
        best.update(epoch, metric, metric, config.decay_every)
    assert found == [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    assert (best.epoch, best.val_metric) == (6, 0.9)


@pytest.mark.parametrize(
    ("evaluated", "epoch", "exhausted"),
    [
        ({}, -1, {5: False}),
        ({9: 0.5}, 9, {5: False}),
        ({9: 0.5, 19: 0.4}, 9, {10: True, 11: False, 0: False}),
        # Of equally good ones, the last is best, and patience does not wait for it.
        ({0: 0.5, 1: 0.7, 2: 0.6, 3: 0.7}, 3, {2: True, 3: False}),
        ({0: None, 1: None}, 1, {}),  # without validation nodes, the latest is best
    ],
)
def test_the_best_evaluation_and_when_patience_ends(evaluated, epoch, exhausted):
    best = Best()
    for number, metric in evaluated.items():
        best.update(number, metric, metric or 0.5, 100)
    assert best.epoch == epoch
    assert {patience: best.is_exhausted(patience) for patience in exhausted} == exhausted


def test_a_state_that_is_older_than_patience_from_the_first_best_goes_on():
    state = {"epoch": 110, "val_metric": 0.7, "test_metric": 0.7, "plateaus": 0, "plateau_since": 0, "evaluated": 119}
    assert not Best.from_state(state).is_exhausted(50)
    assert Best.from_state(Best(3, improved=2).state()).improved == 2


# -- losses and metrics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_metrics_equal_scikit_learn(ranks):
    found = ThreadPool(ranks).run(metrics.compare)[0]
    assert len(found) == 10
    for name, (value, of_nothing, wanted) in found.items():
        assert value == (wanted if wanted is None else pytest.approx(wanted, abs=1e-12)), name
        assert of_nothing is None, name


def test_a_link_with_the_score_of_the_kth_negative_pair_is_no_hit():
    joined, apart = np.array([3.0, 2.0, 2.0, 1.0]), np.array([0.0, 2.0, 5.0])
    hits = [objective.link_metric(one_rank(), f"hits@{k}", joined, apart) for k in (1, 2, 3, 4)]
    assert hits == [0, 0.25, 1, 1]


@pytest.mark.parametrize(("learned", "classes", "options"), [(0, 2, {}), (20_000, 8, {}), (9, 3, {"smoothing": 0.2})])
def test_blocks_of_rows_have_the_loss_and_gradient_of_torch(learned, classes, options):
    scores, y = torch.randn(40_000, classes), torch.randint(0, classes, (40_000,))
    nodes, found, wanted = torch.arange(learned) * 2, scores.clone().requires_grad_(), scores.clone().requires_grad_()
    smoothing = options.get("smoothing", 0.0)
    plain = torch.nn.functional.cross_entropy(wanted[nodes], y[nodes], reduction="sum", label_smoothing=smoothing)
    (3 * plain).backward()
    with scaled_by(0):  # else few rows have no blocks
        loss = objective.loss_sum(found, y, nodes, **options)
        (3 * loss).backward()
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found.grad, wanted.grad)
