"""``hpcgnn bench epoch``: the work of an epoch, and its floors."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import small_graphs
import torch
from command_line import said, told
from requires import require

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.exchange import Messages
from hpcgnn.kernels import library
from hpcgnn.lab.bench import floors
from hpcgnn.lab.bench.epochs import bare_trainer
from hpcgnn.lab.bench.names import LIMITS, Limits
from hpcgnn.lab.bench.works import NO_WORK, PHASES, PRODUCTS, Work, of_kernel, of_torch
from hpcgnn.nn.config import ModelConfig
from hpcgnn.nn.whole_graph import SUMS_OVER_NODES
from hpcgnn.train.account import trainer_of
from hpcgnn.train.optimiser import Adam
from hpcgnn.train.run_config import RunConfig
from hpcgnn.world.thread_world import one_rank

NODES, FEATURES, HIDDEN, CLASSES = 1797, 64, 16, 10  # of scikit-learn's digits


@pytest.fixture(scope="module", autouse=True)
def native_kernels():
    require(library.load() is not None, "the native kernels")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    said("convert", "digits", folder / "graph.h5", "--quiet")
    said("partition", folder / "graph.h5", folder / "parts.h5", "--parts", 1, "--method", "block", "--quiet")
    return folder / "parts.h5"


def a_run(**model):
    return RunConfig(model=ModelConfig(layers=2, hidden=HIDDEN, **model))


def traced(parts, config):
    """The calls of one epoch, by name and shape, and the trainer that ran it."""
    graph, trace = hpcgnn.load(parts, one_rank()), floors.Trace()
    with library.called_through(trace.around):
        trainer = bare_trainer(graph, config)
        floors._watch(trainer, trace)
        floors._traced(trainer, trace)
    return list(trace.calls.values()), trainer


class _Declared(dict):
    """Arguments of a kernel, as its declaration names them. Others are missing."""

    def __init__(self, parameters):
        csr = SimpleNamespace(rows=3, tensors=[torch.zeros(4), torch.zeros(5, dtype=torch.int32)])
        job = SimpleNamespace(rows=3, width=4)
        super().__init__({name: {"csr": csr, "job": job}.get(name, 2) for name in parameters})


def test_each_kernel_has_a_work_that_reads_its_declared_arguments():
    found = {}
    for name, (_, parameters) in library.load().interface.functions.items():
        found[name] = of_kernel(name, _Declared(parameters))
        assert (found[name] is None) == name.startswith(NO_WORK), name
    works = [work for work in found.values() if work is not None]
    assert {work.phase for work in works} < set(PHASES)
    assert all(work.num_bytes > 0 or work.indices is not None for work in works)


def test_all_products_and_edges_of_an_epoch_are_counted(parts):
    calls, trainer = traced(parts, a_run(model="sage"))
    multiply_adds = sum(each.count * each.work.multiply_adds for each in calls if each.work.phase == PRODUCTS)
    first, second = FEATURES * HIDDEN, HIDDEN * CLASSES  # the input needs no gradient
    assert multiply_adds == NODES * (2 * 2 * first + 2 * 3 * second)
    edges = trainer.graph.indices.size
    gathered = [each.count * each.work.indices.numel() for each in calls if each.work.indices is not None]
    # forward in both layers; backward in all but an aggregation of the input
    assert sum(gathered) == 4 * edges


@pytest.mark.parametrize("config", [a_run(model="gat"), RunConfig(compute="int8"), a_run(model="gin")], ids=str)
def test_a_traced_epoch_trains_alike(parts, config):
    graph = hpcgnn.load(parts, one_rank())
    _, trainer = traced(parts, config)
    plain = trainer_of(config, graph, Messages(graph.world), stop=StopRequest())
    plain.run_epoch()
    for mine, other in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_the_floor_of_a_call_is_the_longest_of_three_times():
    read = Work("a", (), 1 << 20)
    multiplied = Work("a", (), 1 << 16, multiply_adds=1e15)
    gathered = Work("a", (), 1 << 16, indices=torch.arange(100, dtype=torch.int32), row_bytes=64)
    ceilings = floors.Ceilings()
    ceilings.include([read, multiplied, gathered])
    ceilings.seconds = {key: [9.0, 0.5, 0.0] for key in ceilings.seconds}  # each measurement takes 0.5 s in the median
    assert ceilings.floor(read) == 0.25  # half of the nearest size, 2 MiB
    assert ceilings.floor(multiplied) == pytest.approx(1e15 / ceilings.rates()["float32"])
    assert ceilings.floor(gathered) == 0.5
    assert ceilings.floor(replace(gathered, multiply_adds=1e15)) == ceilings.floor(multiplied) > 0.5


def test_the_phases_explain_the_time_and_make_the_floor(parts):
    found = told("bench", "epoch", parts, "--hidden", HIDDEN, "--layers", 2, "--compute", "float32", "--rounds", 3)
    epoch = found["epoch"]
    assert epoch["floor_seconds"] == max(found["compute_floor_seconds"], found["wire_floor_seconds"])
    assert found["to_floor"] == epoch["seconds"] / epoch["floor_seconds"]
    floor = sum(found["phases"][name]["floor_seconds"] for name in PHASES)
    assert found["compute_floor_seconds"] == pytest.approx(floor)
    assert sum(line["seconds"] for line in found["phases"].values()) >= 0.9 * epoch["seconds"]
    assert found["lines"][-1]["figures"]["to_floor"] == found["to_floor"]
    assert library.load().wrap is None


def test_time_that_no_kernel_takes_is_the_interpreters(parts, monkeypatch):
    step = Adam.step
    # long beside what other programs of the machine take from the phases
    monkeypatch.setattr(Adam, "step", lambda self: (time.sleep(0.5), step(self)))
    found = told("bench", "epoch", parts, "--hidden", HIDDEN, "--layers", 2, "--rounds", 2)
    assert found["phases"]["interpreter"]["seconds"] > 0.45
    assert found["phases"]["optimiser"]["seconds"] < 0.3
    assert "in interpreter" in msgspec.convert(found, Limits).advice()


def test_the_report_of_a_run_shows_its_limits(parts, tmp_path):
    run, page = tmp_path / "run", tmp_path / "page.html"
    settings = ("--hidden", HIDDEN, "--layers", 2, "--epochs", 1, "--model", "gcn")
    command = [sys.executable, "-m", "hpcgnn", "train", parts, "--out", run, *settings, "--quiet"]
    subprocess.run([*map(str, command)], check=True)
    said("report", run, "--out", page)
    assert f"hpcgnn bench epoch {parts} --run {run}" in page.read_text()
    found = told("bench", "epoch", parts, "--run", run, "--layers", 3, "--rounds", 1)
    assert (found["settings"]["model"], found["settings"]["hidden"], found["settings"]["layers"]) == ("gcn", "16", "3")
    said("report", run, "--out", page)
    assert msgspec.json.decode((run / LIMITS).read_bytes(), type=Limits).advice() in page.read_text()
    (run / LIMITS).write_text("{}")
    said("report", run, "--out", page)
    assert f"{LIMITS} is left out" in page.read_text()


@pytest.mark.parametrize(
    "settings", [("--label-propagation", 0.5), ("--task", "link"), ("--activations", "auto")], ids=str
)
def test_settings_of_training_are_those_of_the_measurement(parts, settings):
    found = told("bench", "epoch", parts, "--hidden", 8, "--layers", 2, "--rounds", 2, *settings)
    assert found["epoch"]["floor_seconds"] > 0


@pytest.mark.mpi
def test_messages_have_a_floor(mpi_ranks, tmp_path):
    graph = small_graphs.random_multigraph(nodes=300, edges=3000)
    path = small_graphs.in_parts(tmp_path / "parts.h5", graph, 2)
    command = [
        "bench",
        "epoch",
        path,
        "--hidden",
        "8",
        "--bits",
        "2",
        "--staleness",
        "pipeline",
        "--rounds",
        "2",
        "--json",
    ]
    found = json.loads(mpi_ranks(2).command(*command).stdout)
    assert found["ranks"] == 2
    assert 0 < found["wire"]["floor_seconds"] < found["wire_floor_seconds"]
    assert found["phases"]["quantization"]["seconds"] > 0
    assert found["phases"]["waiting"]["floor_seconds"] == 0


def test_sums_over_nodes_are_timed_for_a_while(monkeypatch):
    world = one_rank()
    usual = world.allreduce
    monkeypatch.setattr(type(world), "allreduce", lambda self, values, *_, **__: (time.sleep(0.01), values)[1])
    with floors._sums_over_nodes(world) as seconds:
        world.allreduce(np.zeros(1), what="others")
        world.allreduce(np.zeros(1), what=SUMS_OVER_NODES)
    assert len(seconds) == 1
    assert seconds[0] > 0.009
    monkeypatch.undo()
    assert world.allreduce == usual


def test_views_and_new_memory_have_no_work():
    x = torch.zeros(8, 4)
    for operation, result in (
        ("aten.slice.Tensor", x[2:]),
        ("aten.t.default", x.T),
        ("aten.empty_like.default", torch.empty(8)),
    ):
        assert of_torch(operation, (x,), result, "") is None
    assert of_torch("aten.add_.Tensor", (x, x), x.add_(x), "").num_bytes == 3 * x.nbytes
    assert of_torch("aten.mul.Tensor", (x, 2.0), x * 2, "").num_bytes == 2 * x.nbytes
