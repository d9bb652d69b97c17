"""Policies of bits and staleness through the command line: their decisions, link costs and logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_graphs
from trainings import lines, refusal, rows_of_pairs

from hpcgnn.train import run_files

FLAGS = ["--layers", "3", "--hidden", "16", "--checkpoint-every", "6"]
GRAPH = small_graphs.even_graph(300, 1500)  # without hubs, so that there are many rows to decide about
ADAQP = ["--bits", "adaqp", "--bits-period", "4", "--group-rows", "10"]


@pytest.fixture
def costs(tmp_path) -> Path:
    """The costs of slow links within a node. They are given, because bit-widths depend on the seconds of epochs as well."""
    path = tmp_path / "given-costs.json"
    path.write_text(json.dumps({"seconds_per_byte": {"node": 1e-3}, "seconds_per_message": {"node": 1e-5}}))
    return path


def test_bits_of_all_rows_are_told(train, parts, costs, tmp_path):
    """The first two epochs tell the ranges of rows, and the next one passes while rank 0 decides."""
    train("run", *ADAQP, "--epochs", "4", "--link-costs", str(costs))
    rows = sum(rows_of_pairs(parts))
    _, first, before, second = lines(tmp_path / "run")
    assert before["bits"] == first["bits"]
    assert all(counts == {"8": rows} for counts in first["bits"].values())
    assert second["bits"].keys() == second["policy"].keys() == first["bits"].keys()
    assert {"layer 2's boundary rows", "layer 3's gradients"} <= second["bits"].keys()
    assert "layer 1's boundary rows" not in second["bits"]  # the input was sent once
    for counts in second["bits"].values():
        assert sum(counts.values()) == rows
        assert counts.keys() <= {"2", "4", "8"}
    assert {bits for counts in second["bits"].values() for bits in counts} != {"8"}
    assert second["bytes_sent"] < first["bytes_sent"]
    for solved in second["policy"].values():
        assert 0 <= solved["bound"] <= solved["objective"]
        assert solved["gap"] < 0.1  # of a few groups


def test_more_weight_on_variance_sends_more_bytes(train, costs, tmp_path):
    sent = {}
    for weight in ("0", "0.5", "1"):
        train(weight, *ADAQP, "--variance-weight", weight, "--epochs", "4", "--link-costs", str(costs))
        sent[weight] = lines(tmp_path / weight)[-1]["bytes_sent"]
    assert sent["0"] < sent["0.5"] < sent["1"]


def test_a_slower_network_gets_fewer_bits(train, tmp_path):
    """By the paper's rule, it gets the same."""
    sent: dict[str, list[int]] = {"epoch": [], "span": []}
    for seconds in (1e-9, 1e-3):
        costs = tmp_path / f"{seconds}.json"
        costs.write_text(json.dumps({"seconds_per_byte": {"node": seconds}, "seconds_per_message": {"node": 0}}))
        for scale, found in sent.items():
            run = f"{scale}-{seconds}"
            train(run, *ADAQP, "--time-scale", scale, "--epochs", "4", "--link-costs", str(costs))
            found.append(lines(tmp_path / run)[-1]["bytes_sent"])
    assert sent["epoch"][0] > 1.5 * sent["epoch"][1]
    assert sent["span"][0] == sent["span"][1]


def test_link_costs_are_kept_and_refitted_on_demand(train, tmp_path):
    """A run whose costs lack its links continues with 8 bits, rank 0 warns once, and the summary says so."""
    costs = tmp_path / "costs.json"
    flags = [*ADAQP, "--epochs", "4", "--link-costs", str(costs)]
    costs.write_text(json.dumps({"seconds_per_byte": {"network": 1e-9}, "seconds_per_message": {"network": 1e-5}}))
    result = train("fallen-back", *flags)
    assert " ".join(result.stderr.split()).count("all rows have 8 bits until the next assign") == 1
    assert all(
        set(counts) <= {"8", "32"} for record in lines(tmp_path / "fallen-back") for counts in record["bits"].values()
    )
    ((epoch, reason),) = json.loads((tmp_path / "fallen-back" / "summary.json").read_text())["policy_failures"]
    assert epoch == 2
    assert lines(tmp_path / "fallen-back")[2]["policy"] == {"failure": reason}
    (note,) = run_files.read_run(tmp_path / "fallen-back").warnings()
    assert "All rows had 8 bits from epoch 2" in note
    assert reason in note
    train("refitted", *flags, "--refit-links")
    seen = [line["observed"] for line in lines(tmp_path / "refitted", "decisions.jsonl")]
    assert all(each["seconds"] > 0 for each in seen)
    (measured,) = [each["link_costs"] for each in seen if "link_costs" in each]
    assert measured["seconds_per_byte"]["node"] > 0
    assert json.loads(costs.read_text()) == measured
    assert json.loads((tmp_path / "refitted" / "summary.json").read_text())["policy_failures"] == []
    costs.write_text("nothing\n")
    assert "give --refit-links" in refusal(train("refused", *flags, check=False))
