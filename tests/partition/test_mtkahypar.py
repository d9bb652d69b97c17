"""mt-KaHyPar, which minimises the rows that a halo exchange sends."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
from partition_graphs import check_same_graph, from_npz, parts_of_nodes, random_graph
from requires import require

from hpcgnn.comm import MpiWorld
from hpcgnn.errors import HpcgnnError
from hpcgnn.partition import PartitionOptions, hierarchy, methods, mtkahypar, native_metis, partition


@pytest.fixture(scope="module")
def world():
    return MpiWorld()


@pytest.fixture(scope="module")
def cora(shared_data):
    return from_npz(shared_data("cora.npz"))


def made(world, path, folder, parts, **options):
    asked = PartitionOptions(parts, objective="volume", force=True, plan="none", **options)
    return partition(world, path, folder / "parts.h5", asked)


def test_fewer_halo_rows_than_metis(world, cora, tmp_path):
    require(mtkahypar.installed(), "mtkahypar")
    require(native_metis.load_metis(1), "metis")
    path = cora.write(tmp_path / "cora.h5")
    best = made(world, path, tmp_path, 8, method="metis").quality
    found = made(world, path, tmp_path, 8, method="mtkahypar")
    check_same_graph(cora, tmp_path / "parts.h5")
    first = parts_of_nodes(tmp_path / "parts.h5")
    assert found.quality.halo_total < best.halo_total
    assert found.quality.train_balance <= max(best.train_balance, 1.05)
    made(world, path, tmp_path, 8, method="mtkahypar")
    assert np.array_equal(first, parts_of_nodes(tmp_path / "parts.h5"))


def test_directed_multigraph(world, tmp_path):
    require(mtkahypar.installed(), "mtkahypar")
    graph = random_graph(rich=True)
    report = made(world, graph.write(tmp_path / "graph.h5"), tmp_path, 4, method="mtkahypar")
    check_same_graph(graph, tmp_path / "parts.h5")
    assert report.quality.empty_parts == 0


def test_parts_of_a_node_are_mapped_together(world, cora, tmp_path, monkeypatch):
    require(mtkahypar.installed(), "mtkahypar")
    path = cora.write(tmp_path / "cora.h5")
    monkeypatch.setattr(hierarchy, "quotient_graph", None)  # it is not needed

    def crossing(**options):
        made(world, path, tmp_path, 8, method="mtkahypar", **options)
        parts = parts_of_nodes(tmp_path / "parts.h5") // 2
        return (parts[cora.sources] != parts[cora.destinations]).sum()

    assert crossing(ranks_per_node=2, jobs=1) < crossing()


def test_refused_where_it_is_missing_or_asked_for_the_cut(world, cora, tmp_path, monkeypatch):
    path = cora.write(tmp_path / "cora.h5")
    with pytest.raises(HpcgnnError, match=r"--method mtkahypar minimises the volume alone: give --objective volume$"):
        partition(world, path, tmp_path / "parts.h5", PartitionOptions(4, "mtkahypar"))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mtkahypar" else find_spec(name, *rest)
    )
    assert "mtkahypar" not in methods.available_methods()
    with pytest.raises(HpcgnnError, match=r"--method mtkahypar is not installed .pip install mtkahypar.: take another"):
        made(world, path, tmp_path, 4, method="mtkahypar")


def test_a_graph_without_edges_is_divided_in_blocks(tmp_path):
    """mt-KaHyPar itself would crash."""
    graph = tmp_path / "graph.npz"
    np.savez(graph, num_nodes=np.array(100), edge_index=np.zeros((2, 0), np.int64))
    run = [sys.executable, "-m", "hpcgnn"]
    subprocess.run([*run, "convert", f"npz:{graph}", tmp_path / "graph.h5", "--features", "degree:4"], check=True)
    partition = ["partition", tmp_path / "graph.h5", tmp_path / "parts.h5", "--parts", "4", "--json"]
    about = [*partition, "--method", "mtkahypar", "--objective", "volume"]
    told = subprocess.run([*run, *map(str, about)], check=True, capture_output=True, text=True)
    assert json.loads(told.stdout)["empty_parts"] == 0
