"""``hpcgnn bench pyg`` trains the same model as `hpcgnn train`; ``hpcgnn bench breakdown`` measures the cost of clocks."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import small_graphs
from bench.shipped_targets import answers
from click.testing import CliRunner
from requires import require_module

import hpcgnn
from hpcgnn.bench import breakdown, pyg
from hpcgnn.cli.bench import bench
from hpcgnn.comm.thread_world import one_rank
from hpcgnn.devices import CPU
from hpcgnn.errors import HpcgnnError
from hpcgnn.stop import StopRequest

HPCGNN = [sys.executable, "-m", "hpcgnn"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files of scikit-learn's digits: the graph, and its single part."""
    folder = tmp_path_factory.mktemp("digits")
    graph, parts = folder / "graph.h5", folder / "parts.h5"
    for command in (["convert", "digits", graph], ["partition", graph, parts, "--parts", 1, "--method", "block"]):
        subprocess.run([*HPCGNN, *map(str, command), "--quiet"], check=True)
    return graph, parts


@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_pygs_model_is_ours(model, files):
    """It has as many parameters, and learns as fast."""
    require_module("torch_geometric")
    path, parts = files
    settings = pyg.PygSettings(model, hidden=16, heads=2, epochs=12, dropout=0.0)
    problem = pyg.read(path, settings, CPU)
    theirs = pyg.Model(settings, problem.x.shape[1], problem.classes)
    graph = hpcgnn.load(parts, one_rank())
    heads = {"heads": 2} if model == "gat" else {}
    mine = hpcgnn.build_model(hpcgnn.ModelConfig(model, layers=3, hidden=16, dropout=0.0, **heads), graph)
    trainer = hpcgnn.Trainer(mine, graph, hpcgnn.TrainConfig(epochs=99, eval_every=99), stop=StopRequest())
    records = [trainer.run_epoch() for _ in range(12)]
    seconds, loss = pyg.train(theirs, problem, settings, CPU)
    assert len(seconds) == 12
    assert loss == pytest.approx(records[-1]["loss"], rel=0.4)
    assert loss < 0.7 * records[0]["loss"]
    counts = [sum(each.numel() for each in one.parameters()) for one in (mine, theirs)]
    assert counts[0] == counts[1]
    assert problem.learned.numel() == int(graph.masks["train_mask"].sum())


def test_the_command_prints_what_a_record_of_a_study_needs(files):
    require_module("torch_geometric")
    options = ["--model", "gcn", "--hidden", "8", "--epochs", "3", "--threads", "1"]
    result = CliRunner().invoke(bench, ["pyg", str(files[0]), *options, "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert found["epoch_seconds_median"] == np.median(found["epochs"]["seconds"])
    assert len(found["epochs"]["seconds"]) == 3
    assert found["peak_memory_bytes_per_rank"] > 2**20
    assert {"torch", "torch-geometric", "hpcgnn"} <= found["versions"].keys()


def test_without_pyg_it_is_one_sentence(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    result = CliRunner().invoke(bench, ["pyg", str(files[0])])
    assert isinstance(result.exception, HpcgnnError)
    assert "pip install torch-geometric" in str(result.exception)


def test_the_cost_is_of_neighbouring_epochs_and_leaves_out_what_else_the_machine_did():
    plain = np.linspace(1.0, 2.0, 100)  # the machine becomes slower
    seconds = np.stack((plain + 0.015, plain), axis=1)
    seconds[7, 0] += 50.0
    found = breakdown.summary(seconds)
    assert found["cost"] == pytest.approx(0.01)
    assert found["cost_interval"] < 1e-6


@pytest.mark.mpi
def test_the_breakdown_is_measured_on_ranks(mpi_ranks, tmp_path):
    graph = small_graphs.random_multigraph(nodes=300, edges=3000)
    small_graphs.write_parts(tmp_path / "parts.h5", graph, small_graphs.random_parts(300, 2), 2)
    command = ["bench", "breakdown", tmp_path / "parts.h5", "--epochs", "20", "--hidden", "8", "--json"]
    found = json.loads(mpi_ranks(2).command(*command).stdout)
    first, second = found["lines"]
    assert (found["ranks"], found["epochs"]) == (2, 20)
    assert first["figures"] == {"seconds": found["with_seconds"], "overhead_share": found["cost"]}
    assert second["figures"] == {"seconds": found["without_seconds"]}


@pytest.mark.parametrize(("share", "cost", "reached"), [(0.8, 0.01, "yes"), (0.79, 0.011, "no")])
def test_what_is_required_of_exchanges_and_of_the_breakdown(share, cost, reached):
    figures = {"both": {"hidden_share": share}, "exchange": {"seconds": 1.0}}
    told = [
        {"axes": {"direction": direction, "step": step}, "figures": each}
        for direction in ("forward", "backward") for step, each in figures.items()
    ]  # fmt: skip
    told.append({"axes": {"part": "with the breakdown"}, "figures": {"seconds": 1.0, "overhead_share": cost}})
    found = answers("exchange", {"lines": told})
    assert found == {
        "share of the hideable time that is hidden": [reached] * 2,
        "overhead of the time breakdown": [reached],
    }


@pytest.mark.parametrize(("auto", "reached"), [(1.05, "yes"), (1.06, "no")])
def test_what_is_required_of_auto(auto, reached):
    from hpcgnn.study import catalogue, specification

    runs = specification.read(catalogue.find("compute")).runs
    told = [{"epoch_seconds_median": auto if run.configuration["compute"] == "auto" else 1.0} for run in runs]
    found = answers("compute", *told)
    assert found == {"auto relative to float32": [reached] * 12, "auto relative to bfloat16": [reached] * 6}
