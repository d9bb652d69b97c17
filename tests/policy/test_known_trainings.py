"""Every policy in trainings whose right decisions are known without its rule: the rate steps up and falls to nothing, one link is
slow, and the bits that it chose are shuffled.

Time is that of a network of the test's own, which only messages move, so that runs repeat.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool

import hpcgnn
from hpcgnn.base.host import host_values
from hpcgnn.base.process import StopRequest
from hpcgnn.exchange import Messages
from hpcgnn.policy.clock import Clock
from hpcgnn.train.run_config import RunConfig
from hpcgnn.world.thread_world import ThreadWorld

COMPUTES, BYTE = 1.0, 1e-5  # seconds of an epoch without messages, and of a byte on a slow network


class Network(ThreadWorld):
    """Ranks on hosts of their own. A byte from rank s to rank r takes ``theta[s, r]`` seconds. took: seconds by exchange."""

    def __init__(self, world: ThreadWorld, theta: np.ndarray) -> None:
        super().__init__(world.rank, world._meeting)
        self.theta, self.took = theta, dict[str, float]()

    def hosts(self) -> np.ndarray:
        return np.arange(self.size)

    def start_alltoallv(self, send, received, what, neighbours=None):
        pending = super().start_alltoallv(send, received, what, neighbours)
        ends = (send, self.theta[self.rank]), (received, self.theta[:, self.rank])
        seconds = max(each.counts @ theta * each.buffer.on_host()[:1].nbytes for each, theta in ends)
        pending.seconds += seconds
        self.took[what] = self.took.get(what, 0.0) + seconds
        return pending


class NetworkClock(Clock):
    """Messages whose rows are used in a later epoch are hidden behind computation."""

    def __init__(self, world: Network, messages: Messages) -> None:
        super().__init__()
        self._world, self._messages = world, messages

    def observe(self, name: str, measure: Callable[[], Any]) -> Any:
        return super().observe(name, self._seconds if name == "seconds" else measure)

    def _seconds(self) -> float:
        ages = {each.name: age for each, age in self._messages.traffic.ages.items()}
        took, self._world.took = self._world.took, {}
        of_epoch = {name: seconds for name, seconds in took.items() if name.startswith("layer")}
        waited = sum(seconds for name, seconds in of_epoch.items() if not ages.get(name))
        return float(self._world.allreduce(np.array([max(COMPUTES + waited, sum(of_epoch.values()))]), "max")[0])


def trained(
    world: ThreadWorld, path: Path, settings: dict[str, Any], rate: Callable[[int], float] = lambda epoch: 0.02,
    theta: float | np.ndarray | Callable[[int], float] = 0.0, end: Callable[[hpcgnn.Trainer], Any] | None = None,
    noted: dict | None = None,
) -> Any:  # fmt: skip
    """The records of all epochs with the rates of ``rate``, or what ``end`` returns; ``noted`` gets the rows that are sent. A
    network whose speed changes has a ``theta`` for each epoch."""
    theta_of = theta if callable(theta) else lambda epoch: theta
    network = Network(world, np.broadcast_to(theta_of(0), (world.size, world.size)))
    run = RunConfig.from_settings({"layers": 3, "hidden": 8, "dropout": 0.0, "eval_every": 1000} | settings)
    graph = hpcgnn.load(path, network)
    model = hpcgnn.build_model(run.model, graph, messages=Messages(network, run.messages))
    clock = NetworkClock(network, model.messages)
    trainer = hpcgnn.Trainer(model, graph, run.train, stop=StopRequest(), clock=clock)
    if noted is not None:
        for facts in trainer.policies.all_facts:
            trace_rows(facts.exchange, noted)
    records = []
    for epoch in range(run.train.epochs):
        trainer.config = replace(run.train, lr=rate(epoch))
        network.theta = np.broadcast_to(theta_of(epoch), network.theta.shape)
        records.append(trainer.run_epoch())
        records[-1]["seconds"] = clock.take().get("seconds") or clock._seconds()
    return records if end is None else end(trainer)


def trace_rows(exchange: Any, noted: dict) -> None:
    changes, rank = exchange.changes or exchange.trace_changes(), exchange.messages.world.rank
    note = changes.note

    def also(rows: torch.Tensor, given: Any, call: int, epoch: int) -> None:
        noted[exchange.name, epoch, rank] = rows.double().numpy().copy()
        note(rows, given, call, epoch)

    changes.note = also


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[int, Path]:
    """A graph with labels that can be learned, in 2 and in 3 parts."""
    folder, graph = tmp_path_factory.mktemp("known"), small_graphs.even_graph(300, 1200)
    graph = replace(graph, y=graph.x[:, :3].argmax(1))
    return {ranks: small_graphs.in_parts(folder / f"{ranks}.h5", graph, ranks) for ranks in (2, 3)}


def run(path: Path, *how: Any, **more: Any) -> Any:
    return ThreadPool(int(path.stem)).run(lambda world: trained(world, path, *how, **more))[0]


# -- a step of the rate, and a frozen model ----------------------------------------------------------------------------

MOVES, RESTS, EPOCHS = 16, 30, 66  # the first epochs in which rows move, and in which they rest again
OF_LAYERS = [f"layer {layer}'s {what}" for layer in (2, 3) for what in ("boundary rows", "gradients")]


def stepped(path: Path, settings: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """A training whose weights rest but for the epochs from MOVES to RESTS."""
    rate = lambda epoch: 0.1 if MOVES <= epoch < RESTS else 1e-30  # noqa: E731
    return run(path, settings | {"epochs": EPOCHS}, rate, **more)


def ages(records: list[dict[str, Any]]) -> np.ndarray:
    """(epochs, exchanges) ages of the rows in use."""
    return np.array([[record["stale_epochs"][name] for name in OF_LAYERS] for record in records])


def test_sylvie_raises_bits_when_the_loss_stops_falling_and_not_again_by_the_effect_of_that(paths):
    """Fewer bits make the loss of the same weights larger. Later on, noise may look like a stall."""
    base = [record["policy"]["base_bits"] for record in stepped(paths[2], {"bits": "sylvie"})]
    first = base.index(4)
    assert RESTS < first < RESTS + 11
    assert set(base[:first] + base[first + 11 : first + 22]) == {2}
    assert set(base[first : first + 11]) == {4}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_pipeqs_takes_more_bits_as_soon_as_rows_leap_and_the_fewest_where_they_rest(paths, dropout):
    """The weights of epoch MOVES have an effect in the next one, whose observation decides about the one after that."""
    records = stepped(paths[2], {"bits": "pipeqs", "dropout": dropout})
    bits = np.array([[next(iter(record["bits"][name])) for name in OF_LAYERS] for record in records], int)
    assert (bits[:5] == 8).all()
    assert (bits[[*range(8, MOVES + 2), *range(RESTS + 10, EPOCHS)]] == 2).all()
    assert dropout or (bits[MOVES + 2] > 2).sum() >= 3, "dropout of 0.5 hides what an epoch learns"


def distance(noted: dict, name: str, early: int, late: int) -> float:
    """1 minus the cosine between the rows of two epochs."""
    first, second = (np.concatenate([noted[name, epoch, rank].ravel() for rank in (0, 1)]) for epoch in (early, late))
    return 1 - float(first @ second / np.sqrt((first @ first) * (second @ second)))


@pytest.mark.parametrize(("policy", "sends"), [("pipeqs", 1), ("sancus", 0)])
def test_rows_are_used_for_four_epochs_where_they_rest_and_not_once_they_have_leapt(paths, policy, sends):
    found = ages(records := stepped(paths[2], {"staleness": policy}, noted=(noted := {})))
    assert (found[:5].max(axis=0) == sends).all()
    assert all((part.max(axis=0) == 4).all() for part in (found[8:MOVES], found[-5:]))
    assert len({record["loss"] for record in records[-10:]}) == 1, "rows at rest are right at any age"
    for name in OF_LAYERS:
        sent = sorted({epoch for known, epoch, _ in noted if known == name and epoch >= MOVES - 5})
        gaps = [(b, distance(noted, name, a, b)) for a, b in itertools.pairwise(sent) if b > a + 1]
        leap = next(epoch for epoch, far in gaps if far > 0.1)
        assert MOVES < leap <= MOVES + 5, "rows that are used again are sent after four epochs, and only then are known"
        assert all(far < 0.25 for epoch, far in gaps if epoch > leap)  # the threshold is 0.1, and the rate is constant


def test_sancus_uses_rows_that_move_evenly_until_they_are_as_far_as_the_threshold(paths):
    """In a training whose rows are all fresh, their distance after 1 to 4 epochs is known. Gradients of layer 2 move the most."""
    run(paths[2], {"epochs": 36}, noted=(fresh := {}))
    records = run(paths[2], {"epochs": 36, "staleness": "sancus"})
    oldest = ages(records)[24:].max(axis=0)
    for name, age in zip(OF_LAYERS, oldest, strict=True):
        far = [np.mean([distance(fresh, name, epoch - k, epoch) for epoch in range(26, 36)]) for k in (1, 2, 3, 4)]
        wanted = sum(each <= 0.1 for each in far)
        assert abs(age - wanted) <= 1, (name, far)
    assert oldest[1] < 4, "rows of this exchange move too far for four epochs"
    assert max(oldest) == 4


def test_rows_are_stale_by_sylvie_while_the_loss_falls_or_rests_and_fresh_after_both_steps(paths):
    found = ages(stepped(paths[2], {"staleness": "sylvie"}))
    assert (found[:11] == 0).all()
    assert (found[11:MOVES] == 1).all()
    assert (found[MOVES + 4 : MOVES + 6] == 0).all()
    assert (found[RESTS - 4 : RESTS] == 1).all()
    assert (found[RESTS + 8 : RESTS + 13] == 0).all()
    assert (found[-12:] == 1).all()


@pytest.mark.parametrize(("theta", "wanted"), [(BYTE, 1), (0.0, 0)])
def test_auto_uses_stale_rows_once_few_move_if_this_saves_time(paths, theta, wanted):
    """The first trial may be in epoch 21, and most rows move in an epoch by less than the limit from epoch 24 on."""
    found = ages(stepped(paths[2], {"staleness": "auto", "bits_period": 20}, theta=theta))
    assert (found[:25] == 0).all()
    assert (found[25:30] == 1).all()
    assert (found[35:50] == wanted).all()


# -- a slow link -------------------------------------------------------------------------------------------------------


def rounded(rows: np.ndarray, bits: int, chance: np.random.Generator) -> np.ndarray:
    """Rows (n, F) on a grid from their least to their largest value, rounded at random."""
    least, steps = rows.min(1, keepdims=True), np.ptp(rows, 1)[:, None] / (2**bits - 1)
    steps = np.where(steps > 0, steps, 1)
    return least + steps * np.floor((rows - least) / steps + chance.random(rows.shape))


def links_of(trainer: hpcgnn.Trainer, noted: dict) -> dict[str, list[tuple[float, np.ndarray, np.ndarray]]]:
    """For each exchange and each rank that this one sends to: the mean bits of the rows in the last epoch, and (3,) the bytes and
    the measured errors of sums if all rows had 2, 4 or 8 bits. Collective."""
    rank, found, chance = trainer.world.rank, {}, np.random.default_rng(0)
    for facts in trainer.policies.all_facts:
        weights, counts, bits = facts.square_weights(), facts.exchange.send_counts, facts.exchange.row_bits.sent
        if facts.name in OF_LAYERS:
            rows = noted[facts.name, trainer.next_epoch - 1, rank]
            draws = [np.stack([rounded(rows, b, chance) - rows for _ in range(9)]) for b in (2, 4, 8)]
            errors = np.stack([weights * (each**2).mean(0).sum(1) for each in draws])
            receiver, size = np.repeat(np.arange(3), counts), rows.shape[1] * np.array([2, 4, 8]) / 8 + 4
            own = [receiver == peer for peer in range(3) if peer != rank]
            found[facts.name] = [(bits[each].mean(), each.sum() * size, errors[:, each].sum(1)) for each in own]
    return found


def test_adaqp_takes_bits_from_a_slow_link_as_the_best_of_all_assignments_does(paths):
    """All that rank 2 sends and receives takes ten times as long. The rows of a link have the same bits, so 729 assignments of
    an exchange are compared, by the equations of docs/explanation/adaptive-bits.md with measured errors and true seconds."""
    slow = BYTE * np.array([[0, 1, 10], [1, 0, 10], [10, 10, 0]])
    settings, noted = {"bits": "adaqp", "group_rows": 1000, "epochs": 4}, {}

    def chosen(theta: np.ndarray) -> dict[str, list[tuple[float, np.ndarray, np.ndarray]]]:
        how = {"theta": theta, "end": lambda trainer: links_of(trainer, noted), "noted": noted}
        of_ranks = ThreadPool(3).run(lambda world: trained(world, paths[3], settings, **how))
        return {name: [link for found in of_ranks for link in found[name]] for name in OF_LAYERS}

    pairs, every = [*itertools.permutations(range(3), 2)], np.array([*itertools.product(range(3), repeat=6)])
    found, seconds, excess = chosen(slow), {}, []
    for name, links in found.items():
        took = np.stack([slow[pair] * size for pair, (_, size, _) in zip(pairs, links, strict=True)])[range(6), every]
        ends = [[pair[end] == rank for pair in pairs] for end in (0, 1) for rank in range(3)]
        seconds[name] = np.max([took[:, each].sum(1) for each in ends], axis=0)
    least = sum(each[0] for each in seconds.values())
    for name, links in found.items():
        errors = np.stack([each for *_, each in links])[range(6), every].sum(1)
        shares = (seconds[name] / seconds[name][0] - 1) * least / (COMPUTES + least)
        objective = 0.5 * errors / (errors[0] - errors[-1]) + 0.5 * shares
        bits = np.array([each for each, *_ in links])
        mine = objective[(every == np.log2(bits) - 1).all(1)]
        excess.append(float(mine[0] / objective.min() - 1))
        assert bits[[0, 2]].mean() > bits[[1, 3, 4, 5]].mean() + 2, "between ranks 0 and 1, and the others"
    assert max(excess) < 0.12
    assert np.mean(excess) < 0.04
    alike = chosen(BYTE * (1 - np.eye(3)))
    assert np.mean([bits for links in alike.values() for bits, *_ in (links[1], *links[3:])]) > 7


@pytest.mark.parametrize(("theta", "wanted"), [(40 * BYTE, 2), (2 * BYTE, 4), (BYTE / 2, 8)])
def test_auto_takes_the_most_bits_whose_epochs_are_no_longer_by_the_seconds_of_fixed_bits(paths, theta, wanted):
    """From rank 0 to rank 1; back, bytes take no time."""
    link = np.array([[0.0, theta], [0.0, 0.0]])
    seconds = [run(paths[2], {"bits": str(bits), "epochs": 2}, theta=link)[-1]["seconds"] for bits in (2, 4, 8)]
    assert max(bits for bits, each in zip((2, 4, 8), seconds, strict=True) if each <= 1.03 * seconds[0]) == wanted
    assert run(paths[2], {"bits": "auto", "epochs": 18}, theta=link)[-1]["policy"]["bits"] == wanted


@pytest.mark.parametrize(("before", "after", "bits", "age"), [(BYTE * 40, 0.0, 8, 0), (0.0, BYTE * 40, 2, 1)])
def test_auto_follows_a_network_whose_speed_changes(paths, before, after, bits, age):
    """It changes in epoch 30, within a trial; the next trials begin in epochs 40 (bits) and 50 (stale rows)."""
    settings = {"bits": "auto", "staleness": "auto", "bits_period": 20, "epochs": 64}
    records = run(paths[2], settings, theta=lambda epoch: before if epoch < 30 else after)
    assert {record["policy"]["bits"] for record in records[55:60]} == {bits}
    assert {record["policy"]["bits"] for record in records[15:20]} == {10 - bits}
    assert (ages(records)[-1] == age).all()


BLIND = [
    ("uniform", "off"),
    ("sylvie", "off"),
    ("pipeqs", "pipeqs"),
    ("8", "pipeline"),
    ("8", "sylvie"),
    ("8", "sancus"),
]


@pytest.mark.parametrize(("bits", "staleness"), BLIND)
def test_policies_that_do_not_weigh_time_decide_on_a_slow_link_as_on_a_fast_one(paths, bits, staleness):
    settings = {"bits": bits, "staleness": staleness, "epochs": 14}
    slow, fast = (run(paths[2], settings, theta=theta) for theta in (40 * BYTE * np.eye(2)[::-1], 0.0))
    for name in ("loss", "bits", "stale"):
        assert [record[name] for record in slow] == [record[name] for record in fast]


# -- shuffled choices --------------------------------------------------------------------------------------------------


def uneven_graph() -> small_graphs.Arrays:
    """A graph with few nodes of many edges, and features of different ranges."""
    chance = np.random.default_rng(0)
    nodes, edges = 400, 4000
    edge_index = np.stack([chance.integers(0, nodes, edges), (nodes * chance.random(edges) ** 3).astype(np.int64)])
    x = chance.standard_normal((nodes, 16)) * chance.lognormal(sigma=1.0, size=(nodes, 1))
    masks = {name: np.arange(nodes) % 3 == k for k, name in enumerate(small_graphs.MASKS)}
    return small_graphs.Arrays(edge_index, x.astype(np.float32), chance.integers(0, 4, nodes), masks)


def gradient_errors(trainer: hpcgnn.Trainer) -> dict[str, float]:
    """The squared errors of gradients for the bits that the policy chose, for these in other orders, within what is sent to one
    rank, and for 2 bits in all rows. Collective."""
    world, model, all_facts = trainer.world, trainer.model, trainer.policies.all_facts
    chosen = [facts.exchange.row_bits.sent for facts in all_facts]
    chance, epochs = np.random.default_rng(world.rank), itertools.count(trainer.next_epoch)

    def gradient() -> np.ndarray:
        model.begin_epoch(next(epochs))
        model.zero_grad()
        model.train()
        trainer.task.loss(0)[0].backward()
        mine = [host_values(each.grad).ravel() for each in model.parameters() if each.grad is not None]
        return world.allreduce(np.concatenate(mine).astype(np.float64))

    def assigned(order: str) -> None:
        for facts, bits in zip(all_facts, chosen, strict=True):
            links = np.split(np.arange(bits.size), np.cumsum(facts.exchange.send_counts)[:-1])
            degrees, sent = facts.degrees()[0], bits.copy()
            for own in links:
                if order == "degree":
                    sent[own[np.argsort(degrees[own], kind="stable")]] = np.sort(bits[own])
                elif order == "shuffled":
                    sent[own] = chance.permutation(bits[own])
            facts.exchange.assign_bits(np.full_like(sent, 2) if order == "alike" else sent)

    for facts in all_facts:
        facts.exchange.row_bits = None
    exact, found = gradient(), dict.fromkeys(("chosen", "alike", "degree", "shuffled"), 0.0)
    for order in [*found] * 8:
        assigned(order)
        found[order] += float(((gradient() - exact) ** 2).sum())
    return found


@pytest.mark.parametrize("policy", [{"bits": "adaqp", "group_rows": 4}, {"bits": "sylvie"}, {"bits": "auto"}], ids=str)
def test_the_rows_that_get_more_bits_are_those_for_which_gradients_gain_most(tmp_path, policy):
    """On a network on which all have few bits. Features travel once in full precision, so their order does not count."""
    path = small_graphs.in_parts(tmp_path / "3.h5", uneven_graph(), 3)
    theta = 2 * BYTE if policy["bits"] == "adaqp" else 100 * BYTE
    settings = {"model": "sage", "layers": 2, "hidden": 16, "norm": "none", "epochs": 12} | policy
    found = run(path, settings, theta=theta * (1 - np.eye(3)), end=gradient_errors)
    assert 2 * found["chosen"] < min(found["alike"], found["degree"], found["shuffled"])
    if policy["bits"] != "adaqp":
        assert 2 * found["alike"] < min(found["degree"], found["shuffled"]), "other orders are worse than none"


def averaged_error(rows: list[np.ndarray], bits: int) -> float:
    """The relative squared error of the best running average of the rounded rows of several epochs."""
    chance, found = np.random.default_rng(0), []
    for gain in np.linspace(0.1, 1, 10):
        kept, errors = rows[0], []
        for each in rows:
            kept = kept + gain * (rounded(each, bits, chance) - kept)
            errors.append(((kept - each) ** 2).sum() / (each**2).sum())
        found.append(np.mean(errors[len(errors) // 2 :]))
    return min(found)


def test_pipeqs_takes_the_fewest_bits_with_which_averages_of_moving_rows_are_exact_enough(paths):
    """The bound is 0.02, and bits are lowered below half of it. Rows and gradients of a layer could swap their bits."""
    records = run(paths[2], {"bits": "pipeqs", "drift_threshold": 0.01, "epochs": 16}, noted=(noted := {}))
    bits = [int(next(iter(records[-1]["bits"][name]))) for name in OF_LAYERS]
    rows = [[np.concatenate([noted[name, e, r] for r in (0, 1)]) for e in range(6, 16)] for name in OF_LAYERS]
    error = [{b: averaged_error(each, b) for b in (1, 2, 4)} for each in rows]
    assert set(bits) == {2, 4}
    assert all(each[b] < 0.02 and (b == 2 or each[b // 2] > 0.01) for b, each in zip(bits, error, strict=True))
    swapped = (error[0][bits[1]] + error[1][bits[0]]) / (error[0][bits[0]] + error[1][bits[1]])
    assert bits[0] != bits[1]
    assert swapped > 3
