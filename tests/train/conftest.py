"""Fixtures that the tests of jobs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import small_graphs
from rank_pool import Completed

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.world.thread_world import one_rank


@pytest.fixture(scope="module")
def parts(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module's GRAPH, or a random one, in two parts, with a stored plan."""
    graph = getattr(request.module, "GRAPH", small_graphs.random_multigraph(nodes=300, edges=3000))
    return small_graphs.in_parts(tmp_path_factory.mktemp("graph") / "parts.h5", graph, 2, plans=["hybrid"])


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> LocalGraph:
    """A random graph on one rank."""
    path = tmp_path_factory.mktemp("one") / "parts.h5"
    return small_graphs.on_ranks(one_rank(), small_graphs.random_multigraph(), path)


@pytest.fixture
def train(request, mpi_ranks, parts, tmp_path) -> Callable[..., Completed]:
    """``train("run", *flags)``: ``hpcgnn train`` on ranks into the folder ``run``, with the FLAGS of the module, too."""

    def run(name: str, *flags: object, graph=parts, ranks: int = 2, check: bool = True, threads: int = 1) -> Completed:
        words = ["train", graph, "--out", tmp_path / name, *request.module.FLAGS, *flags]
        return mpi_ranks(ranks).command(*words, check=check, threads=threads)

    return run
