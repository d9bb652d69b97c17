"""Fixtures that the tests of partitions share."""

from __future__ import annotations

import pytest
from partition_graphs import from_npz


@pytest.fixture(scope="session")
def cora(shared_data, tmp_path_factory):
    """Cora, and its graph file."""
    graph = from_npz(shared_data("cora.npz"))
    return graph, graph.write(tmp_path_factory.mktemp("cora") / "cora.h5")
