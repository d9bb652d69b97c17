"""AdaQP's cost model of messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.policy.link_costs import SMALL, LinkCosts, costs_of, measure_links, pairings

SIZE = 1 << 18


def waited(nodes: list[int], theta: np.ndarray, gamma: float, noise: float = 0.0) -> np.ndarray:
    """(P, n, 2) seconds of messages whose bytes take ``theta`` (P, P) seconds from one rank to another."""
    pairs, ranks = pairings(np.array(nodes)), np.arange(len(nodes))
    found = np.zeros((ranks.size, len(pairs), 2))
    for number, (_, partners) in enumerate(pairs):
        for kind, size in enumerate((SMALL, SIZE)):
            found[:, number, kind] = np.where(partners != ranks, gamma + size * theta[partners, ranks], 0)
    return found * np.exp(noise * np.random.default_rng(0).standard_normal(found.shape))


def costs(nodes: list[int], theta: np.ndarray, gamma: float = 1e-4, noise: float = 0.0) -> LinkCosts:
    return costs_of(pairings(np.array(nodes)), waited(nodes, theta, gamma, noise), SIZE)


def links(nodes: list[int], near: float, far: float) -> np.ndarray:
    return np.where(np.equal.outer(nodes, nodes), near, far)


def test_costs_are_found_again() -> None:
    nodes = [0, 0, 2, 2]
    found = costs(nodes, links(nodes, 1e-10, 8e-8))
    assert found.seconds_per_byte == pytest.approx({"node": 1e-10, "network": 8e-8})
    assert found.seconds_per_message == pytest.approx({"node": 1e-4, "network": 1e-4})
    assert found.seconds_per_byte_sent == found.seconds_per_byte_received == pytest.approx([8e-8] * 4)
    noisy = costs([*range(8)], links([*range(8)], 0, 8e-8), noise=0.1)
    assert noisy.seconds_per_byte["network"] == pytest.approx(8e-8, rel=0.1)


@pytest.mark.parametrize("hosts", [3, 4, 5, 8])
def test_a_host_with_a_slow_link_is_told_from_its_neighbours(hosts: int) -> None:
    """Rank 1 sends and receives slowly."""
    nodes, theta = list(range(hosts)), np.full((hosts, hosts), 1e-8)
    theta[1], theta[:, 1] = 1e-7, 1e-7
    found = costs(nodes, theta)
    wanted = [1e-7 if rank == 1 else 1e-8 for rank in range(hosts)]
    assert found.seconds_per_byte_sent == found.seconds_per_byte_received == pytest.approx(wanted)
    to_each, _ = found.to_ranks(np.array(nodes), 0)
    assert to_each == pytest.approx([0, *wanted[1:]])
    from_slow, _ = found.to_ranks(np.array(nodes), 1)
    assert from_slow == pytest.approx([0 if rank == 1 else 1e-7 for rank in range(hosts)])


def test_a_host_that_only_sends_slowly_receives_fast() -> None:
    nodes, theta = list(range(4)), np.full((4, 4), 1e-8)
    theta[2] = 1e-7
    found = costs(nodes, theta)
    assert found.seconds_per_byte_sent == pytest.approx([1e-8, 1e-8, 1e-7, 1e-8])
    assert found.seconds_per_byte_received == pytest.approx([1e-8] * 4)


def test_times_that_do_not_grow_with_bytes_give_costs_as_well() -> None:
    """As on a busy host, where a small message may take longer than a large one."""
    times = waited([0, 0], np.full((2, 2), 1e-9), 0.0)[..., ::-1]
    found = costs_of(pairings(np.array([0, 0])), times, SIZE)
    assert 0 < found.seconds_per_byte["node"] == pytest.approx(times[0, 0, 1] / SIZE)
    assert found.seconds_per_message["node"] >= 0


def test_costs_of_classes_hold_where_those_of_ranks_are_not_known() -> None:
    """As in a file that was written for another number of ranks."""
    classes = {"node": 1e-10, "network": 1e-8}, {"node": 1e-6, "network": 1e-5}
    for given in (LinkCosts(*classes), LinkCosts(*classes, [1e-3] * 3, [1e-3] * 3)):
        theta, gamma = given.to_ranks(np.array([0, 0, 2, 2]), 1)
        assert theta.tolist() == [1e-10, 0, 1e-8, 1e-8]
        assert gamma.tolist() == [1e-6, 0, 1e-5, 1e-5]


@pytest.mark.mpi
def test_ranks_measure_their_links(mpi_ranks: Callable) -> None:
    """All links are within one node, because there is no network here."""
    found = mpi_ranks(3).run(measure_links)
    assert found == [found[0]] * 3
    assert set(found[0].seconds_per_byte) == {"node"}
    assert found[0].seconds_per_byte["node"] > 0


PLACEMENTS = [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 2, 2], [0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 0, 1, 2], [0, 0, 0, 0, 4], [0]]


@pytest.mark.parametrize("nodes", [*PLACEMENTS, [0, 1, 1, 1], [0, 1, 2], [0] * 7])
def test_each_class_of_links_is_measured_however_ranks_are_placed(nodes: list[int]) -> None:
    """This includes cyclic placement, and a rank that is alone on its node."""
    pairs, hosts = pairings(np.array(nodes)), len(set(nodes))
    met = {rank: set[int]() for rank in range(len(nodes))}
    for name, partners in pairs:
        assert (partners[partners] == np.arange(len(nodes))).all()
        apart = [nodes[rank] != nodes[partner] for rank, partner in enumerate(partners) if rank != partner]
        assert apart
        assert set(apart) == {name == "network"}
        for rank, partner in enumerate(partners.tolist()):
            met[rank].add(partner)
    assert ("node" in dict(pairs), "network" in dict(pairs)) == (hosts < len(nodes), hosts > 1)
    if hosts == len(nodes) <= 4:  # all meet all
        assert all(others | {rank} == set(range(hosts)) for rank, others in met.items())


WRONG = [
    ("[]", "must be a table"),
    ("{}", "seconds_per_byte is missing"),
    ('{"seconds_per_byte": {"node": -1}, "seconds_per_message": {"node": 0}}', "a number of at least 0"),
    ('{"seconds_per_byte": {"node": Infinity}, "seconds_per_message": {"node": 0}}', "finite"),
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
