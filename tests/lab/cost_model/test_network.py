"""Seconds of exchanges and reductions, and the profiles of networks."""

from __future__ import annotations

import functools
import math
import re
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from requires import require
from scipy import sparse

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.cost_model import profiles
from hpcgnn.lab.cost_model.network import Network, allreduce_seconds, bits_per_second, exchange_seconds

ROOT = Path(__file__).resolve().parents[3]
PLAIN = Network(
    name="plain",
    latency_seconds=1e-5,
    node_bandwidth_bytes_per_second=1e9,
    memory_latency_seconds=1e-6,
    memory_bandwidth_bytes_per_second=1e10,
)


def sent(ranks: int, *messages: tuple[int, int, float]) -> sparse.csr_array:
    """(P, P) bytes from ``(sender, receiver, bytes)``."""
    sender, receiver, size = zip(*messages, strict=True)
    return sparse.coo_array((size, (sender, receiver)), (ranks, ranks)).tocsr()


def random_bytes(ranks: int, peers: int) -> sparse.csr_array:
    """Random numbers of bytes from each rank to some others."""
    generator = np.random.default_rng(ranks + peers)
    receivers = np.concatenate([generator.choice(ranks, peers, replace=False) for _ in range(ranks)])
    sizes = generator.pareto(1.5, ranks * peers) * 1e5 + 1
    return sparse.coo_array((sizes, (np.repeat(np.arange(ranks), peers), receivers)), (ranks, ranks)).tocsr()


@pytest.fixture(params=[0, 100])
def seconds(request: pytest.FixtureRequest) -> Callable[..., np.ndarray]:
    """The seconds of an exchange, with messages in groups and each by itself."""
    return functools.partial(exchange_seconds, most_messages=request.param)


class TestExchange:
    def test_one_message_takes_its_latency_and_its_bytes_over_the_bandwidth(self, seconds: Callable) -> None:
        network = replace(PLAIN, message_seconds=1e-4, peer_seconds=1e-3)
        np.testing.assert_allclose(seconds(sent(2, (0, 1, 1e6)), 1, network), 2e-3 + 1e-4 + 1e-5 + 1e-3)  # across nodes
        np.testing.assert_allclose(seconds(sent(2, (0, 1, 1e7)), 2, network), 2e-3 + 1e-4 + 1e-6 + 1e-3)

    def test_links_of_a_node_are_shared_by_its_ranks_and_carry_each_way_by_itself(self, seconds: Callable) -> None:
        there, back = [(0, 2, 1e6), (1, 3, 3e6)], [(2, 0, 1e6), (3, 1, 3e6)]
        alone, both = (seconds(sent(4, *messages), 2, PLAIN) for messages in (there, there + back))
        np.testing.assert_allclose(alone, [2e-3 + 1e-5, 4e-3 + 1e-5] * 2)
        np.testing.assert_allclose(both, alone)

    def test_a_flow_that_is_held_up_elsewhere_leaves_its_share_to_others(self, seconds: Callable) -> None:
        # Node 3 receives three messages, each at a third of its rate, so node 0 has two thirds for its message to node 4.
        into = [(0, 3, 1e6), (1, 3, 1e6), (2, 3, 1e6)]
        np.testing.assert_allclose(seconds(sent(5, *into, (0, 4, 2e6)), 1, PLAIN), 3e-3 + 1e-5)

    def test_uplinks_hold_up_what_crosses_switches_alone(self, seconds: Callable) -> None:
        tree = replace(PLAIN, nodes_per_switch=2, uplinks_per_switch=1, switch_latency_seconds=1e-4)
        np.testing.assert_allclose(seconds(sent(4, (0, 2, 1e6), (1, 3, 1e6)), 1, tree), 2e-3 + 1.1e-4)
        np.testing.assert_allclose(seconds(sent(4, (0, 1, 1e6), (2, 3, 1e6)), 1, tree), 1e-3 + 1e-5)

    def test_routes_by_receiver_collide_and_adaptive_ones_do_not(self, seconds: Callable) -> None:
        adaptive, fixed = (
            replace(PLAIN, nodes_per_switch=2, uplinks_per_switch=2, is_adaptive=way) for way in (True, False)
        )
        alike, apart = sent(6, (0, 2, 1e6), (1, 4, 1e6)), sent(6, (0, 2, 1e6), (1, 5, 1e6))
        np.testing.assert_allclose(seconds(alike, 1, adaptive).max(), 1e-3 + 1e-5)
        np.testing.assert_allclose(seconds(alike, 1, fixed).max(), 2e-3 + 1e-5)
        np.testing.assert_allclose(seconds(apart, 1, fixed).max(), 1e-3 + 1e-5)

    def test_no_link_carries_more_than_it_can_and_one_is_busy_where_all_send_alike(self, seconds: Callable) -> None:
        table = random_bytes(64, 10)
        nodes = sparse.coo_array((np.ones(64), (np.arange(64) // 4, np.arange(64))), (16, 64)).tocsr()
        between = nodes @ table @ nodes.T - sparse.diags_array((nodes @ table @ nodes.T).diagonal())
        busiest = max(between.sum(0).max(), between.sum(1).max()) / 1e9
        assert busiest <= seconds(table, 4, PLAIN).max() < 1.5 * busiest
        alike = sparse.csr_array(np.ones((16, 16)) * 1e6)
        np.testing.assert_allclose(seconds(alike, 4, PLAIN), 4 * 12 * 1e-3 + 1e-5, rtol=1e-3)

    def test_without_messages_there_are_only_counts_to_look_at(self, seconds: Callable) -> None:
        network = replace(PLAIN, peer_seconds=1e-6)
        for table in (sparse.csr_array((8, 8)), sparse.csr_array(np.eye(8) * 1e9), sent(8, (0, 1, 0.0))):
            np.testing.assert_allclose(seconds(table, 2, network), 8e-6)


def test_messages_in_groups_end_about_when_each_does_by_itself() -> None:
    table = random_bytes(256, 30)
    tree = replace(PLAIN, nodes_per_switch=8, uplinks_per_switch=4, is_adaptive=False)
    exact, grouped = (exchange_seconds(table, 8, tree, most_messages=most) for most in (table.nnz, 0))
    assert abs(grouped.max() / exact.max() - 1) < 0.05
    assert np.median(np.abs(grouped / exact - 1)) < 0.05


def test_8192_ranks_need_memory_for_pairs_that_send_alone() -> None:
    table = random_bytes(8192, 6)
    exchange_seconds(random_bytes(16, 4), 4, PLAIN)  # compiles
    tracemalloc.start()
    seconds = exchange_seconds(table, 48, PLAIN, most_messages=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.isfinite(seconds).all()
    assert (seconds > 0).all()
    assert peak < 400 * table.nnz + 40 * (8192 // 48 + 1) ** 2 + (4 << 20) < 8192 * 8192


@pytest.mark.parametrize(
    ("num_bytes", "ranks", "of_node", "seconds"),
    [
        (10**6, 1, 1, 0),
        (8, 2, 1, 1e-5),  # two send each other all
        (8, 1024, 1, 10 * 1e-5),  # few bytes take rounds, and many bytes pass twice
        (10**10, 64, 1, 2 * 10 * 63 / 64),
        (8, 4, 4, 2e-6),  # ranks of a node sum in memory
        (8, 16, 4, 2e-6 + 2e-5),
    ],
)
def test_reductions(num_bytes: int, ranks: int, of_node: int, seconds: float) -> None:
    assert allreduce_seconds(num_bytes, ranks, of_node, PLAIN) == pytest.approx(seconds, rel=0.01)


def test_rates_are_of_bits() -> None:
    assert [bits_per_second(rate) for rate in ("100mbit", "1gbit", "unlimited")] == [1e8, 1e9, math.inf]
    for rate in ("", "fast", "10", "0mbit", "-1gbit", "1 gbit"):
        with pytest.raises(HpcgnnError, match="is not the speed of a network"):
            bits_per_second(rate)


class TestProfiles:
    def test_all_have_a_network_a_node_and_sources(self) -> None:
        found = profiles.profiles()
        assert set(found) == {"fugaku-like", "xeon-hdr", "epyc-slingshot", "h100-ndr"}
        for name, profile in found.items():
            assert profile.name == profile.network.name == name
            assert profile.sources
            assert profile.peak_flops_per_second["float32"] > 1e10
            assert profile.units_per_node % profile.ranks_per_node == 0
            assert exchange_seconds(sent(2, (0, 1, 1e6)), 1, profile.network).max() > 0

    @pytest.mark.parametrize(
        ("name", "line", "said"),
        [
            ("units_per_node", "units_per_node = 0", "units_per_node must be a whole number of at least 1"),
            ("latency_seconds", "latency_seconds = -1", "network.latency_seconds must be a number of at least 0"),
            ("latency_seconds", "latency = 1", "there is no key latency: the keys are latency_seconds"),
            ("units_per_node", "", "units_per_node is missing"),
            ("units_per_node", "units_per_node = = 72", "is not a TOML file"),
            ("units_per_node", "units_per_node = { value = 72 }", "units_per_node must be a number, or"),
            ("uplinks_per_switch", "uplinks_per_switch = 0", "must be at least 1 if nodes_per_switch is given"),
        ],
    )
    def test_what_cannot_be_is_said_with_its_place(self, tmp_path: Path, name: str, line: str, said: str) -> None:
        path = _changed(tmp_path / "mine.toml", name, line)
        with pytest.raises(HpcgnnError, match=said) as error:
            profiles.find(path)
        assert path in str(error.value)

    def test_numbers_of_a_file_of_ones_own_are_estimates_without_a_source(self, tmp_path: Path) -> None:
        found = profiles.find(_changed(tmp_path / "mine.toml", "units_per_node", "units_per_node = 72"))
        assert found.units_per_node == 72
        assert {*found.estimates} == {*profiles.find("xeon-hdr").estimates, "units_per_node"}
        assert found.network == profiles.find("xeon-hdr").network

    def test_names_that_are_not_there_are_refused(self, tmp_path: Path) -> None:
        for name, said in (
            ("cray", "there is no profile cray: choose one of fugaku-like, "),
            (str(tmp_path / "none.toml"), "cannot read"),
            (str(profiles.OWN), "one profile, which is a table with a name, but it holds 4"),
        ):
            with pytest.raises(HpcgnnError, match=said):
                profiles.find(name)


def _own_table() -> str:
    """The profile xeon-hdr as the package's file has it."""
    text = profiles.OWN.read_text()
    return text[text.index("[xeon-hdr]") : text.index("[epyc-slingshot]")]


def _changed(path: Path, name: str, line: str) -> str:
    """The path of a file with that profile, in which another line has the number of this name."""
    text, count = re.subn(rf"^{name} = .*$", line, _own_table(), count=1, flags=re.MULTILINE)
    assert count
    path.write_text(text)
    return str(path)


@pytest.mark.builds
def test_simgrid_says_about_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(shutil.which("g++") and Path("/usr/include/simgrid/s4u.hpp").exists(), "a C++ compiler and libsimgrid-dev")
    monkeypatch.syspath_prepend(ROOT / "tools")
    import check_network_model as check  # imported here, because it is not a module of the package

    program = check.compiled(tmp_path)
    cases = [(16, 4, "uniform", 1 << 20), (16, 4, "skewed", 1 << 20), (64, 8, "skewed", 1 << 10)]
    found = [check.compared(program, check.Case(*case)) for case in cases]
    assert check.worst_of(found) < check.LIMIT, found
