"""Several ranks write the same bytes as one process, and fail together."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from partition_graphs import Graph, check_same_graph, datasets, from_npz, parts_of_nodes, random_graph
from requires import require

from hpcgnn.comm import MpiWorld
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.partition.native_parmetis import Unusable, load_parmetis, load_ptscotch

SCRIPT = Path(__file__).with_name("rank_partition.py")
NOTHING = np.zeros(0, dtype=np.int64)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory, shared_data):
    folder = tmp_path_factory.mktemp("graphs")
    made = {
        "rich": random_graph(rich=True),
        "plain": random_graph(rich=False, seed=2),
        "two": Graph(2, np.array([0]), np.array([1]), np.ones((2, 3), dtype=np.float32)),
        "edgeless": Graph(40, NOTHING, NOTHING, np.ones((40, 3), dtype=np.float32)),
        "cora": from_npz(shared_data("cora.npz")),
    }
    paths = {name: graph.write(folder / f"{name}.h5") for name, graph in made.items()}
    (folder / "foreign.h5").write_bytes(b"not HDF5")
    paths["foreign"], paths["missing"] = folder / "foreign.h5", folder / "missing.h5"
    paths["damaged"] = made["plain"].write(folder / "damaged.h5")
    with h5py.File(paths["damaged"], "r+") as file:
        file["edges/indices"][-1] = 203
    return made, paths


SAME_FOR_ANY_RANKS = [
    ("rich", "random", 4), ("rich", "block", 3), ("rich", "ldg", 5), ("plain", "random", 7), ("plain", "block", 1),
    ("plain", "random", 400), ("two", "random", 4), ("two", "block", 2), ("edgeless", "random", 3),
]  # fmt: skip
LIBRARIES = [("cora", "parmetis", 4), ("cora", "ptscotch", 4), ("two", "parmetis", 2), ("edgeless", "parmetis", 2)]
ERRORS = [("cora", "metis", 2), ("missing", "block", 2), ("foreign", "block", 2), ("damaged", "block", 2)]


def _cases(paths, wanted):
    for name, method, parts in wanted:
        options = {"num_parts": parts, "method": method, "seed": 3}
        yield {"name": f"{name}-{method}-{parts}", "graph": str(paths[name]), "options": options}


@pytest.fixture(scope="module", params=[2, 3])
def outcomes(request, graphs, tmp_path_factory, mpirun):
    """One launch a rank count: its number, its folder, what it printed."""
    ranks, folder = request.param, tmp_path_factory.mktemp("parts")
    cases = list(_cases(graphs[1], SAME_FOR_ANY_RANKS + LIBRARIES + ERRORS))
    (folder / "cases.json").write_text(json.dumps(cases))
    result = mpirun(ranks, [SCRIPT, folder / "cases.json", folder])
    printed = json.loads(result.stdout.splitlines()[-1])
    return ranks, folder, printed, dict(zip([case["name"] for case in cases], printed["outcomes"], strict=True))


@pytest.mark.mpi
def test_files_are_the_same_for_any_number_of_ranks(outcomes, graphs, tmp_path):
    ranks, folder, _, reports = outcomes
    for (name, _, _), case in zip(SAME_FOR_ANY_RANKS, _cases(graphs[1], SAME_FOR_ANY_RANKS), strict=True):
        alone = tmp_path / f"{case['name']}.h5"
        report = partition(MpiWorld(), graphs[1][name], alone, PartitionOptions(**case["options"]))
        expected, found = datasets(alone), datasets(folder / f"{case['name']}.{ranks}.h5")
        assert expected.keys() == found.keys()
        for array in expected:
            assert expected[array].tobytes() == found[array].tobytes(), (case["name"], array)
        check_same_graph(graphs[0][name], folder / f"{case['name']}.{ranks}.h5")
        same = ("cut_edges", "halo_total", "halo_max", "node_balance", "edge_balance", "train_balance", "method")
        assert {key: reports[case["name"]][key] for key in same} == {key: report.as_dict()[key] for key in same}


@pytest.mark.mpi
def test_symmetric_graph_from_several_ranks(outcomes, graphs):
    graph = graphs[0]["rich"]
    ones = np.ones(graph.sources.size)
    matrix = sp.coo_matrix((ones, (graph.destinations, graph.sources)), (graph.num_nodes, graph.num_nodes)).tocsr()
    matrix = ((matrix + matrix.T) > 0).astype(np.int64).tolil()
    matrix.setdiag(0)
    matrix = matrix.tocsr()
    expected = np.stack([matrix.sum(axis=1).A1, matrix @ np.arange(graph.num_nodes)], axis=1)
    assert outcomes[2]["neighbours"] == expected.tolist()


@pytest.mark.mpi
@pytest.mark.system_mpi
@pytest.mark.parametrize(
    ("method", "load"), [("parmetis", load_parmetis), ("ptscotch", lambda: load_ptscotch(wide=False))]
)
def test_distributed_libraries_beat_random(outcomes, graphs, method, load):
    ranks, folder, _, reports = outcomes
    _require(load, method)
    report = reports[f"cora-{method}-4"]
    assert report["method"] == method
    assert report["cut_fraction"] < 0.15  # random: 0.75
    assert report["edge_balance"] < 1.3
    check_same_graph(graphs[0]["cora"], folder / f"cora-{method}-4.{ranks}.h5")
    assert set(parts_of_nodes(folder / f"cora-{method}-4.{ranks}.h5")) == {0, 1, 2, 3}


@pytest.mark.mpi
@pytest.mark.system_mpi
def test_graphs_too_small_for_parmetis_are_handled(outcomes, graphs):
    ranks, folder, _, reports = outcomes
    _require(load_parmetis, "ParMETIS")
    assert reports["two-parmetis-2"]["method"] == "ldg"
    assert "too few" in reports["two-parmetis-2"]["reason"]
    for case in ("two-parmetis-2", "edgeless-parmetis-2"):
        check_same_graph(graphs[0][case.split("-")[0]], folder / f"{case}.{ranks}.h5")


@pytest.mark.mpi
def test_errors_reach_every_rank_and_leave_no_file(outcomes):
    ranks, folder, printed, reports = outcomes
    expected = {
        "cora-metis-2": "one process",
        "missing-block-2": "does not exist",
        "foreign-block-2": "not a whole HDF5",
    }
    expected["damaged-block-2"] = "outside 0 to 202"
    for case, words in expected.items():
        assert words in reports[case]["error"]
        assert reports[case]["agreed"]
        assert not (folder / f"{case}.{ranks}.h5").exists()
    assert printed["errors_on_every_rank"] >= len(ERRORS)
    assert not list(folder.glob(".*"))


def _require(load, what):
    try:
        load()
    except Unusable as reason:
        require(False, f"{what}, which {reason}")
