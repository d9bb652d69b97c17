"""``hpcgnn train --tensorboard``: the scalars are those of ``metrics.jsonl``."""

from __future__ import annotations

import json
import sys

import made_up
import pytest
import small_graphs
from requires import require_module

from hpcgnn.errors import HpcgnnError
from hpcgnn.train.scalars import mean_bits, scalars
from hpcgnn.train.tensorboard import TensorBoard, writers


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


@pytest.mark.mpi
def test_the_command_writes_what_metrics_have(mpi_ranks, tmp_path):
    require_module("tensorboard")
    parts, out = tmp_path / "parts.h5", tmp_path / "run"
    small_graphs.write_parts(parts, small_graphs.random_multigraph(), small_graphs.random_parts(60, 2), 2)
    words = ["train", parts, "--out", out, "--hidden", 8, "--eval-every", 2, "--bits", 8, "--quiet"]
    mpi_ranks(2).command(*words, "--epochs", 3, "--tensorboard")
    mpi_ranks(2).command("train", parts, "--out", out, "--epochs", 5, "--resume", "--quiet")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = read_back(out)
    for tag, name in (
        ("loss", "loss"),
        ("metric/val", "val_metric"),
        ("seconds/wire", "wire_seconds"),
        ("bits/all_rows", "bits"),
    ):
        expected = {line["epoch"]: line[name] for line in lines if line[name] is not None}
        assert found[tag] == pytest.approx(expected)
    assert len(lines) == 5
    assert json.loads((out / "ranks.json").read_text())["first_epoch"] == 3
