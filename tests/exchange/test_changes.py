"""The change of rows at the sender, without the noise of dropout and of rounding, and inputs that never change."""

from pathlib import Path

import numpy as np
import pytest
import small_graphs
import torch

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.exchange.changes import RowChange, RowChanges
from hpcgnn.world.thread_world import on_threads
from hpcgnn.world.world import World

_ROWS, _WIDTH = 400, 64


def changes_of(messages: list[tuple[int, torch.Tensor]], rows: int = _ROWS, every: int = 1) -> list[RowChange | None]:
    """The change that each message, of an epoch, shows."""
    traced, found = RowChanges(rows, torch.device("cpu"), every), []
    for epoch, sent in messages:
        traced.note(sent, None, 0, epoch)
        found.append(traced.of_ranks(traced.take()))
    return found


def moving(rate: float, dropout: float, epochs: list[int]) -> list[tuple[int, torch.Tensor]]:
    """Rows of length 1 on average that move by ``rate`` in each epoch, with dropout."""
    draw = torch.Generator().manual_seed(7)
    start, way = (torch.randn(_ROWS, _WIDTH, generator=draw) for _ in range(2))
    kept = [(torch.rand(_ROWS, _WIDTH, generator=draw) >= dropout) / (1 - dropout) for _ in epochs]
    return [(epoch, (start + rate * epoch * way) * mask) for epoch, mask in zip(epochs, kept, strict=True)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_change_is_that_of_the_rows_without_dropout(rate, dropout):
    *first, found = changes_of(moving(rate, dropout, [0, 1, 2, 3, 4]))
    assert first == [None] * 4, "noise is told from motion after five messages"
    square, before = 1 + (4 * rate) ** 2, 1 + (3 * rate) ** 2  # of the last value and the one before, without dropout
    kept = 1 - dropout  # the share of the squares that is not noise
    assert found.noise == pytest.approx(dropout, abs=0.02)
    assert found.squared_change == pytest.approx(kept * rate**2 / square, abs=0.03)
    cosine = (1 + 12 * rate**2) / np.sqrt(square * before)
    assert found.distance == pytest.approx(kept * (1 - cosine), abs=0.02)


def test_a_third_of_a_random_walk_is_noise():
    draw = torch.Generator().manual_seed(3)
    steps = 10 * torch.randn(_ROWS, _WIDTH, generator=draw) + torch.randn(6, _ROWS, _WIDTH, generator=draw).cumsum(0)
    found = changes_of(list(enumerate(steps)))[-1]
    assert found.squared_change == pytest.approx(0.01 / 3, rel=0.15)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_rows_that_swing_between_two_values_move(dropout):
    """As where a learning rate is too high. The rows of two messages are two apart, and those of every second one are alike."""
    rows = moving(0.0, dropout, list(range(8)))
    draw = torch.Generator().manual_seed(5)
    way = torch.randn(_ROWS, _WIDTH, generator=draw)
    swinging = [(epoch, each + (-1) ** epoch * way * (each != 0) / (1 - dropout)) for epoch, each in rows]
    found = changes_of(swinging)[-1]
    assert found.noise == pytest.approx(dropout, abs=0.02)
    assert found.distance == pytest.approx(1 - dropout, rel=0.1)
    assert found.squared_change == 0, "swings average out"


def test_rows_that_start_fast_and_slow_down_move():
    """The first messages of a training are off every trend, which is not noise."""
    start, step = moving(1.0, 0.0, [0, 1])
    way = step[1] - start[1]
    places = np.cumsum(3.0 * 0.5 ** np.arange(6))
    found = changes_of([(epoch, start[1] + float(place) * way) for epoch, place in enumerate(places)])
    assert found[4].distance > 0.5 * (1 - np.cos(np.diff(np.arctan(places))[3]))


def test_rows_of_nothing_but_noise_do_not_move():
    draw = torch.Generator().manual_seed(2)
    found = changes_of([(epoch, torch.randn(_ROWS, _WIDTH, generator=draw)) for epoch in range(8)])
    for each in found[4:]:
        assert each.noise == pytest.approx(1, abs=0.02)
        assert (each.distance, each.squared_change) == (pytest.approx(0, abs=1e-3), pytest.approx(0, abs=2e-3))


def test_rows_are_compared_in_some_epochs_only_and_epochs_without_messages_count():
    found = changes_of(moving(0.1, 0.0, [0, 4, 6, 7, 10]))[-1]
    assert (found.epochs, found.noise) == (3, pytest.approx(0, abs=1e-6))
    assert found.distance == pytest.approx(1 - 1.7 / np.sqrt(1.49 * 2), rel=0.25)
    epochs = list(range(18))
    found = changes_of(moving(0.1, 0.5, epochs), every=4)
    assert [epoch for epoch, change in zip(epochs, found, strict=True) if change is not None] == [16]
    alone = changes_of([each for each in moving(0.1, 0.5, epochs) if each[0] % 4 == 0])
    assert found[16] is not None
    assert (found[16], found[16].epochs) == (alone[-1], 4)


def test_rounding_error_is_that_of_messages():
    rows = moving(0.0, 0.0, [0, 1, 2])[0][1]
    found = changes_of([(epoch, rows) for epoch in range(5)])[-1]
    assert (found.distance, found.squared_change, found.noise) == (0, 0, 0)
    spread = rows.amax(1) - rows.amin(1)
    for bits in (1, 2, 8):
        step = spread[:, None] / (2**bits - 1)
        grid = (rows - rows.amin(1, keepdim=True)) / step
        down = grid - grid.floor()
        expected = (down * (1 - down) * step**2).sum() / rows.square().sum()  # of rounding at random
        assert found.rounding_error(bits) == pytest.approx(float(expected), rel=0.25 if bits > 1 else 0.6)
    assert found.rounding_error(16) == 0


def test_zeros_and_rows_that_leave_float64_show_no_change():
    for values in (torch.zeros(3, 8), torch.full((3, 8), torch.inf)):
        assert changes_of([(epoch, values) for epoch in range(6)], rows=3)[-1] is None


def test_a_large_exchange_is_sampled_evenly():
    traced = RowChanges(100_000, torch.device("cpu"))
    rows = torch.arange(100_000.0)[:, None].expand(-1, 4)
    traced.note(rows, None, 0, 0)
    (kept,) = traced.state()["kept"].values()
    assert kept["rows"].shape == (1, 8192, 4)
    assert kept["rows"][0, 4096, 0] == pytest.approx(50_000, abs=13)


def test_the_samples_of_a_checkpoint_continue_and_those_of_other_rows_are_refused():
    sent = moving(0.2, 0.5, list(range(7)))
    whole, first, second = (RowChanges(_ROWS, torch.device("cpu")) for _ in range(3))

    def last_of(traced: RowChanges, some: list[tuple[int, torch.Tensor]]) -> RowChange | None:
        for epoch, rows in some:
            traced.note(rows, None, 0, epoch)
            found = traced.of_ranks(traced.take())
        return found

    wanted = last_of(whole, sent)
    last_of(first, sent[:6])
    second.load(first.state(), "last.pt")
    assert last_of(second, sent[6:]) == wanted
    assert wanted is not None
    with pytest.raises(
        HpcgnnError, match=r"^last.pt: the sampled rows have the shape \(2, 400, 64\), not \(2, 3, 64\)$"
    ):
        RowChanges(3, torch.device("cpu")).load(first.state(), "last.pt")


# -- inputs that never change ------------------------------------------------------------------------------------------


def trained(world: World, path: Path, policy: hpcgnn.PolicyConfig, **settings: float) -> list[list[str]]:
    """The exchanges that send rows in each of six epochs of GraphSAGE, whose first one sends the features."""
    graph = hpcgnn.load(path, world)
    config = hpcgnn.ModelConfig("sage", layers=2, hidden=48, dropout=0.5, **settings)
    messages = Messages(world, MessageConfig(bits=2))
    model = hpcgnn.build_model(config, graph, messages=messages)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=7, eval_every=7, policy=policy))
    started = []
    for _ in range(6):
        trainer.run_epoch()
        started.append([each.name for each in messages.traffic.exchanges_started])
    return started


_FEATURES = "layer 1's boundary rows"


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 2)


@pytest.mark.parametrize(
    "policy",
    [("fixed", "pipeline"), ("adaqp", "off"), ("sylvie", "sylvie")],
    ids="-".join,
)
def test_features_are_sent_once(policy, parts):
    for started in on_threads(2, lambda world: trained(world, parts, hpcgnn.PolicyConfig(*policy))):
        assert [_FEATURES in names for names in started] == [True] + [False] * 5


def test_features_with_dropout_are_sent_in_every_epoch(parts):
    policy = hpcgnn.PolicyConfig("uniform", "pipeline")
    for started in on_threads(2, lambda world: trained(world, parts, policy, input_dropout=0.5)):
        assert all(_FEATURES in names for names in started)


def test_noise_whose_size_varies_by_far_is_no_motion():
    """As gradients at rest: in each message, other nodes have errors, and those of a few rows outweigh all others."""
    draw = torch.Generator().manual_seed(11)
    sent = []
    for epoch in range(60):
        sizes = torch.exp(3 * torch.randn(_ROWS, 1, generator=draw))
        sent.append((epoch, sizes * (0.2 + torch.randn(_ROWS, _WIDTH, generator=draw))))
    found = changes_of(sent)
    assert max(each.distance for each in found[12:] if each) < 0.1
    assert np.mean([each.distance for each in found[12:] if each]) < 0.002
