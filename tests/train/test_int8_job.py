"""Training in 8-bit integers through the command line: it repeats, resumes and predicts, and refuses unsupported settings."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from rank_pool import Completed, ThreadPool
from under_way import kill, start, wait_for_epoch

import hpcgnn
from hpcgnn.comm import World
from hpcgnn.errors import HpcgnnError

pytestmark = pytest.mark.mpi

FLAGS = ["--layers", "2", "--hidden", "32", "--checkpoint-every", "5"]
ALWAYS = ["--compute", "int8-always"]


@pytest.fixture
def train(mpi_ranks, parts, tmp_path):
    """Run ``hpcgnn train`` on two ranks, and return the run folder."""

    def run(name: str, *flags: object, check: bool = True, threads: int = 1, graph: Path = parts) -> Completed:
        command = ["train", graph, "--out", tmp_path / name, *FLAGS, *flags]
        return mpi_ranks(2).command(*command, check=check, threads=threads)

    return run


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def last(folder: Path) -> tuple[list[tuple], dict[str, bytes]]:
    """The values of each epoch that must repeat, and the bytes of the weights."""
    names = ("loss", "compute", "bytes_sent", "val_metric", "int8_quantized", "int8_reused")
    content = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    told = [tuple(record.get(name) for name in names) for record in records(folder)]
    return told, {name: value.numpy().tobytes() for name, value in content["model"].items()}


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in records(folder)]


def errors_in(result: Completed) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("hpcgnn: error")]


# -- the same bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        (["--model", "gat", "--heads", "4", "--bits", "8"], 2),
        (["--model", "gcn", "--bits", "4", "--staleness", "pipeline", "--eval-every", "5"], 1),
        (["--model", "sage", "--int8-rounding", "nearest", "--int8-before-softmax"], 1),
        (["--model", "sage", "--int8-most-error", "0.000001"], 1),  # float32 from its first epoch on
    ],
    ids=["gat", "stale", "nearest", "given up"],
)
def test_a_run_repeats_and_resumes_bit_for_bit(train, tmp_path, flags, threads):
    train("whole", *ALWAYS, *flags, "--epochs", 10, threads=threads)
    train("broken", *ALWAYS, *flags, "--epochs", 5, threads=threads)
    train("broken", "--resume", "--epochs", 10, threads=threads)
    assert last(tmp_path / "broken") == last(tmp_path / "whole")
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0]
    computes = {record["compute"] for record in records(tmp_path / "whole")}
    assert computes == {"float32" if "--int8-most-error" in flags else "int8-always"}
    assert 'compute = "int8-always"' in (tmp_path / "broken" / "config.toml").read_text()


@pytest.mark.launches
def test_a_killed_run_goes_on_bit_for_bit(train, parts, tmp_path):
    flags = [*ALWAYS, "--bits", "8", "--epochs", "60"]
    train("whole", *flags)
    process = start(parts, tmp_path / "broken", *FLAGS, *flags)
    wait_for_epoch(tmp_path / "broken", 13, process)  # between two checkpoints, or a few epochs later
    kill(process)
    train("broken", "--resume")
    assert last(tmp_path / "broken") == last(tmp_path / "whole")
    assert [record["epoch"] for record in records(tmp_path / "broken")] == list(range(60))


def test_the_first_epoch_alone_says_whether_8_bits_are_enough(train):
    """A resumed run does not decide again."""
    whether = "int8: the first layer's output has a relative error of"
    told = [
        " ".join(train("run", *ALWAYS, *flags, "--log-level", "info").stderr.split()).count(whether)
        for flags in (["--epochs", 3], ["--resume", "--epochs", 5])
    ]
    assert told == [1, 0]


def test_another_arithmetic_may_take_over(train, tmp_path):
    """A resumed run that asks for another arithmetic gets it, with that arithmetic's own checks."""
    train("run", *ALWAYS, "--epochs", 3)
    train("run", "--resume", "--epochs", 5, "--compute", "float32")
    train("run", "--resume", "--epochs", 7, *ALWAYS)
    computes = [record["compute"] for record in records(tmp_path / "run")]
    assert computes == ["int8-always"] * 3 + ["float32"] * 2 + ["int8-always"] * 2
    assert [record.get("int8_quantized", 0) > 0 for record in records(tmp_path / "run")] == [
        compute != "float32" for compute in computes
    ]


# -- comparison with float32 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [[], ["--model", "gcn", "--bits", "8"]], ids=["sage", "gcn"])
def test_on_a_tiny_graph_nothing_pays(train, tmp_path, flags):
    """So --compute int8 can be given for any graph."""
    for compute in ("int8", "float32"):
        train(compute, *flags, "--compute", compute, "--epochs", 5)
    assert losses(tmp_path / "int8") == losses(tmp_path / "float32")
    assert last(tmp_path / "int8")[1] == last(tmp_path / "float32")[1]
    assert summary(tmp_path / "int8")["compute_asked"] == "int8"


def test_a_run_is_near_that_of_float32_and_says_what_it_did(train, tmp_path):
    for compute in ("int8-always", "float32"):
        train(compute, "--compute", compute, "--epochs", 10, "--dropout", 0)
        assert summary(tmp_path / compute)["compute"] == summary(tmp_path / compute)["compute_asked"] == compute
    found, exact = losses(tmp_path / "int8-always"), losses(tmp_path / "float32")
    assert found != exact
    np.testing.assert_allclose(found, exact, rtol=0.05)
    first = records(tmp_path / "int8-always")[0]
    assert min(first[name] for name in ("int8_quantized", "int8_reused", "int8_kept_bytes")) > 0
    content = torch.load(tmp_path / "int8-always" / "checkpoints" / "last.pt", weights_only=True)
    assert {value.dtype for value in content["model"].values()} == {torch.float32}


def test_predictions_of_a_run_are_those_of_its_evaluations(train, mpi_ranks, parts, tmp_path):
    """They are computed in float32, whatever the arithmetic of the training."""
    train("run", *ALWAYS, "--model", "gat", "--heads", 4, "--epochs", 5)
    mpi_ranks(2).command("predict", parts, tmp_path / "run", "--checkpoint", "best", "--out", tmp_path / "scores.h5")
    with h5py.File(tmp_path / "scores.h5") as file:
        scores = file["scores"][:]
    assert np.isfinite(scores).all()
    with h5py.File(parts) as file:
        ids, labels, mask = (file[name][:] for name in ("nodes/original_ids", "nodes/y", "nodes/val_mask"))
    accuracy = (scores.argmax(1)[ids] == labels)[mask.astype(bool)].mean()
    assert accuracy == pytest.approx(summary(tmp_path / "run")["best_val_metric"])


# -- unsupported settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--compute", "int4"],
            "does not multiply 4-bit integers (of GPUs, only some old ones do): pass --compute int8",
        ),
        (["--int8-rounding", "nearest"], "--int8-rounding is not used by --compute auto: --compute int8 uses it"),
        (
            ["--compute", "bf16-emulated", "--int8-before-softmax"],
            "--int8-before-softmax is not used by --compute bf16-emulated: --compute int8 uses it",
        ),
        (["--compute", "float32", "--int8-most-error", "0.5"], "--int8-most-error is not used by --compute float32"),
    ],
    ids=["int4", "rounding", "before softmax", "most error"],
)
def test_settings_that_do_not_go_together_end_all_ranks_with_one_sentence(train, tmp_path, flags, sentence):
    result = train("run", *flags, check=False)
    others = train("run", "--compute", "float32", "--bits", "2", "--message-coding", "delta", check=False)
    assert len(errors_in(result)) == 1, result.stderr
    assert sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert result.codes == others.codes == [1, 1]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_an_error_that_cannot_be_is_refused(train):
    for value in ("-0.1", "1.5"):
        result = train("run", *ALWAYS, "--int8-most-error", value, check=False)
        assert result.returncode != 0
        assert "int8" in result.stderr
        assert "Traceback" not in result.stderr


def in_float64(world: World, parts: Path, compute: str) -> str:
    """The sentence that refuses a program in float64."""
    with pytest.raises(HpcgnnError) as found:
        hpcgnn.build_model(
            hpcgnn.ModelConfig(layers=2), hpcgnn.load(parts, world), dtype=torch.float64, compute=compute
        )
    return str(found.value)


@pytest.mark.parametrize("compute", ["int8", "int8-always"])
def test_a_model_in_float64_is_refused(parts, compute):
    for sentence in ThreadPool(2).run(in_float64, parts, compute):
        assert f"compute {compute} is for models in float32, not in torch.float64: leave out --compute" in sentence


def test_a_nan_in_the_features_is_reported_as_in_float32(train, parts, tmp_path):
    """The file is refused before training starts."""
    shutil.copy(parts, tmp_path / "nan.h5")
    with h5py.File(tmp_path / "nan.h5", "a") as file:
        file["nodes/x"][3, 2] = np.nan
    told = {}
    for compute in ("float32", "int8-always"):
        result = train("run", "--compute", compute, check=False, graph=tmp_path / "nan.h5")
        assert result.codes == [1, 1]
        (told[compute],) = errors_in(result)
    assert "NaN" in told["float32"]
    assert told["int8-always"] == told["float32"]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("bits", ["8", "2"])
def test_numbers_that_grow_without_end_are_reported_with_layer_and_rank(train, tmp_path, bits):
    flags = ["--bits", bits, "--norm", "none", "--lr", "1e20", "--int8-most-error", "1"]
    result = train("run", *ALWAYS, *flags, check=False)
    assert result.codes == [1, 1]
    (sentence,) = errors_in(result)
    assert re.search(
        r"layer \d's (boundary rows|gradients) of rank \d held NaN or infinite values in epoch 1", sentence
    )
    assert len(records(tmp_path / "run")) == 1
