"""AdaQP's cost model of messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.policy.link_costs import LinkCosts, fit, measure_links, rings
from hpcgnn.world.thread_world import on_threads


def samples(rank: int, theta: float, gamma: float, *, kind: int = 1, noise: float = 0.0) -> np.ndarray:
    """Samples of one class of links, as rank ``rank`` might measure them."""
    size = np.repeat(2.0 ** np.arange(10, 23, 2), 5)
    seconds = (gamma + theta * size) * (1 + noise * np.random.default_rng(rank).standard_normal(size.size))
    return np.stack([np.full(size.size, float(kind)), size, seconds], axis=1)


def fitted(*everyones: np.ndarray) -> LinkCosts | None:
    answers = on_threads(len(everyones), lambda world: fit(world, everyones[world.rank]))
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def test_costs_are_found_again() -> None:
    near, far = samples(0, 1e-10, 2e-6, kind=0), samples(1, 8e-8, 1e-4)
    costs = fitted(np.concatenate([near, far]), near)
    assert costs is not None
    assert costs.seconds_per_byte == pytest.approx({"node": 1e-10, "network": 8e-8})
    assert costs.seconds_per_message == pytest.approx({"node": 2e-6, "network": 1e-4})


def test_noise_averages_out() -> None:
    costs = fitted(*(samples(rank, 8e-8, 1e-4, noise=0.1) for rank in range(4)))
    assert costs is not None
    assert costs.seconds_per_byte["network"] == pytest.approx(8e-8, rel=0.1)


def test_a_class_without_links_has_no_costs() -> None:
    costs = fitted(samples(0, 1e-9, 1e-6, kind=0))
    assert costs is not None
    assert set(costs.seconds_per_byte) == {"node"}


def test_no_fit_is_no_costs() -> None:
    """If seconds fall with bytes on one pair of ranks, all ranks get the same answer."""
    falling = samples(0, 1e-9, 1e-6)
    falling[:, 2] = 1 / falling[:, 1]
    assert fitted(falling, samples(1, 1e-9, 1e-6, kind=0)) is None


def test_a_message_is_not_free() -> None:
    """If the best line would start below zero, a line through the origin is used."""
    bent = samples(0, 1e-9, 0.0)
    bent[:, 2] *= (bent[:, 1] / bent[:, 1].max()) ** 0.1
    costs = fitted(bent)
    assert costs is not None
    assert costs.seconds_per_message["network"] >= 0
    assert costs.seconds_per_byte["network"] > 0


def test_a_file_keeps_them(tmp_path: Path) -> None:
    costs = LinkCosts({"network": 8.1e-8}, {"network": 1.5e-4})
    costs.save(tmp_path / "costs.json")
    assert LinkCosts.load(tmp_path / "costs.json") == costs


@pytest.mark.mpi
def test_ranks_measure_their_links(mpi_ranks: Callable) -> None:
    """All links are within one node, because there is no network here."""
    for _ in range(20):  # times that are measured on a busy machine may fit no line
        found = mpi_ranks(3).run(measure_links)
        costs = found[0]
        assert found == [costs] * 3
        if costs is not None:
            break
    assert costs is not None
    assert set(costs.seconds_per_byte) == {"node"}
    assert costs.seconds_per_byte["node"] > 0


PLACEMENTS = [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 2, 2], [0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 0, 1, 2], [0, 0, 0, 0, 4], [0]]


@pytest.mark.parametrize("nodes", [*PLACEMENTS, [0, 1, 1, 1]])
def test_each_class_of_links_is_measured_however_ranks_are_placed(nodes: list[int]) -> None:
    """This includes cyclic placement, and a rank that is alone on its node."""
    found = rings(np.array(nodes))
    assert ("node" in found, "network" in found) == (len(set(nodes)) < len(nodes), len(set(nodes)) > 1)
    for name, partners in found.items():
        assert sorted(partners) == list(range(len(nodes)))
        within = [nodes[rank] == nodes[partner] for rank, partner in enumerate(partners) if rank != partner]
        assert within
        assert all(within) if name == "node" else not all(within)


def test_costs_that_lack_a_class_are_lacking_on_all_ranks() -> None:
    """This includes ranks that have no such link themselves."""
    assert list(rings(np.array([0, 1, 1]))) == ["node", "network"]


WRONG = [
    ("[]", "must be a table"),
    ("{}", "seconds_per_byte is missing"),
    ('{"seconds_per_byte": {"node": -1}, "seconds_per_message": {"node": 0}}', "a number of at least 0"),
    ('{"seconds_per_byte": {"node": NaN}, "seconds_per_message": {"node": 0}}', "must be a number"),
    ('{"seconds_per_byte": {"node": Infinity}, "seconds_per_message": {"node": 0}}', "finite"),
    ('{"seconds_per_byte": {"node": "1"}, "seconds_per_message": {"node": 0}}', "not a text"),
    ('{"seconds_per_byte": {"moon": 1}, "seconds_per_message": {"moon": 1}}', "moon"),
    ('{"seconds_per_byte": {"node": 1}, "seconds_per_message": {"network": 1}}', "the same classes of links"),
    ('{"seconds_per_byte": {}, "seconds_per_message": {}}', "the same classes of links"),
    ("nothing", "it is not JSON"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_a_file_of_costs_is_checked(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(HpcgnnError) as refused:
        LinkCosts.load(path)
    assert str(path) in str(refused.value)
    assert sentence in str(refused.value)
    assert "--refit-links" in str(refused.value)
