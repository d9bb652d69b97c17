"""Benches measure a device by the same code: here the stand-in, whose kernels are those of the host."""

from __future__ import annotations

import pytest
import small_graphs
from lab.bench import device_programs
from requires import require_module

from hpcgnn.lab.bench.contenders import DEVICE, HOST, by_name


@pytest.fixture(scope="module")
def ranks(device_ranks):
    require_module("triton")
    return device_ranks


def test_the_host_and_a_device_are_described_alike():
    assert {"ours", "ceiling.gather", "ceiling.copy", "torch.mm", "dgl", "pyg.layer"} <= DEVICE.keys()
    assert by_name("cpu") is HOST
    assert by_name("cuda:0") is by_name("standin:0") is DEVICE


def test_short_calls_are_timed_together_on_a_device_alone(ranks):
    assert ranks(1).run(device_programs.timed_together) == [[1, 10, 100, 1, 5]]


def test_an_exchange_from_a_device(ranks, tmp_path):
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(nodes=300, edges=3000), 2)
    host, both, mixed = (ranks(2).run(device_programs.exchanged, path, kinds)[0] for kinds in ("hh", "dd", "hd"))
    assert [found["ranks_by_way"] for found in (host, both, mixed)] == [
        {"host": 2, "staged": 0, "direct": 0},
        {"host": 0, "staged": 2, "direct": 0},
        {"host": 1, "staged": 1, "direct": 0},
    ]
    for direction in ("forward", "backward"):
        lines = [found["directions"][direction] for found in (host, both, mixed)]
        assert lines[0].keys() == lines[1].keys()
        assert len({line["bytes"] for line in lines}) == 1, "what travels is the same"
        assert all(line["wire_seconds"] > 0 for line in lines)
