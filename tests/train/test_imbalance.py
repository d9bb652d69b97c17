"""The time lost to imbalance (``--measure-imbalance``): ranks that compute longer are told apart from rows that travel longer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_graphs
from rank_pool import ThreadPool
from trainings import lines

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.base.typed import read_json
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.exchange.traffic import IMBALANCE
from hpcgnn.train.rank_report import Ranks
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world import World

RANKS, EPOCHS, PAUSE = 3, 4, 0.1
WAITS = (IMBALANCE, "communication_wait_seconds", "synchronisation_seconds")
Slow = Callable[[World, Any], None]


def computes_longer(world: World, model: Any) -> None:
    """Rank 1 takes longer before its second layer, of which the forward pass begins with an exchange."""
    if world.rank == 1:
        model.layers[1].register_forward_pre_hook(lambda *_: time.sleep(PAUSE))


def computes_longer_before_a_norm(world: World, model: Any) -> None:
    """Rank 1 takes longer before batch normalisation, which sums over ranks."""
    if world.rank == 1:
        model.norms[0].register_forward_pre_hook(lambda *_: time.sleep(PAUSE))


def computes_longer_at_last(world: World, model: Any) -> None:
    """Rank 1 takes longer when all exchanges of the backward pass have ended."""
    if world.rank == 1:
        model.layers[0].bias.register_post_accumulate_grad_hook(lambda _: time.sleep(PAUSE))


def waits_for_bytes(world: World, model: Any) -> None:
    """The rows of the first layer take longer to come to rank 1 alone, which is then late for all that follows."""
    wait, arrived = world.wait, list[Any]()

    def waited(pending: Any) -> None:
        is_new = not any(pending is each for each in arrived)
        if world.rank == 1 and pending.what == "layer 1's boundary rows" and model.training and is_new:
            arrived.append(pending)
            time.sleep(PAUSE)
        wait(pending)

    world.wait = waited  # type: ignore[method-assign]


def trained(world: World, parts: Path, out: Path, slow: Slow, norm: str, staleness: str, measures: bool) -> list[float]:
    messages = Messages(world, MessageConfig(bits=8, overlap=False, measure_imbalance=measures))
    graph = hpcgnn.load(parts, world)
    model = hpcgnn.build_model(
        hpcgnn.ModelConfig("gcn", layers=2, hidden=8, norm=norm, dropout=0.0), graph, messages=messages
    )
    slow(world, model)
    config = hpcgnn.TrainConfig(epochs=EPOCHS, eval_every=EPOCHS, policy=hpcgnn.PolicyConfig(staleness=staleness))
    hpcgnn.Trainer(model, graph, config, run=RunFolder(out), stop=StopRequest()).fit()
    return [parameter.sum().item() for parameter in model.parameters()]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = small_graphs.random_multigraph()
    return small_graphs.in_parts(tmp_path_factory.mktemp("parts") / "parts.h5", graph, RANKS)


@pytest.mark.parametrize(
    ("slow", "norm", "staleness", "expected"),
    [
        (computes_longer, "none", "off", IMBALANCE),
        (computes_longer, "none", "pipeline", IMBALANCE),
        (computes_longer_before_a_norm, "batch", "off", IMBALANCE),
        (computes_longer_at_last, "layer", "off", IMBALANCE),
        (waits_for_bytes, "layer", "off", "communication_wait_seconds"),
        (waits_for_bytes, "batch", "off", "communication_wait_seconds"),
    ],
)
def test_late_ranks_and_late_bytes_are_told_apart(parts, tmp_path, slow, norm, staleness, expected) -> None:
    ThreadPool(RANKS).run(trained, parts, tmp_path / "run", slow, norm, staleness, True)
    _, *records = lines(tmp_path / "run")  # in the first epoch, ranks agree on the sizes of messages, and wait there
    # the least of these epochs, as other work of the machine makes ranks late as well
    lost = {name: min(record[f"{name}_mean"] for record in records) for name in WAITS}
    assert lost.pop(expected) > 0.6 * PAUSE  # two ranks of three wait, or all of them
    assert max(lost.values()) < 0.3 * PAUSE, lost
    if expected == IMBALANCE:
        zero, one, two = read_json(tmp_path / "run" / "ranks.json", Ranks).mean[expected]
        assert one < min(zero, two)  # nobody is later than rank 1


def test_without_it_nothing_is_measured_and_the_results_are_the_same(parts, tmp_path) -> None:
    found = [
        ThreadPool(RANKS).run(trained, parts, tmp_path / str(measures), computes_longer, "batch", "off", measures)
        for measures in (False, True)
    ]
    assert found[0] == found[1]
    assert [record["imbalance_seconds"] for record in lines(tmp_path / "False")] == [0.0] * EPOCHS
    assert (
        json.loads((tmp_path / "True" / "summary.json").read_text())["breakdown_seconds_median"]["imbalance_seconds"]
        > 0
    )
    path = tmp_path / "False" / "ranks.json"
    content = json.loads(path.read_text())
    for figures in (content["mean"], content["largest"]):
        del figures["imbalance_seconds"]  # as in files of earlier versions
    path.write_text(json.dumps(content))
    assert read_json(path, Ranks).mean["imbalance_seconds"] == [0.0] * RANKS
