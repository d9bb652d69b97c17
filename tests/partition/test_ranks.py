"""Several ranks write the same bytes as one process, and fail together."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from partition_graphs import Graph, check_same_graph, datasets, parts_of_nodes, random_graph, require_method
from rank_pool import ThreadPool
from ranks import partitions
from requires import EVERYTHING

NOTHING = np.zeros(0, dtype=np.int64)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory, cora):
    folder = tmp_path_factory.mktemp("graphs")
    made = {
        "rich": random_graph(rich=True),
        "plain": random_graph(rich=False, seed=2),
        "two": Graph(2, np.array([0]), np.array([1]), np.ones((2, 3), dtype=np.float32)),
        "edgeless": Graph(40, NOTHING, NOTHING, np.ones((40, 3), dtype=np.float32)),
    }
    paths = {name: graph.write(folder / f"{name}.h5") for name, graph in made.items()}
    made["cora"], paths["cora"] = cora
    (folder / "foreign.h5").write_bytes(b"not HDF5")
    paths |= {name: folder / f"{name}.h5" for name in ("foreign", "missing")}
    paths["damaged"] = made["plain"].write(folder / "damaged.h5")
    with h5py.File(paths["damaged"], "r+") as file:
        file["edges/indices"][-1] = 203
    return made, paths


SAME_FOR_ANY_RANKS = [
    ("rich", "random", 4), ("rich", "block", 3), ("rich", "ldg", 5), ("rich", "fennel", 5),
    ("plain", "random", 7), ("plain", "block", 1), ("plain", "random", 203), ("two", "random", 2), ("two", "block", 2),
    ("edgeless", "random", 3), ("plain", "rows", 4), ("rich", "rows", 4),
]  # fmt: skip
ERRORS = [
    ("cora", "metis", 2, "one process"), ("missing", "block", 2, "there is no file"),
    ("foreign", "block", 2, "is not a graph file of hpcgnn"), ("damaged", "block", 2, "outside 0 to 202"),
]  # fmt: skip


@pytest.fixture(params=[2, 3])
def ranks(request, mpi_ranks):
    return mpi_ranks(request.param)


def options(method, parts):
    if method == "rows":  # an objective, which moves nodes after a method
        return options("random", parts) | {"objective": "rows"}
    return {"num_parts": parts, "method": method, "seed": 3}


def check_same_as_alone(pool, graphs, folder, name, method, parts):
    made, paths = graphs
    (report,) = ThreadPool(1).run(partitions.partitioned, paths[name], folder / "alone.h5", options(method, parts))
    found = pool.run(partitions.partitioned, paths[name], folder / "parts.h5", options(method, parts))
    expected, written = datasets(folder / "alone.h5"), datasets(folder / "parts.h5")
    assert expected.keys() == written.keys()
    for array in expected:
        assert expected[array].tobytes() == written[array].tobytes(), array
    check_same_graph(made[name], folder / "parts.h5")
    same = ("cut_edges", "halo_total", "halo_max", "node_balance", "edge_balance", "train_balance", "method", "reason")
    assert all(one[key] == report[key] for one in found for key in same)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method", "parts"), SAME_FOR_ANY_RANKS)
def test_files_are_the_same_for_any_number_of_ranks(graphs, tmp_path, name, method, parts):
    turn = SAME_FOR_ANY_RANKS.index((name, method, parts))
    for size in (2, 3, 4) if EVERYTHING else [2 + turn % 3]:
        check_same_as_alone(ThreadPool(size), graphs, tmp_path, name, method, parts)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "method", "parts"), SAME_FOR_ANY_RANKS if EVERYTHING else [SAME_FOR_ANY_RANKS[0], SAME_FOR_ANY_RANKS[6]]
)
def test_files_that_mpi_writes_are_the_same(ranks, graphs, tmp_path, name, method, parts):
    check_same_as_alone(ranks, graphs, tmp_path, name, method, parts)


@pytest.mark.mpi
@pytest.mark.system_mpi
@pytest.mark.parametrize("method", ["parmetis", "ptscotch"])
def test_distributed_libraries_beat_random(ranks, graphs, tmp_path, method):
    require_method(method)
    report, *_ = ranks.run(partitions.partitioned, graphs[1]["cora"], tmp_path / "parts.h5", options(method, 4))
    assert report["method"] == method
    assert report["cut_fraction"] < 0.15  # random: 0.75
    assert report["edge_balance"] < 1.3
    check_same_graph(graphs[0]["cora"], tmp_path / "parts.h5")
    assert set(parts_of_nodes(tmp_path / "parts.h5")) == {0, 1, 2, 3}


@pytest.mark.mpi
@pytest.mark.system_mpi
@pytest.mark.parametrize("name", ["two", "edgeless"])
def test_graphs_too_small_for_parmetis_are_handled(ranks, graphs, tmp_path, name):
    require_method("parmetis")
    report, *_ = ranks.run(partitions.partitioned, graphs[1][name], tmp_path / "parts.h5", options("parmetis", 2))
    if name == "two":
        assert report["method"] == "ldg"
        assert "too few" in report["reason"]
    check_same_graph(graphs[0][name], tmp_path / "parts.h5")


@pytest.mark.mpi
@pytest.mark.parametrize(("name", "method", "parts", "words"), ERRORS)
def test_errors_reach_every_rank_and_leave_no_file(ranks, graphs, tmp_path, name, method, parts, words):
    for report in ranks.run(partitions.partitioned, graphs[1][name], tmp_path / "parts.h5", options(method, parts)):
        assert words in report["error"]
        assert report["agreed"]
    assert list(tmp_path.iterdir()) == []
