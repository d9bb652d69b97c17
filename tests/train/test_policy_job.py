"""Policies of bits and staleness through the command line: their decisions, link costs and logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_graphs
from trainings import lines, refusal, rows_of_pairs

FLAGS = ["--layers", "3", "--hidden", "16", "--checkpoint-every", "6"]
GRAPH = small_graphs.even_graph(300, 1500)  # without hubs, so that there are many rows to decide about
ADAQP = ["--bits", "adaqp", "--bits-period", "4", "--group-rows", "10"]


@pytest.fixture
def costs(tmp_path) -> Path:
    """The costs of links within a node. They are given, because on a busy machine no costs may fit the measurements."""
    path = tmp_path / "given-costs.json"
    path.write_text(json.dumps({"seconds_per_byte": {"node": 1e-9}, "seconds_per_message": {"node": 1e-5}}))
    return path


def test_bits_of_all_rows_are_told(train, parts, costs, tmp_path):
    train("run", *ADAQP, "--epochs", "3", "--link-costs", str(costs))
    rows = sum(rows_of_pairs(parts))
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
    assert "give --refit-links" in refusal(train("refused", *flags, check=False))


def test_a_log_of_a_shorter_run_is_refused_where_it_ends(train, tmp_path):
    late = ["--staleness", "pipeqs", "--bypass", "late"]
    train("short", *late, "--epochs", 3)
    result = train("long", *late, "--epochs", 5, "--replay", tmp_path / "short" / "decisions.jsonl", check=False)
    assert "no late of epoch 3" in refusal(result)
