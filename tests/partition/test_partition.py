"""Partitioning in one process: methods, quality, special cases, errors, the command."""

from __future__ import annotations

import ctypes
import errno
import json

import click.testing
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_graphs import (
    Graph,
    brute_force_quality,
    check_same_graph,
    datasets,
    from_npz,
    parts_of_nodes,
    random_graph,
)
from requires import require

from hpcgnn.cli.partition import partition as command
from hpcgnn.comm import MpiWorld
from hpcgnn.comm.thread_world import one_rank
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.data.h5 import SlabWriter
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.errors import HpcgnnError
from hpcgnn.partition import (
    PartitionOptions,
    kaminpar,
    methods,
    native_metis,
    native_parmetis,
    part_order,
    partition,
    slabs,
)
from hpcgnn.partition.balance import Balance
from hpcgnn.partition.slabs import Slab, symmetric_neighbours

NOTHING = np.zeros(0, dtype=np.int64)
METHODS = ("kaminpar", "metis", "parmetis", "ptscotch", "fennel", "ldg", "block", "random")


@pytest.fixture(scope="module")
def world():
    return MpiWorld()


@pytest.fixture(scope="module")
def cora(shared_data, tmp_path_factory):
    return from_npz(shared_data("cora.npz")).write(tmp_path_factory.mktemp("cora") / "cora.h5")


def run(world, graph_path, folder, parts, **options):
    report = partition(world, graph_path, folder / "parts.h5", PartitionOptions(parts, force=True, **options))
    return report, folder / "parts.h5"


def require_method(method):
    try:
        found = {"metis": lambda: native_metis.load_metis(1), "parmetis": native_parmetis.load_parmetis}.get(
            method, lambda: method != "ptscotch" or native_parmetis.load_ptscotch(wide=False)
        )()
    except native_parmetis.Unusable as reason:
        found = None
        require(False, f"{method}, which {reason}")
    require(found, method)


@pytest.mark.parametrize("rich", [True, False])
def test_every_array_maps_back_to_the_graph(world, tmp_path, rich):
    graph = random_graph(rich=rich)
    path = graph.write(tmp_path / "graph.h5")
    _, parts = run(world, path, tmp_path, 5, method="random", seed=4)
    check_same_graph(graph, parts)
    with PartsFile(parts) as file, GraphFile(path) as source:
        assert file.file.attrs["graph_uuid"] == source.uuid
        assert (file.num_parts, file.file.attrs["method"], file.file.attrs["seed"]) == (5, "random", 4)
        assert file.meta == source.meta


def test_report_equals_brute_force(world, tmp_path):
    graph = random_graph(rich=True)
    report, parts = run(world, graph.write(tmp_path / "graph.h5"), tmp_path, 6, method="ldg")
    expected = brute_force_quality(graph, parts_of_nodes(parts), 6)
    assert {name: report.as_dict()[name] for name in expected} == pytest.approx(expected)


def test_chunks_do_not_show_in_the_file(world, tmp_path, monkeypatch):
    path = random_graph(rich=True).write(tmp_path / "graph.h5")
    whole = datasets(run(world, path, tmp_path, 4, method="ldg")[1])
    for module, name, value in (
        (slabs, "CHUNK_EDGES", 40),
        (slabs, "CHUNK_NODES", 50),
        (part_order, "CHUNK_BYTES", 64),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(part_order, "_RUN_BYTES", 1)
    chunked = datasets(run(world, path, tmp_path, 4, method="ldg")[1])
    assert all(whole[name].tobytes() == chunked[name].tobytes() for name in whole)


@given(st.integers(1, 30), st.integers(0, 120), st.integers(0, 99))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_partitioners_get_a_simple_symmetric_graph(world, tmp_path, nodes, edges, seed):
    rng = np.random.default_rng(seed)
    graph = Graph(nodes, rng.integers(0, nodes, edges), rng.integers(0, nodes, edges))
    with GraphFile(graph.write(tmp_path / "graph.h5")) as reader:
        slab = Slab.of(world, reader)
        indptr, indices = symmetric_neighbours(world, reader, slab, np.dtype(np.int32), lambda count: None)
    expected = np.zeros((nodes, nodes), dtype=bool)
    expected[graph.sources, graph.destinations] = expected[graph.destinations, graph.sources] = True
    np.fill_diagonal(expected, False)
    found = sp.csr_matrix((np.ones(indices.size, dtype=np.int64), indices, indptr), (nodes, nodes))
    assert np.array_equal(found.toarray(), expected)  # a duplicate would count twice
    assert indices.size == expected.sum()


@pytest.mark.parametrize(("method", "most"), [("metis", 0.12), ("parmetis", 0.12), ("ptscotch", 0.12), ("ldg", 0.35)])
def test_methods_beat_random_on_cora(world, cora, tmp_path, method, most):
    require_method(method)
    report, _ = run(world, cora, tmp_path, 4, method=method)
    assert report.quality.cut_fraction < most  # random: 0.75
    assert report.quality.edge_balance < 1.25
    assert report.quality.train_balance < 1.25
    again, _ = run(world, cora, tmp_path, 4, method=method)
    assert again.quality == report.quality


def test_random_cuts_what_chance_says(world, cora, tmp_path):
    report, _ = run(world, cora, tmp_path, 4, method="random")
    assert report.quality.cut_fraction == pytest.approx(0.75, abs=0.02)
    other, _ = run(world, cora, tmp_path, 4, method="random", seed=1)
    assert other.quality.cut_edges != report.quality.cut_edges


def test_volume_objective_sends_fewer_rows(world, shared_data, tmp_path):
    require_method("metis")
    path = from_npz(shared_data("tolokers.npz")).write(tmp_path / "graph.h5")
    cut, volume = (
        run(world, path, tmp_path, 4, method="metis", objective=name)[0].quality for name in ("cut", "volume")
    )
    assert volume.halo_total < 0.9 * cut.halo_total


@pytest.mark.parametrize(("method", "most"), [("metis", 1.1), ("parmetis", 1.1), ("ptscotch", 1.4), ("ldg", 1.1)])
def test_balance_names_what_is_even(world, tmp_path, method, most):
    """The graph has a hub and clustered training nodes, so each quantity is balanced only if it is asked for."""
    rng = np.random.default_rng(0)
    train = np.arange(2000) < 400
    nodes = np.concatenate([rng.integers(0, 400, 9000), rng.integers(0, 2000, 9000)])
    graph = Graph(2000, np.roll(nodes, 1), nodes, masks=dict.fromkeys(("train_mask", "val_mask", "test_mask"), train))
    path = graph.write(tmp_path / "graph.h5")
    require_method(method)
    by_nodes = run(world, path, tmp_path, 4, method=method, balance=("nodes",))[0].quality
    by_train = run(world, path, tmp_path, 4, method=method, balance=("train",))[0].quality
    report, _ = run(world, path, tmp_path, 4, method=method, balance=("edges", "train"))
    by_both = report.quality
    assert any("only the sum of edges and train" in note for note in report.notes) == (method == "ptscotch")
    assert by_nodes.node_balance < most
    assert by_nodes.train_balance > 1.2
    assert by_train.train_balance < most
    assert by_both.train_balance < most
    assert by_both.edge_balance < most


TRAPS = {
    "one part": (60, 200, 1),
    "more parts than nodes": (5, 10, 9),
    "as many parts as nodes": (16, 40, 16),
    "few nodes a part": (40, 100, 20),
    "one node": (1, 3, 2),
    "no nodes": (0, 0, 3),
    "no edges": (64, 0, 4),
    "a few edges": (200, 9, 4),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("trap", TRAPS)
def test_traps(world, tmp_path, capfd, method, trap):
    require_method(method)
    nodes, edges, parts = TRAPS[trap]
    graph = random_graph(nodes, edges, rich=False)
    report, path = run(world, graph.write(tmp_path / "graph.h5"), tmp_path, parts, method=method)
    check_same_graph(graph, path)
    assert report.quality.num_parts == parts
    assert capfd.readouterr().out == ""  # libraries print complaints on stdout


@pytest.mark.parametrize("method", METHODS)
def test_star_and_components(world, tmp_path, method):
    require_method(method)
    star = Graph(500, np.zeros(499, dtype=np.int64), np.arange(1, 500))
    report, path = run(world, star.write(tmp_path / "star.h5"), tmp_path, 4, method=method)
    check_same_graph(star, path)
    assert report.quality.halo_max <= 1
    pairs = Graph(512, np.arange(0, 512, 2), np.arange(1, 512, 2))
    report, path = run(world, pairs.write(tmp_path / "pairs.h5"), tmp_path, 4, method=method)
    check_same_graph(pairs, path)
    assert report.quality.node_balance < 1.3


def test_auto_takes_the_best_found_and_says_why(world, cora, tmp_path, monkeypatch):
    require_method("metis")
    monkeypatch.setattr(kaminpar, "installed", lambda: False)
    report, _ = run(world, cora, tmp_path, 4)
    assert report.method == "metis"
    monkeypatch.setattr(native_metis, "_candidates", lambda: iter(()))
    monkeypatch.setattr(native_parmetis, "PARMETIS_NAMES", ("libnothing.so",))
    monkeypatch.setattr(native_parmetis, "SCOTCH_SUFFIXES", (".nothing",))
    report, _ = run(world, cora, tmp_path, 4)
    assert report.method == "ldg"
    assert "metis is not installed" in report.reason
    assert "ptscotch is not installed" in report.reason
    with pytest.raises(HpcgnnError, match=r"--method metis is not installed"):
        run(world, cora, tmp_path, 4, method="metis")


@pytest.mark.parametrize("method", ["parmetis", "ptscotch"])
def test_volume_is_refused_with_the_alternative(world, cora, tmp_path, method):
    with pytest.raises(HpcgnnError, match=rf"--method {method} cannot minimise the volume .metis and mtkahypar can"):
        run(world, cora, tmp_path, 4, method=method, objective="volume")


def test_32_bit_libraries_refuse_what_they_cannot_count(world, cora, tmp_path, monkeypatch):
    require_method("metis")
    require_method("parmetis")
    monkeypatch.setattr(methods.Problem, "largest_count", lambda problem: 1 << 31)
    if native_parmetis.load_parmetis().index == np.int32:
        with pytest.raises(HpcgnnError, match="32-bit integers, which cannot count to 2,147,483,648"):
            run(world, cora, tmp_path, 4, method="parmetis")
    widest = native_metis.load_metis(1 << 31)
    assert widest is not None
    if widest.index == np.int64:
        assert run(world, cora, tmp_path, 4, method="metis")[0].quality.cut_fraction < 0.12


def test_counts_include_both_directions_of_directed_edges(world, tmp_path):
    graph = random_graph(rich=False)
    with GraphFile(graph.write(tmp_path / "graph.h5")) as reader:
        slab = Slab.of(world, reader)
        balance = Balance.of(world, reader, slab, ("edges",))
        problem = methods.Problem(world, reader, slab, balance, PartitionOptions(2), lambda count: None)
        assert problem.largest_count() == 2 * graph.sources.size
        assert balance.totals.tolist() == [graph.sources.size + graph.num_nodes]


def test_library_for_another_mpi_is_not_called(monkeypatch):
    """Both libraries report it, including the second one, whose MPI the first one has already loaded."""
    require_method("parmetis")
    require_method("ptscotch")
    monkeypatch.setattr(native_parmetis, "_mpi_libraries", lambda: {"/a/libmpi.so.12", "/b/libmpi.so.40"})
    for load in (native_parmetis.load_parmetis, lambda: native_parmetis.load_ptscotch(wide=False)):
        with pytest.raises(native_parmetis.Unusable, match="another MPI library"):
            load()


def test_failed_write_leaves_the_old_file(world, cora, tmp_path, monkeypatch):
    _, path = run(world, cora, tmp_path, 2, method="block")
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SlabWriter, "write", full)
    with pytest.raises(HpcgnnError, match="No space left"):
        run(world, cora, tmp_path, 3, method="block")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["parts.h5"]


def test_outputs_are_not_overwritten_by_accident(world, cora, tmp_path):
    _, path = run(world, cora, tmp_path, 2, method="block")
    with pytest.raises(HpcgnnError, match="--force"):
        partition(world, cora, path, PartitionOptions(2))
    with pytest.raises(HpcgnnError, match="is an input of this command, and is not replaced"):
        partition(world, cora, cora, PartitionOptions(2, force=True))
    with pytest.raises(
        HpcgnnError, match="is a parts file, but a graph file is needed: give the output of `hpcgnn convert`"
    ):
        partition(world, path, tmp_path / "other.h5", PartitionOptions(2))
    with pytest.raises(HpcgnnError, match="does not exist"):
        partition(world, cora, tmp_path / "nowhere" / "parts.h5", PartitionOptions(2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_parts": 0},
        {"method": "magic"},
        {"objective": "time"},
        {"balance": ("degree",)},
        {"balance": ()},
        {"seed": -1},
    ],
)
def test_wrong_options_are_one_sentence(wrong):
    with pytest.raises(HpcgnnError) as error:
        PartitionOptions(**({"num_parts": 2} | wrong))
    assert "\n" not in str(error.value)


def test_what_libraries_print_goes_to_stderr(capfd):
    libc = ctypes.CDLL(None)
    with methods.stdout_to_stderr():
        libc.puts(b"noise")
    print("result", flush=True)
    captured = capfd.readouterr()
    assert captured.out == "result\n"
    assert "noise" in captured.err


def test_command(cora, tmp_path):
    runner = click.testing.CliRunner()
    arguments = [str(cora), str(tmp_path / "parts.h5"), "--parts", "4", "--method", "ldg"]
    shown = runner.invoke(command, arguments, catch_exceptions=False)
    assert shown.exit_code == 0
    for word in ("method", "cut edges", "halo rows", "replication", "training nodes"):
        assert word in shown.stdout
    printed = runner.invoke(
        command, [*arguments, "--force", "--json", "--balance", "nodes, edges"], catch_exceptions=False
    )
    values = json.loads(printed.stdout)
    assert (values["method"], values["num_parts"], values["balance"]) == ("ldg", 4, ["nodes", "edges"])
    assert runner.invoke(command, [*arguments, "--force", "--quiet"]).stdout == ""
    assert isinstance(runner.invoke(command, arguments).exception, HpcgnnError)
    assert "Examples" in runner.invoke(command, ["--help"]).stdout


def test_a_failing_plan_leaves_no_file(world, cora, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan_store, "add_plan", full)
    with pytest.raises(HpcgnnError, match="No space left"):
        run(world, cora, tmp_path, 4, method="block")
    assert not list(tmp_path.glob("*parts*"))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_parts": len},
        {"num_parts": 2.0},
        {"balance": 3},
        {"balance": (3,)},
        {"force": None},
        {"jobs": "2"},
        {"method": None},
    ],
)
def test_options_of_another_type_are_refused(wrong):
    with pytest.raises(HpcgnnError, match=f"{next(iter(wrong))}"):
        PartitionOptions(**{"num_parts": 2} | wrong)


def test_arguments_of_another_type_are_refused(tmp_path):
    with pytest.raises(HpcgnnError, match="options must be PartitionOptions"):
        partition(one_rank(), "graph.h5", "parts.h5", np.int64(1))
    with pytest.raises(HpcgnnError, match="graph_path must be a path"):
        partition(one_rank(), 3, "parts.h5", PartitionOptions(2))
