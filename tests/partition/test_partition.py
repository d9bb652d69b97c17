"""Partitioning in one process: methods, quality, special cases, errors, the command."""

from __future__ import annotations

import ctypes
import importlib.util

import matrix
import numpy as np
import pytest
import small_graphs
from command_line import refusal, said, told
from partition_graphs import (
    METHODS,
    Graph,
    brute_force_quality,
    by,
    check_same_graph,
    datasets,
    from_npz,
    made,
    parts_of_nodes,
    random_graph,
    require_method,
    with_problem,
)
from rank_pool import ThreadPool
from requires import EVERYTHING

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import GraphFile, PartsFile
from hpcgnn.data.schema import EdgeType
from hpcgnn.partition import PartitionOptions, methods, metis, part_order, partition, problem
from hpcgnn.partition.problem import Problem
from hpcgnn.world import whole_job
from hpcgnn.world.thread_world import one_rank


@pytest.mark.parametrize("rich", [True, False])
def test_every_array_maps_back_to_the_graph_and_the_report_equals_brute_force(tmp_path, rich):
    graph = random_graph(rich=rich)
    path, parts = graph.write(tmp_path / "graph.h5"), tmp_path / "parts.h5"
    report = made(path, tmp_path, 6, method="ldg", seed=4).as_dict()
    check_same_graph(graph, parts)
    with PartsFile(parts) as file, GraphFile(path) as source:
        assert file.file.attrs["graph_uuid"] == source.uuid
        assert (file.num_parts, file.file.attrs["method"], file.file.attrs["seed"]) == (6, "ldg", 4)
        assert file.meta == source.meta
    expected = brute_force_quality(graph, parts_of_nodes(parts), 6)
    assert {name: report[name] for name in expected} == pytest.approx(expected)


def test_neither_chunks_nor_jobs_show_in_the_file(tmp_path, monkeypatch):
    path, parts = random_graph(rich=True).write(tmp_path / "graph.h5"), tmp_path / "parts.h5"
    made(path, tmp_path, 4, method="ldg")
    whole = datasets(parts)
    monkeypatch.setattr(problem, "CHUNK_EDGES", 40)
    monkeypatch.setattr(problem, "CHUNK_NODES", 50)
    monkeypatch.setattr(part_order, "CHUNK_BYTES", 64)
    monkeypatch.setattr(part_order, "_RUN_BYTES", 1)
    for jobs in (1, 3):
        made(path, tmp_path, 4, method="ldg", jobs=jobs)
        chunked = datasets(parts)
        assert {name for name in whole if whole[name].tobytes() != chunked[name].tobytes()} == set()


@pytest.mark.parametrize(("method", "most"), [("metis", 0.12), ("parmetis", 0.12), ("ptscotch", 0.12), ("ldg", 0.35)])
def test_methods_beat_random_on_cora(cora, tmp_path, method, most):
    require_method(method)
    report = made(cora[1], tmp_path, 4, method=method)
    assert report.quality.cut_fraction < most  # random: 0.75
    assert report.quality.edge_balance < 1.25
    assert report.quality.train_balance < 1.25
    assert made(cora[1], tmp_path, 4, method=method).quality == report.quality


def test_random_cuts_what_chance_says(cora, tmp_path):
    first, other = (made(cora[1], tmp_path, 4, method="random", seed=seed).quality for seed in (0, 1))
    assert first.cut_fraction == pytest.approx(0.75, abs=0.02)
    assert other.cut_edges != first.cut_edges


@pytest.mark.parametrize(
    ("graph", "methods", "most"),
    [
        ("tolokers", [("metis", "volume"), ("metis", "cut")], 0.9),
        ("cora", [("mtkahypar", "volume"), ("metis", "volume")], 1),
    ],
)
def test_who_minimises_the_volume_sends_fewer_rows(shared_data, tmp_path, graph, methods, most):
    """METIS than for its cut; and mt-KaHyPar, which does nothing else, than METIS."""
    path, found = from_npz(shared_data(f"{graph}.npz")).write(tmp_path / "graph.h5"), []
    for method, objective in (*methods, methods[0]):
        require_method(method)
        found.append(made(path, tmp_path, 8, method=method, objective=objective, plan="none").quality)
    best, other, again = found
    assert best.halo_total < most * other.halo_total
    assert best.train_balance <= max(other.train_balance, 1.05)
    assert best == again


@pytest.mark.parametrize(("method", "most"), [("metis", 1.1), ("parmetis", 1.1), ("ptscotch", 1.4), ("ldg", 1.1)])
def test_balance_names_what_is_even(tmp_path, method, most):
    """The graph has a hub and clustered training nodes, so each quantity is balanced only if it is asked for."""
    rng = np.random.default_rng(0)
    train = np.arange(2000) < 400
    nodes = np.concatenate([rng.integers(0, 400, 9000), rng.integers(0, 2000, 9000)])
    graph = Graph(2000, np.roll(nodes, 1), nodes, masks=dict.fromkeys(("train_mask", "val_mask", "test_mask"), train))
    path = graph.write(tmp_path / "graph.h5")
    require_method(method)
    by_nodes = made(path, tmp_path, 4, method=method, balance=("nodes",)).quality
    by_train = made(path, tmp_path, 4, method=method, balance=("train",)).quality
    report = made(path, tmp_path, 4, method=method, balance=("edges", "train"))
    by_both = report.quality
    assert any("only the sum of edges and train" in note for note in report.notes) == (method == "ptscotch")
    assert by_nodes.node_balance < most
    assert by_nodes.train_balance > 1.2
    assert by_train.train_balance < most
    assert by_both.train_balance < most
    assert by_both.edge_balance < most


NODES = np.arange(512)
# Graphs that libraries trip over, and a number of parts.
TRAPS = {
    "one part": (random_graph(60, 200, rich=False), 1),
    "as many parts as nodes": (random_graph(16, 40, rich=False), 16),
    "few nodes a part": (random_graph(40, 100, rich=False), 20),
    "one node": (random_graph(1, 3, rich=False), 1),
    "no edges": (random_graph(64, 0, rich=False), 4),
    "a few edges": (random_graph(200, 9, rich=False), 4),
    "a star": (Graph(512, 0 * NODES[1:], NODES[1:]), 4),
    "pairs": (Graph(512, NODES[::2], NODES[1::2]), 4),
    "a multigraph": (random_graph(rich=True), 4),
}
TRAPPED = [
    (method, trap)
    for n, method in enumerate(METHODS)
    for k, trap in enumerate(TRAPS)
    if EVERYTHING or (n + k + matrix.seed()) % 3 == 0
]


@pytest.mark.parametrize(("method", "trap"), TRAPPED)
def test_traps(tmp_path, method, trap):
    require_method(method)
    graph, parts = TRAPS[trap]
    found = made(graph.write(tmp_path / "graph.h5"), tmp_path, parts, **by(method)).quality
    check_same_graph(graph, tmp_path / "parts.h5")
    assert found.num_parts == parts
    assert {
        "a star": found.halo_max <= 1,
        "pairs": found.node_balance < 1.3,
        "a multigraph": not found.empty_parts,
    }.get(trap, True)


def test_more_parts_than_nodes_are_refused_at_once(cora, tmp_path, monkeypatch):
    monkeypatch.setattr(GraphFile, "verify", lambda *_: pytest.fail("the graph was read"))
    with pytest.raises(HpcgnnError, match=r"has 2,708 nodes, too few for 1,000,000 parts: ask for at most 2,708$"):
        made(cora[1], tmp_path, 1_000_000)
    assert list(tmp_path.iterdir()) == []


def test_auto_takes_the_best_found_and_says_why(cora, tmp_path, monkeypatch):
    require_method("kaminpar")
    require_method("metis")

    def taken(**options):
        return made(cora[1], tmp_path, 4, plan="none", **options)

    assert taken().method == "kaminpar"
    assert taken(objective="volume").method == "metis"
    find = importlib.util.find_spec
    packages = ("kaminpar", "mtkahypar")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in packages else find(name, *rest)
    )
    report = taken()
    assert report.method == "metis"
    assert report.reason.startswith("kaminpar is not installed (pip install kaminpar);")
    monkeypatch.setattr(metis, "_candidates", lambda: iter(()))
    monkeypatch.setattr(metis, "PARMETIS_NAMES", ("libnothing.so",))
    monkeypatch.setattr(metis, "SCOTCH_SUFFIXES", (".nothing",))
    report = taken()
    assert report.method == "ldg"
    assert "metis is not installed" in report.reason
    assert "ptscotch is not installed" in report.reason
    for method in (*packages, "metis"):
        assert method not in methods.available_methods()
        with pytest.raises(HpcgnnError, match=f"--method {method} is not installed"):
            taken(**by(method))


def test_32_bit_libraries_refuse_what_they_cannot_count(cora, tmp_path, monkeypatch):
    require_method("metis")
    require_method("parmetis")
    monkeypatch.setattr(Problem, "largest_count", lambda problem: 1 << 31)
    if metis.load_parmetis(1).index == np.int32:
        with pytest.raises(HpcgnnError, match="32-bit integers, which cannot count to 2,147,483,648"):
            made(cora[1], tmp_path, 4, method="parmetis")
    if metis.load_metis(1 << 31).index == np.int64:
        assert made(cora[1], tmp_path, 4, method="metis").quality.cut_fraction < 0.12


def test_counts_include_both_directions_of_directed_edges(tmp_path):
    graph = random_graph(rich=False)

    def use(problem):
        assert problem.largest_count() == 2 * graph.sources.size
        assert problem.balance.totals.tolist() == [graph.sources.size + graph.num_nodes]

    with_problem(graph.write(tmp_path / "graph.h5"), PartitionOptions(2, balance=("edges",)), use)


def test_library_for_another_mpi_is_not_called(monkeypatch):
    """Both libraries report it, including the second one, whose MPI the first one has already loaded."""
    require_method("parmetis")
    require_method("ptscotch")
    monkeypatch.setattr(metis, "_mpi_libraries", lambda: {"/a/libmpi.so.12", "/b/libmpi.so.40"})
    for load in (metis.load_parmetis, metis.load_ptscotch):
        with pytest.raises(metis.Unusable, match="another MPI library"):
            load(1)


def test_outputs_are_not_overwritten_by_accident(cora, tmp_path):
    _, graph = cora
    parts = tmp_path / "parts.h5"
    made(graph, tmp_path, 2, method="block")
    for source, target, force, sentence in (
        (graph, parts, False, "--force"),
        (graph, graph, True, "is an input of this command, and is not replaced"),
        (
            parts,
            tmp_path / "other.h5",
            False,
            "is a parts file, but a graph file is needed: give the output of `hpcgnn",
        ),
        (graph, tmp_path / "nowhere" / "parts.h5", False, "does not exist"),
    ):
        with pytest.raises(HpcgnnError, match=sentence):
            partition(whole_job(), source, target, PartitionOptions(2, force=force))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_parts": 0}, "num_parts"),
        ({"num_parts": len}, "num_parts"),
        ({"num_parts": 2.0}, "num_parts"),
        ({"method": "magic"}, "method must be one of auto, kaminpar"),
        ({"method": None}, "method"),
        ({"objective": "time"}, "objective must be one of cut"),
        ({"balance": ("degree",)}, "--balance takes"),
        ({"balance": ()}, "--balance takes"),
        ({"balance": 3}, "balance"),
        ({"balance": (3,)}, "balance"),
        ({"force": None}, "force"),
        ({"seed": -1}, "seed"),
        *(({"ranks_per_node": count}, "ranks.per.node must") for count in (0, 3, -2, 16)),
        ({"jobs": -1}, "jobs must"),
        ({"jobs": "2"}, "jobs"),
        ({"method": "parmetis", "objective": "volume"}, "cannot minimise the volume .metis and mtkahypar can"),
        ({"method": "ptscotch", "objective": "volume"}, "cannot minimise the volume .metis and mtkahypar can"),
        ({"method": "mtkahypar", "objective": "cut"}, "minimises the volume alone: give --objective volume$"),
    ],
)
def test_wrong_options_are_one_sentence(cora, tmp_path, wrong, words):
    with pytest.raises(HpcgnnError, match=words) as error:
        partition(one_rank(), cora[1], tmp_path / "parts.h5", PartitionOptions(**{"num_parts": 8} | wrong))
    assert "\n" not in str(error.value)


def test_arguments_of_another_type_are_refused():
    with pytest.raises(HpcgnnError, match="options must be PartitionOptions"):
        partition(one_rank(), "graph.h5", "parts.h5", np.int64(1))
    with pytest.raises(HpcgnnError, match="graph_path must be a path"):
        partition(one_rank(), 3, "parts.h5", PartitionOptions(2))


def test_what_libraries_print_goes_to_stderr(capfd):
    libc = ctypes.CDLL(None)
    with metis.stdout_to_stderr():
        libc.puts(b"noise")
    print("result", flush=True)
    captured = capfd.readouterr()
    assert captured.out == "result\n"
    assert "noise" in captured.err


def test_command(cora, tmp_path):
    words = ["partition", cora[1], tmp_path / "parts.h5", "--parts", 4, "--method", "ldg"]
    shown = said(*words, "--ranks-per-node", 2, "--jobs", 1)
    for word in ("method", "cut edges", "halo rows", "replication", "training nodes", "seconds of compiling"):
        assert word in shown
    values = told(*words, "--force", "--balance", "nodes, edges")
    assert (values["method"], values["num_parts"], values["balance"]) == ("ldg", 4, ["nodes", "edges"])
    assert said(*words, "--force", "--quiet") == ""
    assert "--force" in refusal(*words)
    assert "3 does not divide 4" in refusal(*words, "--ranks-per-node", 3)
    for word in ("Examples", "--ranks-per-node"):
        assert word in said("partition", "--help")


@pytest.mark.parametrize("method", ["kaminpar", "metis", "fennel"])
def test_each_type_of_nodes_is_balanced(tmp_path, method):
    """Two types of nodes with few edges between them: the fewest cut edges would give each type a part."""
    require_method(method)
    rng = np.random.default_rng(0)
    edges = np.concatenate(
        [rng.integers(0, 300, (2, 3000)), rng.integers(300, 600, (2, 3000)), [[0, 300], [300, 0]]], 1
    )
    types = small_graphs.NodeType("a", 300), small_graphs.NodeType("b", 300)
    between = tuple(EdgeType(source, f"{source}{target}", target) for target in range(2) for source in range(2))
    graph = small_graphs.Arrays(
        edges, np.zeros((600, 0), np.float32), edge_type=(edges[0] // 300 + 2 * (edges[1] // 300)).astype(np.int32),
        node_types=types, edge_types=between,
    )  # fmt: skip
    small_graphs.write_graph(tmp_path / "graph.h5", graph)
    shares = {}
    for balance in (("edges",), ("edges", "types")):
        report = made(tmp_path / "graph.h5", tmp_path, 2, method=method, balance=balance)
        with PartsFile(tmp_path / "parts.h5") as parts:
            first, last = parts.part(0)
            shares[balance] = int((parts.read("nodes/original_ids", first, last) < 300).sum()) / 300
    assert abs(shares["edges",] - 0.5) > 0.3
    assert abs(shares["edges", "types"] - 0.5) < 0.05
    assert report.balance[-1] in ("type b", "nodes")


def test_the_work_of_nodes_is_that_of_a_loop_over_edges_on_any_number_of_ranks(tmp_path):
    graph, parts = random_graph(rich=False), 16
    inward, outward = (np.bincount(ends, minlength=203) for ends in (graph.destinations, graph.sources))
    work, posts, sums = np.zeros((3, 203), int)
    for source, target in zip(graph.sources, graph.destinations, strict=True):
        is_sum = inward[target] > outward[source] and outward[source] < parts / 2
        work[source if is_sum else target] += 1
        posts[source] += not is_sum
        sums[target] += is_sum
    assert posts.any()
    assert sums.any()
    rows = sum(parts * (1 - (1 - 1 / parts) ** edges) for edges in (posts, sums))
    path, options = graph.write(tmp_path / "graph.h5"), PartitionOptions(parts, balance=("train", "work"))
    for ranks in (1, 3):
        found = ThreadPool(ranks).run(lambda world: with_problem(path, options, lambda it: it.balance, world=world))
        wanted = 1 + work + np.rint(rows).astype(int)
        np.testing.assert_array_equal(np.concatenate([balance.work.values for balance in found]), wanted)
        assert {balance.totals[1] for balance in found} == {wanted.sum()}


def with_hubs(path, hubs, nodes=2000):
    """A graph in which all nodes have edges to some hubs, whose sums are made by the senders."""
    node = np.arange(nodes)
    sources = np.concatenate((np.tile(node, hubs), node, node))
    targets = np.concatenate((np.repeat(np.arange(hubs) * 400, nodes), (node + 1) % nodes, (node + 2) % nodes))
    return Graph(nodes, sources, targets).write(path / "graph.h5")


@pytest.mark.parametrize("method", ["ldg", "fennel", "metis", "kaminpar"])
def test_parts_with_equal_work_need_not_have_equal_numbers_of_edges(tmp_path, method):
    require_method(method)
    path, imbalance = with_hubs(tmp_path, 5), {}
    for balance in ("edges", "work"):
        made(path, tmp_path, 16, method=method, balance=(balance,), plan="hybrid")
        imbalance[balance] = told("plan", tmp_path / "parts.h5")["strategies"]["hybrid"]["work_imbalance"]
    assert imbalance["edges"] > 1.3
    assert imbalance["work"] < 1.2


@pytest.mark.parametrize(("hubs", "wanted"), [(5, "work"), (0, "edges")])
def test_by_default_work_is_balanced_where_hubs_have_many_edges(tmp_path, hubs, wanted):
    path, both = with_hubs(tmp_path, hubs), PartitionOptions(16, balance=("auto", "work", "edges"))
    assert made(path, tmp_path, 16, method="ldg", plan="none").balance == (wanted,)
    for ranks in (1, 3):
        found = ThreadPool(ranks).run(lambda world: with_problem(path, both, lambda it: it.balance, world=world))
        assert {balance.names for balance in found} == {("work", "edges") if hubs else ("edges", "work")}


@pytest.mark.parametrize("method", ["ldg", "fennel"])
def test_rank_0_knows_the_work_of_all_nodes(tmp_path, method):
    path, options = random_graph(rich=False).write(tmp_path / "graph.h5"), PartitionOptions(4, balance=("work",))
    assign = methods.METHODS[method].assign
    alone, *ranks = (
        np.concatenate(ThreadPool(ranks).run(lambda world: with_problem(path, options, assign, world=world)))
        for ranks in (1, 3)
    )
    np.testing.assert_array_equal(alone, ranks[0])
