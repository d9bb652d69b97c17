"""Policies of bits and staleness through the command line: they resume, replay, fall back, and report their decisions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import small_graphs
import torch

HPCGNN = ["-m", "hpcgnn"]
FLAGS = ["--layers", "3", "--hidden", "16", "--checkpoint-every", "6"]
EPOCHS = 12
ADAQP = ["--bits", "adaqp", "--bits-period", "4", "--group-rows", "10"]
POLICIES = {
    "uniform, delta": ["--bits", "uniform", "--bits-period", "4", "--message-coding", "delta", "--dropout", "0"],
    "sylvie": ["--bits", "sylvie", "--staleness", "sylvie", "--loss-window", "2"],
    "pipeline": ["--bits", "2", "--staleness", "pipeline"],
    "smoothed": ["--bits", "32", "--staleness", "pipeline", "--smoothing", "both", "--model", "gcn"],
    "pipeqs": ["--bits", "pipeqs", "--staleness", "pipeqs", "--drift-threshold", "0.02"],
    "all kinds": [
        "--bits", "adaqp", "--bits-period", "5", "--staleness", "sylvie", "--loss-window", "2", "--smoothing", "features",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A graph without hubs, so that there are many rows to decide about, in two parts with a stored plan."""
    path = tmp_path_factory.mktemp("graph") / "parts.h5"
    write_even_graph(path, 2)
    subprocess.run([sys.executable, *HPCGNN, "plan", str(path), "--quiet"], check=True)
    return path


def write_even_graph(path: Path, parts: int) -> None:
    graph = small_graphs.even_graph(300, 1500)
    small_graphs.write_parts(path, graph, small_graphs.random_parts(300, parts), parts)


@pytest.fixture
def train(mpi_ranks, parts, tmp_path):
    """Run ``hpcgnn train`` on two ranks, and return the run folder."""

    def run(name: str, *flags: str, check: bool = True, graph: Path = parts, ranks: int = 2):
        return mpi_ranks(ranks).command("train", graph, "--out", tmp_path / name, *FLAGS, *flags, check=check)

    return run


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def quoted(folder: Path) -> list[tuple]:
    """The values of each epoch that must repeat."""
    names = ("loss", "bits", "stale", "stale_epochs", "policy", "bytes_sent", "test_metric")
    return [tuple(record.get(name) for name in names) for record in lines(folder)]


def weights(folder: Path) -> dict[str, bytes]:
    content = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    return {name: value.numpy().tobytes() for name, value in content["model"].items()}


@pytest.mark.parametrize("name", POLICIES)
def test_a_replayed_run_repeats_also_where_it_is_resumed(train, tmp_path, name):
    """Losses, decisions, bytes and weights are equal bit for bit, and so are the logs."""
    flags = POLICIES[name]
    train("whole", *flags, "--epochs", str(EPOCHS))
    replay = ["--replay", str(tmp_path / "whole" / "decisions.jsonl")]
    train("broken", *flags, *replay, "--epochs", "6")
    train("broken", "--resume", "--epochs", str(EPOCHS))
    assert quoted(tmp_path / "broken") == quoted(tmp_path / "whole")
    assert weights(tmp_path / "broken") == weights(tmp_path / "whole")
    assert lines(tmp_path / "broken", "decisions.jsonl") == lines(tmp_path / "whole", "decisions.jsonl")
    losses = [record["loss"] for record in lines(tmp_path / "whole")]
    assert losses[-1] < losses[0]


@pytest.fixture
def costs(tmp_path) -> Path:
    """The costs of links within a node. They are given, because on a busy machine no costs may fit the measurements."""
    path = tmp_path / "given-costs.json"
    path.write_text(json.dumps({"seconds_per_byte": {"node": 1e-9}, "seconds_per_message": {"node": 1e-5}}))
    return path


def test_bits_of_all_rows_are_told(train, parts, costs, tmp_path):
    train("run", *ADAQP, "--epochs", "3", "--link-costs", str(costs))
    plan = subprocess.run(
        [sys.executable, *HPCGNN, "plan", str(parts), "--json"], check=True, capture_output=True, text=True
    )
    rows = sum(post + pre for _, _, post, pre in json.loads(plan.stdout)["pairs"]["hybrid"])
    first, second, _ = lines(tmp_path / "run")
    assert all(counts == {"8": rows} for counts in first["bits"].values())
    assert second["bits"].keys() == second["policy"].keys() == first["bits"].keys()
    assert {"layer 1's boundary rows", "layer 3's gradients"} <= second["bits"].keys()
    assert "layer 1's gradients" not in second["bits"]  # the input needs no gradients
    for counts in second["bits"].values():
        assert sum(counts.values()) == rows
        assert counts.keys() <= {"2", "4", "8"}
    assert {bits for counts in second["bits"].values() for bits in counts} != {"8"}
    assert second["bytes_sent"] < first["bytes_sent"]
    for solved in second["policy"].values():
        assert 0 <= solved["bound"] <= solved["objective"]
        assert solved["gap"] < 0.01


def test_more_weight_on_variance_sends_more_bytes(train, costs, tmp_path):
    sent = {}
    for weight in ("0", "0.5", "1"):
        train(weight, *ADAQP, "--variance-weight", weight, "--epochs", "2", "--link-costs", str(costs))
        sent[weight] = lines(tmp_path / weight)[-1]["bytes_sent"]
    assert sent["0"] < sent["0.5"] < sent["1"]


def test_link_costs_are_kept_and_refitted_on_demand(train, tmp_path):
    """A run whose costs lack its links continues with 8 bits, and rank 0 warns once."""
    costs = tmp_path / "costs.json"
    flags = [*ADAQP, "--epochs", "3", "--link-costs", str(costs)]
    costs.write_text(json.dumps({"seconds_per_byte": {"network": 1e-9}, "seconds_per_message": {"network": 1e-5}}))
    result = train("fallen-back", *flags)
    assert " ".join(result.stderr.split()).count("all rows have 8 bits until the next assign") == 1
    assert all(set(counts) == {"8"} for record in lines(tmp_path / "fallen-back") for counts in record["bits"].values())
    assert "failure" in lines(tmp_path / "fallen-back")[1]["policy"]
    train("refitted", *flags, "--refit-links")
    (observed,) = [line["observed"] for line in lines(tmp_path / "refitted", "decisions.jsonl") if line["observed"]]
    assert observed["link_costs"] is None or "node" in observed["link_costs"]["seconds_per_byte"]
    if observed["link_costs"] is not None:  # on a busy machine no costs may fit, and then none are written
        assert json.loads(costs.read_text()) == observed["link_costs"]
    costs.write_text("nothing\n")
    refused = train("refused", *flags, check=False)
    assert refused.returncode == 1
    assert "give --refit-links" in refused.stderr


def test_other_parts_start_as_in_the_first_epoch(train, parts, tmp_path):
    other = tmp_path / "other.h5"
    small_graphs.write_parts(
        other, small_graphs.random_multigraph(nodes=300, edges=3000), small_graphs.random_parts(300, 3), 3
    )
    flags = [*POLICIES["all kinds"], "--epochs"]
    train("run", *flags, "6")
    result = train("run", "--resume", "--epochs", "10", graph=other, ranks=3)
    assert "start as in epoch 0" in " ".join(result.stderr.split())
    found = lines(tmp_path / "run")
    assert [record["epoch"] for record in found] == list(range(10))
    assert not found[6]["stale"]
    assert all(set(counts) == {"8"} for counts in found[6]["bits"].values())
    assert "policy" in found[7]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--bits", "2", "--message-coding", "delta", "--dropout", "0", "--staleness", "pipeline"], "needs --staleness off"),
        (["--bits", "adaqp", "--message-coding", "delta", "--dropout", "0"], "which decide by rows and not by differences"),
        (["--smoothing", "both"], "--smoothing is not used by fixed bits with --staleness off: --staleness pipeline"),
        (["--bits", "sylvie", "--replay", "nothing.jsonl"], "nothing.jsonl"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(train, flags, sentence):
    result = train("run", *flags, check=False)
    assert result.returncode == 1
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("hpcgnn: error")]
    assert sentence in error


def test_a_log_of_a_shorter_run_is_refused_where_it_ends(train, tmp_path):
    train("short", *POLICIES["sylvie"], "--epochs", "3")
    result = train(
        "long",
        *POLICIES["sylvie"],
        "--epochs",
        "5",
        "--replay",
        str(tmp_path / "short" / "decisions.jsonl"),
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.count("no seconds of epoch 3") == 1
