"""The information that policies get about the rows that travel."""

from __future__ import annotations

import functools

import pytest
import small_graphs
from rank_pool import ThreadPool
from ranks import channels

from hpcgnn.plan import STRATEGIES


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The results of ranks, by their number, strategy, order of nodes, and aggregator."""
    folder = tmp_path_factory.mktemp("channels")
    graph = small_graphs.random_multigraph()
    for ranks in (2, 3):
        parts = small_graphs.random_parts(graph.num_nodes, ranks)
        small_graphs.write_parts(folder / f"{ranks}.h5", graph, parts, ranks)
    return functools.cache(lambda ranks, *how: ThreadPool(ranks).run(channels.compare, folder / f"{ranks}.h5", *how)[0])


@pytest.fixture(params=[2, 3])
def ranks(request):
    return request.param


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return request.param


@pytest.fixture(params=["none", "degree"])
def order(request):
    return request.param


@pytest.fixture(params=["gcn", "mean", "sum"])
def found(request, compared, ranks, strategy, order):
    return compared(ranks, strategy, order, request.param)


def test_square_weights_are_those_with_which_receivers_add_a_row(found):
    """Forward and backward, measured by sending each row alone."""
    assert max(found["errors"]) < 1e-12


def test_degrees_are_those_of_sources_and_destinations(found):
    assert found["degrees"]


def test_classes_have_more_than_one_number_of_bits(found):
    assert any(len(bits) > 1 for bits in found["classes"])
