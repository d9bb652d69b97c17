"""Policies in a trainer: AdaQP measures links by itself, and random bits have the bytes that were asked for."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
from rank_pool import ThreadPool
from requires import EVERYTHING

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import StopRequest
from hpcgnn.exchange import Messages
from hpcgnn.policy import adaqp
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.train.run_config import RunConfig
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

COSTS = LinkCosts({"node": 1e-9}, {"node": 1e-6})
GCN = hpcgnn.ModelConfig("gcn", layers=2, hidden=8, dropout=0.0)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 2)


def trainer_of(
    world: World, path: Path, policy: hpcgnn.PolicyConfig, model: hpcgnn.ModelConfig = GCN, *, costs: Any = lambda: COSTS,
    lr: float = 0.01,
) -> hpcgnn.Trainer:  # fmt: skip
    graph = hpcgnn.load(path, world)
    config = hpcgnn.TrainConfig(epochs=10, lr=lr, policy=policy)
    return hpcgnn.Trainer(hpcgnn.build_model(model, graph), graph, config, stop=StopRequest(), measure_costs=costs)


def test_links_are_measured_for_each_assignment_and_by_the_given_function_if_there_is_one(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, policy = list[int](), hpcgnn.PolicyConfig("adaqp", bits_period=1)

    def measured(world: World, size: int, seconds: float) -> LinkCosts:
        calls.append(world.rank)
        assert 1 << 14 <= size <= 1 << 20
        assert seconds > 0
        return COSTS

    def decided(world: World, costs: Any) -> dict[str, Any]:
        trainer = trainer_of(world, parts, policy, costs=costs)
        return [trainer.run_epoch() for _ in range(5)][-1]["policy"]

    monkeypatch.setattr(adaqp, "measure_links", measured)
    by_itself, given = (ThreadPool(2).run(decided, how)[0] for how in (None, lambda: COSTS))
    assert sorted(calls) == [0, 0, 0, 1, 1, 1]  # in the epochs from the third one on
    assert by_itself.keys() == given.keys()
    assert "layer 2's boundary rows" in given


# -- random bit-widths of a given size ---------------------------------------------------------------------------------

EVEN = small_graphs.even_graph(5000, 25000)  # without hubs, so that many rows travel


def of_epochs(world: World, path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of six epochs, or of those in ``settings``; bits are drawn anew in each third."""
    run = RunConfig.from_settings({"layers": 2, "hidden": 24, "dropout": 0.0, "epochs": 6} | settings)
    graph = hpcgnn.load(path, world)
    model = hpcgnn.build_model(run.model, graph, messages=Messages(world, run.messages))
    trainer = hpcgnn.Trainer(model, graph, run.train, stop=StopRequest())
    return [trainer.run_epoch() for _ in range(run.train.epochs)]


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_graphs.in_parts(tmp_path_factory.mktemp("even") / "parts.h5", EVEN, 3)


@pytest.fixture(scope="module")
def of_bits(even: Path) -> dict[tuple[str, float], int]:
    """The bytes of an epoch by bit-width and input dropout. Without it, constant features travel in the first epoch alone."""
    stale, found = {"staleness": "pipeline"}, {}
    for bits, dropout in itertools.product(("2", "8", "uniform"), (0.0, 0.3)):
        found[bits, dropout] = ThreadPool(3).run(of_epochs, even, stale | {"bits": bits, "input_dropout": dropout})[0]
    return {how: records[-1]["bytes_sent"] for how, records in found.items()}


SHARES = (0.0, 0.1, 0.35, 0.6, 1.0)
WAYS = ({}, {"input_dropout": 0.3}, {"message_coding": "delta"}, {"staleness": "pipeline"})
BY_TURNS = [
    (share, more) for n, share in enumerate(SHARES) for k, more in enumerate(WAYS) if EVERYTHING or (n + k) % 3 == 0
]


@pytest.mark.parametrize(("share", "more"), BY_TURNS, ids=str)
def test_random_bits_have_the_bytes_that_were_asked_for(even, of_bits, share, more) -> None:
    """From the third epoch on, on all ranks together, by equal shares mixed with the shares of one end."""
    dropout = more.get("input_dropout", 0.0)
    two, eight, random = (of_bits[bits, dropout] for bits in ("2", "8", "uniform"))
    wanted = two + round(share * (eight - two))
    settings = {"bits": f"uniform:{wanted}", "bits_period": 3} | more
    _, second, *others = ThreadPool(3).run(of_epochs, even, settings)[0]
    assert second["bytes_sent"] == pytest.approx(random, rel=0.02)
    for record in others:
        assert record["bytes_sent"] == pytest.approx(wanted, rel=0.003)
    assert others[1]["bits"] == others[2]["bits"]
    for name, rows in others[0]["bits"].items():  # of the draw before, by chance less than a row of each rank off
        assert all(abs(count - others[1]["bits"][name].get(bits, 0)) <= 3 for bits, count in rows.items())
    total = sum(map(Counter, others[-1]["bits"].values()), Counter())
    shares = [total[bits] / total.total() for bits in ("2", "4", "8")]
    equal = (random - two) / (eight - two)
    below, above = max(1 - share / equal, 0), max((share - equal) / (1 - equal), 0)
    even_part = (1 - below - above) / 3
    assert shares == pytest.approx([below + even_part, even_part, above + even_part], abs=0.02)


@pytest.mark.parametrize("wanted", [1, "1e12"])
def test_bytes_out_of_reach_are_refused_with_those_in_reach(even, of_bits, wanted) -> None:
    reach = " to ".join(str(of_bits[bits, 0.0]) for bits in ("2", "8"))
    with pytest.raises(HpcgnnError, match=f"give {reach} bytes in an epoch of this run"):
        ThreadPool(3).run(of_epochs, even, {"bits": f"uniform:{wanted}"})


def test_adaqp_decides_about_a_frozen_model_as_about_the_first_epochs(tmp_path: Path) -> None:
    """Rows that stay as they are have the ranges, and therefore the bits, of before: rounding adds no range of its own."""
    policy = hpcgnn.PolicyConfig("adaqp", bits_period=1, group_rows=3, time_scale="span", variance_weight=0.35)
    parts = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.even_graph(300, 1500), 2)

    def program(world: World) -> list[dict[str, Any]]:
        trainer = trainer_of(world, parts, policy, replace(GCN, layers=3), lr=1e-12)
        return [trainer.run_epoch() for _ in range(8)]

    records = ThreadPool(2).run(program)[0][3:]
    rows = [record["bits"]["layer 2's boundary rows"] for record in records]
    assert len(rows[0]) > 1
    total = sum(rows[0].values())
    for found in rows[1:]:  # ranges of rounded rows differ a little
        assert all(abs(found.get(bits, 0) - count) <= 0.05 * total for bits, count in rows[0].items())


def test_each_rank_gets_the_bits_of_its_own_groups(tmp_path: Path) -> None:
    """Of the rows for one rank, those with a larger beta have as many bits or more."""
    policy = hpcgnn.PolicyConfig("adaqp", group_rows=1, time_scale="span")
    parts = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.even_graph(300, 1500), 3)

    def program(world: World) -> int:
        trainer = trainer_of(world, parts, policy, replace(GCN, layers=3))
        own, seen, mixed = trainer.policies._bits, {}, 0
        grouped = own._grouped

        def noted(number: int, *costs: Any) -> Any:
            seen[number] = grouped(number, *costs)
            return seen[number]

        own._grouped = noted
        for _ in range(4):
            trainer.run_epoch()
        for number, (of_row, columns, _) in seen.items():
            exchange = own.all_facts[number].exchange
            receiver = np.repeat(np.arange(world.size), exchange.send_counts)
            for peer in set(receiver.tolist()):
                beta, bits = columns[of_row, 1][receiver == peer], exchange.row_bits.sent[receiver == peer]
                assert (np.diff(bits[np.argsort(beta)].astype(int)) >= 0).all()
                mixed += len(set(bits.tolist())) > 1
        return mixed

    assert all(mixed > 1 for mixed in on_threads(3, program))
