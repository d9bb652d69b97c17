"""Runs that are resumed through the command line: they repeat undisturbed runs bit for bit, and keep their settings."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import small_graphs
from trainings import lines, losses, summary, weights

from hpcgnn.train import checkpoint, rank_state
from hpcgnn.world.thread_world import one_rank

FLAGS = ["--layers", "3", "--hidden", "16", "--checkpoint-every", "6", "--lr", "0.01"]
GRAPH = small_graphs.even_graph(300, 1500)  # without hubs, so that there are many rows to decide about
EPOCHS = 12
DELTA = ["--message-coding", "delta", "--dropout", "0"]
INT8 = ["--compute", "int8-always"]
POLICIES = {
    "uniform of a size": ["--bits", "uniform:10000", "--bits-period", "4"],
    "uniform, delta": ["--bits", "uniform", "--bits-period", "4", *DELTA],
    "sylvie": ["--bits", "sylvie", "--staleness", "sylvie", "--loss-window", "2", "--bits-period", "3"],
    "sylvie, gat": ["--bits", "sylvie", "--bits-period", "5", "--model", "gat", "--heads", "4"],
    "pipeline": ["--bits", "2", "--staleness", "pipeline"],
    "smoothed": ["--bits", "32", "--staleness", "pipeline", "--smoothing", "both", "--model", "gcn"],
    "auto": ["--bits", "auto", "--staleness", "auto", "--eval-every", "3"],
    "pipeqs": ["--bits", "pipeqs", "--staleness", "pipeqs", "--drift-threshold", "0.02"],
    "sancus": ["--staleness", "sancus", "--drift-threshold", "0.02"],
    "all kinds": [
        "--bits", "adaqp", "--bits-period", "5", "--staleness", "sylvie", "--loss-window", "2", "--smoothing", "features",
    ],
}  # fmt: skip
OTHERS = {
    "2 bits": ["--bits", "2"],
    "1 bit, delta": ["--bits", "1", *DELTA],
    "labels": ["--label-propagation", "0.62", "--label-redraw", "epoch"],
    "labels, drawn once": ["--label-propagation", "0.62", "--label-redraw", "once"],
    "int8, gat": [*INT8, "--model", "gat", "--heads", "4", "--bits", "8"],
    # With the mean norm, the first loss is already that of a guess, and the labels of this graph are random.
    "int8, stale": [
        *INT8, "--model", "gcn", "--norm", "batch", "--bits", "4", "--staleness", "pipeline", "--eval-every", "6",
    ],
    "int8, nearest": [*INT8, "--int8-rounding", "nearest", "--int8-before-softmax"],
    "int8, given up": [*INT8, "--int8-most-error", "0.000001"],  # float32 from its first epoch on
}  # fmt: skip
THREADS = {"2 bits": 2, "int8, gat": 2}


def config(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "config.toml").read_text())


def told(run: Path) -> list[tuple]:
    """The values of each epoch that must repeat."""
    names = "loss bits stale stale_epochs policy bytes_sent val_metric test_metric compute int8_quantized int8_reused"
    return [tuple(record.get(name) for name in names.split()) for record in lines(run)]


@pytest.mark.parametrize("name", [*POLICIES, *(pytest.param(name, marks=pytest.mark.mpi) for name in OTHERS)])
def test_a_run_repeats_also_where_it_is_resumed(train, tmp_path, name):
    """Losses, decisions, bytes and weights are equal bit for bit, and so are the logs. Policies replay what they measured."""
    flags, threads = (POLICIES | OTHERS)[name], THREADS.get(name, 1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train("whole", *flags, "--epochs", EPOCHS, threads=threads)
    replay = ["--replay", whole / "decisions.jsonl"] if name in POLICIES else []
    train("broken", *flags, *replay, "--epochs", EPOCHS // 2, threads=threads)
    train("broken", "--resume", "--epochs", EPOCHS, threads=threads)
    assert told(broken) == told(whole)
    assert weights(broken) == weights(whole)
    if name in POLICIES:
        assert lines(broken, "decisions.jsonl") == lines(whole, "decisions.jsonl")
    assert {**config(broken), "replay": ""} == {**config(whole), "replay": ""}
    assert losses(whole)[-1] < losses(whole)[0]
    if "--label-propagation" in flags:
        assert summary(whole)["label_propagation"] == 0.62
    if INT8[1] in flags:
        assert {record["compute"] for record in lines(whole)} == {"float32" if "given up" in name else INT8[1]}


@pytest.mark.mpi
def test_a_run_keeps_its_settings_and_its_config_toml_repeats_it(mpi_ranks, train, tmp_path):
    run, again = tmp_path / "run", tmp_path / "again"
    train("run", "--epochs", 5, "--lr", 0.003, "--dropout", 0.1, "--model", "gcn")
    before = (run / "config.toml").read_text()
    mpi_ranks(2).command("train", "--out", run, "--resume", "--epochs", 8)
    assert (run / "config.toml").read_text() == before.replace("epochs = 5", "epochs = 8")
    mpi_ranks(2).command("train", "--out", again, "--config", run / "config.toml")
    assert (again / "config.toml").read_text() == (run / "config.toml").read_text()
    assert weights(again) == weights(run)


@pytest.mark.mpi
def test_resuming_a_finished_run_changes_nothing(mpi_ranks, train, tmp_path):
    run = tmp_path / "run"
    train("run", "--epochs", 200, "--patience", 3, "--eval-every", 2)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "summary.json"}
    first = summary(run)
    assert first["stop_reason"] == "early stopping"
    assert first["best_epoch"] <= first["epochs"] - 1 < 199
    mpi_ranks(2).command("train", "--out", run, "--resume")
    fewer = mpi_ranks(2).command("train", "--out", run, "--resume", "--epochs", 2, check=False)
    assert "--epochs is the total number and must be at least" in fewer.stderr
    assert {path: path.read_bytes() for path in before} == before
    same = ("best_epoch", "epochs", "stop_reason", "epoch_seconds_median", "bytes_sent_per_epoch", "best_val_metric")
    assert {name: summary(run)[name] for name in same} == {name: first[name] for name in same}


@pytest.mark.mpi
def test_differences_start_from_zero_with_another_strategy(train, tmp_path):
    """Stored rows belong to one plan. For another plan they would be wrong, or outside of memory."""
    train("run", "--bits", 2, *DELTA, "--epochs", 5)
    train("run", "--resume", "--strategy", "pre", "--epochs", 10)
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]


def test_other_parts_start_as_in_the_first_epoch(train, tmp_path):
    other = small_graphs.in_parts(tmp_path / "other.h5", GRAPH, 3)
    train("run", *POLICIES["all kinds"], "--epochs", 6)
    result = train("run", "--resume", "--epochs", 10, graph=other, ranks=3)
    assert "start as in epoch 0" in " ".join(result.stderr.split())
    found = lines(tmp_path / "run")
    assert [record["epoch"] for record in found] == list(range(10))
    assert not found[6]["stale"]
    of_first = found[6]["bits"].pop("layer 1's boundary rows", {"32": 1})  # features, which never change
    assert set(of_first) == {"32"}
    assert all(set(counts) == {"8"} for counts in found[6]["bits"].values())
    assert "policy" in found[9]


@pytest.mark.mpi
def test_another_arithmetic_may_take_over(train, tmp_path):
    """A resumed run that asks for another arithmetic gets it, with that arithmetic's own checks; otherwise its first epoch alone
    says whether 8 bits are enough.
    """
    asked = [(3, INT8), (4, []), (5, ["--compute", "float32"]), (7, INT8)]
    said = [
        train("run", *flags, *(["--resume"] if epochs > 3 else []), "--epochs", epochs, "--log-level", "info").stderr
        for epochs, flags in asked
    ]
    whether = "int8: the first layer's output has a relative error of"
    assert [" ".join(each.split()).count(whether) for each in said] == [1, 0, 0, 1]
    found = lines(tmp_path / "run")
    assert [record["compute"] for record in found] == [INT8[1]] * 4 + ["float32"] + [INT8[1]] * 2
    assert all((record.get("int8_quantized", 0) > 0) == (record["compute"] != "float32") for record in found)


def test_what_the_last_checkpoint_needs_is_kept(tmp_path):
    """Even if a killed run left the files of an incomplete checkpoint."""
    checkpoint.folder(tmp_path).mkdir()
    for epoch in (5, 10, 20, 15):
        rank_state.RankState(one_rank(), None, None)._write(tmp_path, epoch, {"kept": {}})
    found = sorted(path.name for path in (checkpoint.folder(tmp_path) / checkpoint.MESSAGES).iterdir())
    assert found == ["10-0.pt", "15-0.pt"]
