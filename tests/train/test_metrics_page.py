"""docs/reference/metrics.md has a line for every key of the files of numbers in a run folder, and for no other key."""

from __future__ import annotations

import re

import msgspec
import pytest
import small_graphs
from rank_pool import ROOT

import hpcgnn
from hpcgnn.comm.thread_world import one_rank
from hpcgnn.policy.clock import Decision, Observed
from hpcgnn.stop import StopRequest
from hpcgnn.train.rank_report import BREAKDOWN, COUNTS, Ranks
from hpcgnn.train.run_folder import Record

PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The record of an epoch and the summary of a run in 8-bit integers, which has keys that other runs lack."""
    path = tmp_path_factory.mktemp("one") / "parts.h5"
    graph = small_graphs.on_ranks(one_rank(), small_graphs.random_multigraph(), path)
    model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=8), graph, compute="int8-always")
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=1), stop=StopRequest())
    summary = trainer.fit()
    return trainer.records[0], summary


def keys_of(section: str, heading: str = "key") -> set[str]:
    """The names in the first column of the tables of a section that have this heading there."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    found: list[str] = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        first, _, *rows = [line.split("|")[1].strip() for line in table.splitlines()]
        if first == heading:
            found += [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(found) == len(set(found)), f"{section} names a key twice"
    return set(found)


def names_of(kind: type[msgspec.Struct]) -> set[str]:
    return {each.encode_name for each in msgspec.structs.fields(kind)}


def test_a_line_of_metrics_jsonl(trained):
    assert keys_of("metrics.jsonl") == names_of(Record) | trained[0].keys()


def test_a_line_of_decisions_jsonl():
    assert keys_of("decisions.jsonl") == names_of(Decision)
    assert keys_of("decisions.jsonl", "key of `observed`") == names_of(Observed)


def test_summary_json(trained):
    assert keys_of("summary.json") == trained[1].keys()


def test_ranks_json():
    assert keys_of("ranks.json") == names_of(Ranks)
    assert keys_of("ranks.json", "key of `mean` and `largest`") == {*BREAKDOWN, *COUNTS}
