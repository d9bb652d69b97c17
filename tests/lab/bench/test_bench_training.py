"""The benches ``pyg``, which trains the model of `hpcgnn train`, ``breakdown``, ``overhead`` and ``exchange``."""

from __future__ import annotations

import copy
import json
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dgl_layers
import numpy as np
import pytest
import small_graphs
import torch
from command_line import refusal, said, told
from requires import require_module
from sklearn.metrics import accuracy_score, f1_score
from standin import standin

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.lab.bench import epochs, peer_program, peers, plan_work
from hpcgnn.lab.bench.exchange import CALLS, summary
from hpcgnn.lab.bench.names import NORMS
from hpcgnn.lab.bench.peer_program import Model, Problem, Trainer
from hpcgnn.world.thread_world import one_rank


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files of scikit-learn's digits: the graph, and its single part."""
    folder = tmp_path_factory.mktemp("digits")
    graph, parts = folder / "graph.h5", folder / "parts.h5"
    said("convert", "digits", graph, "--quiet")
    said("partition", graph, parts, "--parts", 1, "--method", "block", "--quiet")
    return graph, parts


@pytest.fixture
def whole(files):
    """The problem that PyG gets of it."""
    require_module("torch_geometric")
    return peers.problem_of(hpcgnn.load(files[1], one_rank()))


@pytest.mark.parametrize(
    ("model", "norm"), [("gcn", "batch"), ("gcn", "mean"), ("gat", "batch"), *(("sage", norm) for norm in NORMS)]
)
def test_pygs_model_is_ours(model, norm, files):
    """It has as many parameters, and learns as fast."""
    require_module("torch_geometric")
    settings = peers.PeerSettings(model=model, hidden=16, heads=2, epochs=12, dropout=0.0, norm=norm, lr=0.01)
    graph = hpcgnn.load(files[1], one_rank())
    problem = peers.problem_of(graph)
    heads = {"heads": 2} if model == "gat" else {}
    mine = hpcgnn.build_model(hpcgnn.ModelConfig(model, layers=3, hidden=16, dropout=0.0, norm=norm, **heads), graph)
    theirs = Model(settings, problem)
    counts = [sum(each.numel() for each in one.parameters() if each.requires_grad) for one in (mine, theirs)]
    # ours does not train a bias that the norm subtracts again
    assert counts[0] == counts[1] - (32 if norm in ("mean", "batch") else 0)
    assert problem.nodes["train"].numel() == int(graph.masks["train_mask"].sum())
    if model == "sage" and norm != "batch":
        return
    trainer = hpcgnn.Trainer(mine, graph, hpcgnn.TrainConfig(epochs=99, eval_every=99, lr=0.01), stop=StopRequest())
    records, beside = [trainer.run_epoch() for _ in range(12)], Trainer(theirs, problem, settings)
    loss = [beside.timed_epoch()[1] for _ in range(12)][-1]
    assert loss == pytest.approx(records[-1]["loss"], rel=0.4)
    assert loss < 0.8 * records[0]["loss"]


def test_the_command_prints_what_a_record_of_a_study_needs(files):
    require_module("torch_geometric")
    about = "--model gcn --hidden 8 --epochs 5 --eval-every 2 --threads 1 --lr 0.05 --dropout 0.0"
    found = told("bench", "pyg", files[0], *about.split())
    epochs = found["epochs"]
    assert found["epoch_seconds_median"] == np.median(epochs["seconds"])
    assert [value is None for value in epochs["val_metric"]] == [True, False, True, False, False]
    best = max(range(5), key=lambda epoch: epochs["val_metric"][epoch] or 0)
    chosen = ("best_epoch", "best_val_metric", "test_metric_at_best_val")
    assert [found[name] for name in chosen] == [best, epochs["val_metric"][best], epochs["test_metric"][best]]
    assert found["test_metric_at_best_val"] > 0.3, "it learns"
    assert found["peak_memory_bytes_per_rank"] > 2**20
    assert {"torch", "torch-geometric", "hpcgnn", "python"} <= found["versions"].keys()


def test_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores, y = rng.normal(size=(50, 4)), rng.integers(0, 4, 50)
    marks, some = rng.integers(0, 2, (50, 4)), np.arange(0, 50, 3)
    for labels, wanted in (
        (torch.from_numpy(y), accuracy_score(y[some], scores.argmax(1)[some])),
        (torch.from_numpy(marks).float(), f1_score(marks[some], scores[some] > 0, average="micro")),
    ):
        problem = Problem(torch.zeros(50, 1), (), labels, {"val": torch.from_numpy(some)}, 4)
        hits, of = problem.counts(torch.from_numpy(scores), "val")
        assert hits / of == pytest.approx(wanted)


def test_backward_on_a_device_runs_in_the_calling_thread(whole):
    """A thread of torch's that still releases the last pass when Python exits aborts the process."""
    settings, place, threads = peers.PeerSettings(hidden=16, epochs=2), standin().torch_device, set()
    there = replace(
        whole,
        x=whole.x.to(place),
        y=whole.y.to(place),
        edges=(whole.edges[0].to(place),),
        nodes={"train": whole.nodes["train"].to(place)},
    )
    model = Model(settings, there).to(place)
    next(model.parameters()).register_hook(lambda gradient: threads.add(threading.get_ident()))
    Trainer(model, there, settings).timed_epoch()
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize(
    ("library", "module", "content", "sentences"),
    [
        ("dgl", "dgl", "raise ImportError('there is none')", ("--python", "there is none")),
        ("sar --norm layer", "sar", "raise ImportError('there is none')", ("--source", "there is none")),
        ("pyg --epochs 1", "torch_geometric", "", ("No module named 'torch_geometric.nn'",)),
        ("dgl --python nowhere", "dgl", "", ("cannot run",)),
    ],
)
def test_a_library_that_is_missing_or_fails_is_one_sentence(
    library, module, content, sentences, files, tmp_path, monkeypatch
):
    (tmp_path / f"{module}.py").write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command, *options = library.split()
    said_of = refusal("bench", command, files[0], *options)
    assert [sentence for sentence in sentences if sentence not in said_of] == []


@pytest.mark.parametrize(
    ("words", "told_of"),
    [
        (("sar",), "means over all ranks"),
        (("sar", "--ranks", "4", "--hosts", "3"), "should be 0, or --ranks 4"),
        (("sar", "--ranks", "4", "--rate", "1gbit"), "needs --hosts 4"),
        (("sar", "--norm", "layer", "--source", "nowhere"), "nowhere"),
        (("dgl", "--fanouts", "10,10"), "should have 3 numbers"),
        (("dgl", "--fanouts", "10,-1,10"), "such as 10,10,10"),
        (("dgl", "--fanouts", "10,0,10"), "such as 10,10,10"),
        (("dgl", "--fanouts", "9,9,9", "--model", "rgcn"), "not sampled"),
        (("pyg", "--model", "gat", "--heads", "3"), "does not divide"),
        (("pyg", "--model", "rgcn"), "no types of edges"),
    ],
)
def test_what_peers_cannot_do_is_refused(words, told_of, files):
    command, *options = words
    assert told_of in refusal("bench", command, files[0], *options)


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "rgcn"])
def test_dgls_model_is_pygs(model, tmp_path, monkeypatch):
    """With a stand-in for DGL's graphs and layers, made of PyG's, because DGL has no wheel for this torch: the edges, also those
    from each node to itself, their types, and the columns of heads are those that PyG's layers get, so the losses are equal."""
    require_module("torch_geometric")
    for name, module in dgl_layers.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    graph, losses = tmp_path / "graph.h5", []
    said("convert", "sbm:nodes=120,blocks=3,degree=6,features=8,types=3", graph, "--quiet")
    for library in ("dgl", "pyg"):
        settings = peers.PeerSettings(library, model, hidden=8, heads=2, epochs=2)
        peers.write_arrays(graph, settings, tmp_path / "graph.npz")
        losses.append(
            peer_program.measured(peer_program.read(tmp_path / "graph.npz", settings), settings)["final_loss"]
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


class TwoRanks:
    """A stand-in for SAR with two ranks in threads."""

    def __init__(self) -> None:
        self.barrier, self.given, self.comm = threading.Barrier(2, timeout=60), [], self

    def all_reduce(self, tensor: torch.Tensor, how: object, *, move_to_comm_device: bool) -> None:
        """Replace the values by their sums or largest ones."""
        self.given.append(tensor.clone())
        self.barrier.wait()
        both = torch.stack(self.given[-2:])
        self.barrier.wait()
        tensor.copy_(both.amax(0) if how == torch.distributed.ReduceOp.MAX else both.sum(0))

    def gather_grads(self, model: torch.nn.Module) -> None:
        """Sum gradients."""
        for each in model.parameters():
            self.all_reduce(each.grad, None, move_to_comm_device=True)

    def sync_params(self, model: torch.nn.Module) -> None:
        """They have equal parameters already."""


def test_two_ranks_of_sar_with_half_of_the_nodes_each_have_the_loss_and_gradients_of_one(whole, monkeypatch):
    monkeypatch.setitem(sys.modules, "sar", TwoRanks())
    settings, learned = peers.PeerSettings(hidden=8, dropout=0.0), whole.nodes["train"]
    torch.manual_seed(0)
    models = [Model(settings, whole)]
    models += [copy.deepcopy(models[0]) for _ in range(2)]
    _, loss = Trainer(models[0], whole, settings).timed_epoch()
    halves = (learned[: len(learned) // 3], learned[len(learned) // 3 :])  # of different sizes
    found: list[float] = []

    def train(rank: int) -> None:
        own = replace(whole, nodes={"train": halves[rank], "val": learned[: 10 + rank], "test": learned[:0]})
        trainer = peer_program.OnRanks(models[1 + rank], own, settings)
        found.append(trainer.timed_epoch()[1])
        assert trainer.largest(rank) == 1
        assert trainer.metrics()["test_metric"] is None

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(train, rank) for rank in range(2)]:
            done.result()
    assert found == pytest.approx([loss] * 2, rel=1e-5)
    for mine, *others in zip(*(model.parameters() for model in models), strict=True):
        for other in others:
            torch.testing.assert_close(other.grad, mine.grad, rtol=1e-4, atol=1e-6)


def test_batches_with_sampled_neighbours_train(whole, monkeypatch):
    """With a stand-in for DGL's loader, whose blocks have all edges: the loss of batches, and the order of fanouts."""
    asked = {}

    class Loader(list):
        def __init__(self, graph, nodes, sampler, *, batch_size, shuffle, drop_last, num_workers):
            asked.update(fanouts=sampler, batch_size=batch_size, shuffle=shuffle)
            inputs = torch.arange(len(whole.y))  # blocks keep all rows: the model chooses the scores of a batch
            super().__init__((inputs, part, [graph] * 3) for part in nodes.split(batch_size))

    class Chosen(Model):
        def forward(self, x, edges, blocks=None):
            scores = super().forward(x, whole.edges)
            return scores if blocks is None else scores[batches.pop(0)]

    loading = types.SimpleNamespace(DataLoader=Loader, NeighborSampler=lambda fanouts: fanouts)
    monkeypatch.setitem(sys.modules, "dgl", types.SimpleNamespace(seed=lambda seed: None))
    monkeypatch.setitem(sys.modules, "dgl.dataloading", loading)
    settings = peers.PeerSettings(hidden=8, fanouts="15,10,5", batch_size=500, lr=1e-9, dropout=0.0)
    torch.manual_seed(0)
    trainer = peer_program.Sampled(Chosen(settings, whole), whole, settings)
    batches = [part for _, part, _ in trainer.loader]
    assert len({len(part) for part in batches}) == 2, "the last batch is smaller"
    _, loss = trainer.timed_epoch()
    assert asked == {"fanouts": [5, 10, 15], "batch_size": 500, "shuffle": True}
    torch.manual_seed(0)
    assert loss == pytest.approx(Trainer(Model(settings, whole), whole, settings).timed_epoch()[1], rel=1e-4)


def test_bytes_are_those_of_the_limited_interface(tmp_path, monkeypatch):
    counters = tmp_path / "dev"
    rows = ("lo: 1 2 3 4 5 6 7 8 100 9", "control: 1 2 3 4 5 6 7 8 200 9", "eth0: 1 2 3 4 5 6 7 8 400 9")
    counters.write_text("\n".join(("Inter-|", " face |bytes", *rows)) + "\n")
    of_hosts = peers._environment("", None, peers.PeerSettings("sar", hosts=4))
    monkeypatch.setenv("SAR_SOCKET_NAME", of_hosts["SAR_SOCKET_NAME"])
    assert peer_program._bytes_sent(counters) == 400
    monkeypatch.delenv("SAR_SOCKET_NAME")
    assert peer_program._bytes_sent(counters) == 0


def test_another_python_gets_no_path_of_this_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/of/this")
    paths = [peers._environment(python, tmp_path, peers.PeerSettings("sar"))["PYTHONPATH"] for python in ("", "/other")]
    assert paths == [f"{tmp_path}:/of/this", str(tmp_path)]


def test_the_best_evaluation_is_the_last_of_equal_ones():
    lines = [{"val_metric": value, "epoch": epoch} for epoch, value in enumerate((0.5, 0.7, None, 0.7, 0.6))]
    assert peer_program.best_of(lines)["epoch"] == 3
    assert peer_program.best_of([line | {"val_metric": None} for line in lines])["epoch"] == 4


def test_sar_needs_a_graph_without_parallel_edges(tmp_path):
    graph = tmp_path / "graph.h5"
    said("convert", "rmat:scale=5,degree=8", graph, "--quiet")
    settings = peers.PeerSettings("sar", norm="layer")
    with pytest.raises(hpcgnn.HpcgnnError, match="--drop-duplicates"):
        peers.write_arrays(graph, settings, tmp_path / "graph.npz")
    said("convert", "rmat:scale=5,degree=8", graph, "--quiet", "--drop-duplicates", "--force")
    assert peers.write_arrays(graph, settings, tmp_path / "graph.npz") == {"classes": 16, "types": 0}


def test_the_cost_is_of_neighbouring_epochs_and_leaves_out_what_else_the_machine_did():
    plain = np.linspace(1.0, 2.0, 100)  # the machine becomes slower
    seconds = np.stack((plain + 0.015, plain), axis=1)
    seconds[7, 0] += 50.0
    found = epochs.cost_of(seconds)
    assert found["cost"] == pytest.approx(0.01)
    assert found["cost_interval"] < 1e-6


def test_hidden_is_what_overlap_saves_of_what_it_could():
    seconds = {"aggregate": 0.2, "exchange": 1.0, "both": 1.0, "in_turn": 1.25}
    found = summary({name: [value, value, 9.0] for name, value in seconds.items()})
    assert found["hidden_of_shorter"] == pytest.approx(1)
    nothing = summary({name: [value] for name, value in (seconds | {"both": 1.2}).items()})
    assert nothing["hidden_of_shorter"] == pytest.approx(0)


@pytest.fixture
def parts(tmp_path):
    graph = small_graphs.random_multigraph(nodes=300, edges=3000)
    return small_graphs.in_parts(tmp_path / "parts.h5", graph, 2)


@pytest.mark.mpi
def test_the_breakdown_is_measured_on_ranks(mpi_ranks, parts):
    command = ["bench", "breakdown", parts, "--epochs", "20", "--hidden", "8", "--json"]
    found = json.loads(mpi_ranks(2).command(*command).stdout)
    first, second = found["lines"]
    assert (found["ranks"], found["epochs"]) == (2, 20)
    assert first["figures"] == {"seconds": found["with_seconds"], "overhead_share": found["cost"]}
    assert second["figures"] == {"seconds": found["without_seconds"]}


@pytest.mark.mpi
def test_epochs_on_one_rank_and_on_all_are_measured_beside_pygs(mpi_ranks, parts):
    require_module("torch_geometric")
    command = ["bench", "overhead", parts, "--hidden", "8", "--layers", "2", "--rounds", "2", "--json"]
    found = json.loads(mpi_ranks(2).command(*command).stdout)
    names = ["PyG", *(f"hpcgnn, {ranks}, {bits} bits" for ranks in ("1 rank", "2 ranks") for bits in (32, 2))]
    assert [line["axes"]["contender"] for line in found["lines"]] == [*found["contenders"]] == names
    for line, timing in zip(found["lines"], found["contenders"].values(), strict=True):
        assert len(timing["rounds"]) == 2
        assert line["figures"]["seconds"] == np.median(timing["rounds"]) > 0
        assert timing["to_pyg"] == timing["seconds"] / found["contenders"]["PyG"]["seconds"]
        assert line["figures"]["python_calls"] > 100
    table = mpi_ranks(2).command(*command[:-1]).stdout
    assert "300 nodes, 2 layers of width 8" in table


@pytest.mark.parametrize(("features", "told_of"), [(0, "no dense features"), (3, "no classes or no training nodes")])
def test_pyg_needs_features_and_training_nodes(features, told_of, tmp_path):
    edges, labels = np.zeros((2, 1), np.int64), np.zeros(60, np.int64)
    graph = small_graphs.Arrays(edges, np.ones((60, features), np.float32), labels)
    whole = hpcgnn.load(small_graphs.in_parts(tmp_path / "parts.h5", graph, 1), one_rank())
    with pytest.raises(hpcgnn.HpcgnnError, match=told_of):
        peers.problem_of(whole)


@pytest.mark.mpi
def test_exchanges_are_measured_in_both_directions_on_more_than_one_rank(mpi_ranks, parts):
    command = ["bench", "exchange", parts, "--bits", "2", "--rounds", "2", "--json"]
    found = json.loads(mpi_ranks(2).command(*command).stdout)
    for direction in ("forward", "backward"):
        line = found["directions"][direction]
        assert all(line[f"{name}_seconds"] > 0 and len(line["rounds"][name]) == 2 for name in CALLS)
        assert 0 < line["largest_bytes_of_a_rank"] < line["bytes"]
    lines = {(line["axes"]["direction"], line["axes"]["step"]): line["figures"] for line in found["lines"]}
    assert lines["backward", "both"]["hidden_share"] == found["directions"]["backward"]["hidden_of_shorter"]
    assert lines["forward", "exchange"]["bytes"] == found["directions"]["forward"]["bytes"]
    table = mpi_ranks(2).command(*command[:-1]).stdout
    assert "2 ranks, CPU, " in table
    refused = mpi_ranks(1).command(*command, check=False)
    assert refused.returncode == 1
    assert "a single rank sends no messages" in refused.stderr


def test_all_ranks_of_a_plan_are_measured_in_one_process(tmp_path):
    graph, path, parts = small_graphs.random_multigraph(), tmp_path / "parts.h5", 5
    small_graphs.write_parts(path, graph, small_graphs.random_parts(graph.num_nodes, parts, empty=2), parts)
    assert "has no plan for the strategy hybrid" in refusal("bench", "plan", path)
    work = told("plan", path)["strategies"]["hybrid"]["work_imbalance"]
    found = told("bench", "plan", path, "--rounds", 2, "--width", 4)
    assert (found["ranks"], found["ranks_measured"], found["work_imbalance"]) == (parts, parts, work)
    assert told("bench", "plan", path, "--rounds", 1, "--ranks", 2)["ranks_measured"] == 2
    lines = {line["axes"]["direction"]: line["figures"] for line in found["lines"]}
    assert all(1 <= figures["seconds_imbalance"] <= parts for figures in lines.values())
    both = lines["forward"]["seconds"] + lines["backward"]["seconds"]
    assert lines["both"]["seconds"] == pytest.approx(both)
    assert "max/mean entries" in said("bench", "plan", path, "--rounds", 1)


def test_measured_ranks_are_the_busiest_and_some_others():
    work = np.array([3, 9, 1, 7, 5, 8])
    heaviest, others = plan_work.chosen(work, 4)
    assert heaviest.tolist() == [1, 5]
    assert set(others.tolist()) < {0, 2, 3, 4}
    assert len(others) == 2
    assert plan_work.chosen(work, 6)[1].tolist() == [1, 5, 3, 4, 0, 2]
    summary = plan_work.summary(np.array([4.0, 2.0, 1.0]), 1, 5)  # the two others stand for four ranks
    assert summary == {"seconds": 2.0, "seconds_imbalance": 2.0}
