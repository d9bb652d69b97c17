"""mt-KaHyPar, which minimises the rows that a halo exchange sends."""

from __future__ import annotations

import numpy as np
import pytest
from partition_graphs import check_same_graph, made, parts_of_nodes
from requires import require

from hpcgnn.partition import hierarchy, metis, separate_process

VOLUME = {"objective": "volume", "plan": "none"}


@pytest.fixture(autouse=True)
def _installed():
    require(separate_process.installed("mtkahypar"), "mtkahypar")


@pytest.mark.slow
def test_fewer_halo_rows_than_metis(cora, tmp_path):
    require(metis.load_metis(1), "metis")
    graph, path = cora
    best = made(path, tmp_path, 8, method="metis", **VOLUME).quality
    found = made(path, tmp_path, 8, method="mtkahypar", **VOLUME).quality
    check_same_graph(graph, tmp_path / "parts.h5")
    first = parts_of_nodes(tmp_path / "parts.h5")
    assert found.halo_total < best.halo_total
    assert found.train_balance <= max(best.train_balance, 1.05)
    made(path, tmp_path, 8, method="mtkahypar", **VOLUME)
    assert np.array_equal(first, parts_of_nodes(tmp_path / "parts.h5"))


def test_parts_of_a_node_are_mapped_together(cora, tmp_path, monkeypatch):
    graph, path = cora
    monkeypatch.setattr(hierarchy, "quotient_graph", None)  # it is not needed

    def crossing(**options):
        made(path, tmp_path, 8, method="mtkahypar", **VOLUME, **options)
        return graph.cut(parts_of_nodes(tmp_path / "parts.h5") // 2)

    assert crossing(ranks_per_node=2, jobs=1) < crossing()
