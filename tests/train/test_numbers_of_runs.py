"""The numbers of a run: its page in the documentation, ``ranks.json``, and the scalars of ``--tensorboard``."""

from __future__ import annotations

import json
import re
import sys

import made_up
import msgspec
import numpy as np
import pytest
import small_graphs
from command_line import refusal, said, told
from rank_pool import ROOT, ThreadPool
from ranks import rank_reports
from requires import require_module
from trainings import lines

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import StopRequest
from hpcgnn.base.settings import as_flag
from hpcgnn.base.typed import read_json
from hpcgnn.policy.clock import Decision, Observed
from hpcgnn.train.rank_report import BREAKDOWN, COUNTS, MOST_BLOCKS, Ranks, first_ranks
from hpcgnn.train.run_folder import Record
from hpcgnn.train.summary import TensorBoard, mean_bits, scalars, writers

# -- docs/reference/metrics.md has a line for every key of the files of numbers, and for no other ----------------------


PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()


@pytest.fixture(scope="module")
def trained(graph):
    """The record of an epoch and the summary of a run in 8-bit integers, which has keys that other runs lack."""
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


def test_the_page_has_every_key_of_the_files(trained):
    record, summary = trained
    assert keys_of("metrics.jsonl") == names_of(Record) | record.keys()
    assert keys_of("summary.json") == summary.keys()
    assert keys_of("decisions.jsonl") == names_of(Decision)
    assert keys_of("decisions.jsonl", "key of `observed`") == names_of(Observed)
    assert keys_of("ranks.json") == names_of(Ranks)
    assert keys_of("ranks.json", "key of `mean` and `largest`") == {*BREAKDOWN, *COUNTS}


# -- ranks.json --------------------------------------------------------------------------------------------------------


NODES = 60


@pytest.fixture(scope="module")
def three_parts(tmp_path_factory):
    return small_graphs.in_parts(tmp_path_factory.mktemp("ranks") / "parts.h5", small_graphs.random_multigraph(), 3)


@pytest.mark.parametrize(
    ("bits", "policy"),
    [(32, {}), (4, {}), (8, {"bits": "uniform"}), (32, {"staleness": "pipeline"}), (8, {"staleness": "pipeqs"})],
    ids=str,
)
def test_it_has_what_ranks_send(three_parts, tmp_path, bits, policy):
    moved = ThreadPool(3).run(rank_reports.bytes_of_training, three_parts, tmp_path / "run", bits, policy)
    ranks = read_json(tmp_path / "run" / "ranks.json", Ranks)
    sent = np.array(ranks.bytes)
    assert sent.sum(axis=1).tolist() == [out for out, _ in moved]
    assert sent.sum(axis=0).tolist() == [into for _, into in moved]
    records = lines(tmp_path / "run")
    assert sent.sum() == sum(record["bytes_sent"] for record in records) > 0
    assert np.diag(sent).tolist() == [0, 0, 0]
    assert (ranks.ranks, ranks.epochs, ranks.first_epoch, ranks.is_whole) == (3, rank_reports.EPOCHS, 0, True)
    assert sum(ranks.mean["nodes"]) == NODES
    assert sum(ranks.mean["edges"]) == 423
    assert 0 < sum(ranks.mean["cut_edges"]) < 423
    assert max(ranks.largest["seconds"]) <= max(record["seconds"] for record in records)
    assert all(seconds > 0 for seconds in ranks.mean["aggregation_seconds"])
    assert all(peak > 1 << 20 for peak in ranks.mean["peak_memory_bytes"])


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1000, 8192])
def test_blocks_are_of_consecutive_ranks(size):
    firsts = first_ranks(size)
    sizes = np.diff(firsts, append=size)
    assert firsts[0] == 0
    assert firsts.size == min(size, MOST_BLOCKS)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1


# -- `hpcgnn plan` and `hpcgnn show` -----------------------------------------------------------------------------------

TYPED_EDGES = small_graphs.with_typed_edges(small_graphs.random_multigraph())


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("settings", "plan"),
    [
        ({"model": "sage"}, "hybrid"),
        ({"model": "gcn"}, "hybrid"),
        ({"model": "gat", "heads": 2}, "post"),
        ({"model": "transformer", "heads": 2}, "post"),
        ({"model": "rgat", "heads": 2}, "post"),
        ({"model": "hgt", "heads": 2}, "post"),
        ({"model": "rgcn"}, "hybrid-by-type"),
        ({"model": "sage", "edge_types": "sum"}, "hybrid-by-type"),
        ({"model": "gcn", "edge_types": "mean"}, "hybrid-by-type"),
        ({"model": "gat", "heads": 2, "edge_types": "max"}, "post"),
    ],
    ids=str,
)
def test_they_know_the_plan_of_a_model(tmp_path, ranks, settings, plan):
    path = small_graphs.in_parts(tmp_path / "parts.h5", TYPED_EDGES, ranks)
    flags = [word for name, value in settings.items() if name != "heads" for word in (as_flag(name), value)]
    found = told("plan", path, *flags, "--ranks-per-node", 2)
    of_ranks = ThreadPool(ranks).run(rank_reports.rows_of_a_step, path, tmp_path / "run", settings)
    sent = np.zeros((ranks, ranks), int)
    for sender, receiver, post, pre in found["pairs"][plan]:
        sent[sender, receiver] = post + pre
    assert sent.tolist() == [rows for rows, _ in of_ranks]
    rows, work = found["strategies"][plan], found["ranks"][plan]
    assert rows["rows"] == sent.sum() == told("show", tmp_path / "run")["rows_sent_per_exchange"]
    if plan == "hybrid-by-type":
        untyped = told("plan", path)["strategies"]["hybrid"]["rows"]
        assert untyped < rows["rows"] <= told("plan", path, "--model", "rgat")["strategies"]["post"]["rows"]
        assert rows["rows_between_nodes"] == sent[:2, 2:].sum() + sent[2:, :2].sum()
        entries = [work[f"entries_{name}"] for name in ("send", "receive")]  # gcn adds loops to L
        assert np.transpose(entries).tolist() == [found[1:] for _, found in of_ranks]


def test_a_plan_without_a_model_says_that_types_make_others(tmp_path):
    typed, untyped = (
        small_graphs.in_parts(tmp_path / name, each, 2)
        for name, each in (("typed.h5", TYPED_EDGES), ("untyped.h5", small_graphs.random_multigraph()))
    )
    assert "other rows: name yours with --model" in said("plan", typed)
    assert "--model" not in said("plan", typed, "--model", "sage") + said("plan", untyped)
    assert "has no types of edges" in refusal("plan", untyped, "--model", "rgcn")
    assert "edge_types is not used by gin" in refusal("plan", typed, "--model", "gin", "--edge-types", "sum")


# -- TensorBoard -------------------------------------------------------------------------------------------------------


def read_back(run) -> dict[str, dict[int, float]]:
    """The values by tag and step, as TensorBoard shows them."""
    events = require_module("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: {each.step: each.value for each in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def test_scalars_of_a_record():
    rows = {"layer 1's boundary rows": {"2": 30, "8": 10}, "layer 1's gradients": {"8": 40}}
    found = scalars(made_up.record(3, bits=rows, test_metric=None, stale_epochs={"layer 1's gradients": 2}))
    assert found["loss"] == 0.5
    assert found["metric/val"] == pytest.approx(0.43)
    assert "metric/test" not in found
    assert found["seconds/epoch"] == 0.0125
    assert found["seconds_mean/aggregation"] == 0.002
    assert found["bytes/sent"] == 123456
    assert found["bits/layer_1_boundary_rows"] == 3.5
    assert found["bits/all_rows"] == 5.75
    assert found["stale_epochs/layer_1_gradients"] == 2
    assert mean_bits({}) == {}
    assert "loss" not in scalars(made_up.record(3, loss=None))


def test_a_resumed_run_goes_on_where_it_was_left(tmp_path):
    require_module("tensorboard")
    for first, last, scale in ((0, 6, 1), (4, 8, 10)):
        board = TensorBoard(tmp_path, first)
        for epoch in range(first, last):
            board.add(made_up.record(epoch, loss=float(scale * epoch)))
        board.close()
    assert read_back(tmp_path)["loss"] == {0: 0, 1: 1, 2: 2, 3: 3, 4: 40, 5: 50, 6: 60, 7: 70}


def test_a_missing_package_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(HpcgnnError, match=r"pip install 'hpcgnn\[tensorboard\]'"):
        writers()


FLAGS = ["--hidden", "8", "--eval-every", "2", "--bits", "8", "--quiet"]


@pytest.mark.mpi
def test_the_command_writes_what_metrics_have(train, tmp_path):
    require_module("tensorboard")
    train("run", "--epochs", 3, "--tensorboard")
    train("run", "--epochs", 5, "--resume")
    records, found = lines(tmp_path / "run"), read_back(tmp_path / "run")
    names = {"loss": "loss", "metric/val": "val_metric", "seconds/wire": "wire_seconds", "bits/all_rows": "bits"}
    for tag, name in names.items():
        expected = {record["epoch"]: record[name] for record in records if record[name] is not None}
        assert found[tag] == pytest.approx(expected)
    assert len(records) == 5
    assert json.loads((tmp_path / "run" / "ranks.json").read_text())["first_epoch"] == 3
