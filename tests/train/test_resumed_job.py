"""Runs that are resumed through the command line: they repeat undisturbed runs bit for bit, and keep their settings."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import small_graphs
from trainings import lines, losses, summary, weights

FLAGS = ["--layers", "3", "--hidden", "16", "--checkpoint-every", "6", "--lr", "0.01"]
GRAPH = small_graphs.even_graph(300, 1500)  # without hubs, so that there are many rows to decide about
EPOCHS = 12
INT8 = ["--compute", "int8-always"]
ALL_KINDS = [
    "--bits", "adaqp", "--bits-period", "5", "--staleness", "sylvie", "--loss-window", "2", "--smoothing", "features",
]  # fmt: skip


def config(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "config.toml").read_text())


def told(run: Path) -> list[tuple]:
    """The values of each epoch that must repeat."""
    names = "loss bits stale stale_epochs policy bytes_sent val_metric test_metric compute int8_quantized int8_reused"
    return [tuple(record.get(name) for name in names.split()) for record in lines(run)]


@pytest.mark.mpi
def test_the_command_repeats_a_run_also_where_it_is_resumed(train, tmp_path):
    """As all runs do (test_matrix_of_runs.py): here with processes, two threads each, and with replayed measurements."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train("whole", *ALL_KINDS, "--epochs", EPOCHS, threads=2)
    replay = ["--replay", whole / "decisions.jsonl"]
    train("broken", *ALL_KINDS, *replay, "--epochs", EPOCHS // 2, threads=2)
    train("broken", "--resume", "--epochs", EPOCHS, threads=2)
    assert told(broken) == told(whole)
    assert weights(broken) == weights(whole)
    assert lines(broken, "decisions.jsonl") == lines(whole, "decisions.jsonl")
    assert {**config(broken), "replay": ""} == {**config(whole), "replay": ""}
    assert losses(whole)[-1] < losses(whole)[0]


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
    train("run", "--bits", 2, "--message-coding", "delta", "--dropout", 0, "--epochs", 5)
    train("run", "--resume", "--strategy", "pre", "--epochs", 10)
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]


def test_other_parts_start_as_in_the_first_epoch(train, tmp_path):
    other = small_graphs.in_parts(tmp_path / "other.h5", GRAPH, 3)
    train("run", *ALL_KINDS, "--epochs", 6)
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
