"""Training with low bit-widths and in 8-bit integers through the command line: bytes, losses, and numbers without an end."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from trainings import lines, losses, refusal, rows_of_pairs, summary, weights

pytestmark = pytest.mark.mpi

FLAGS = ["--layers", "2", "--hidden", "32", "--checkpoint-every", "5"]
ALWAYS = ["--compute", "int8-always"]


def test_the_bytes_of_a_run_follow_from_its_plan(train, parts, tmp_path):
    train("run", "--bits", 2, "--epochs", 2, "--model", "gcn")

    def segment(count: int, width: int) -> int:
        """The bytes between two ranks: payload and 4 bytes of parameters for each row, in blocks of 64."""
        payload = -(-count * -(-width * 2 // 8) // 4) * 4
        return -(-(payload + 4 * count) // 64) * 64

    # The 9 features are aggregated unchanged, without a backward exchange; the 4 classes are exchanged in both directions.
    expected = sum(segment(count, 9) + 2 * segment(count, 4) for count in rows_of_pairs(parts))
    assert summary(tmp_path / "run")["bytes_sent_per_epoch"] == expected > 0


def test_what_is_sent_does_not_depend_on_when_a_rank_waits(train, tmp_path):
    train("on", "--bits", 2, "--epochs", 5)
    train("off", "--bits", 2, "--epochs", 5, "--overlap", "off", "--collective", "neighbour")
    assert losses(tmp_path / "on") == losses(tmp_path / "off")
    assert weights(tmp_path / "on") == weights(tmp_path / "off")


@pytest.mark.parametrize("flags", [[], ["--model", "gcn", "--bits", "8"]], ids=["sage", "gcn"])
def test_on_a_tiny_graph_nothing_pays(train, tmp_path, flags):
    """So --compute int8 can be given for any graph."""
    for compute in ("int8", "float32"):
        train(compute, *flags, "--compute", compute, "--epochs", 5)
    assert losses(tmp_path / "int8") == losses(tmp_path / "float32")
    assert weights(tmp_path / "int8") == weights(tmp_path / "float32")
    assert summary(tmp_path / "int8")["compute_asked"] == "int8"


def test_a_run_is_near_that_of_float32_and_says_what_it_did(train, tmp_path):
    for compute in ("int8-always", "float32"):
        train(compute, "--compute", compute, "--epochs", 10, "--dropout", 0)
        assert summary(tmp_path / compute)["compute"] == summary(tmp_path / compute)["compute_asked"] == compute
    found, exact = losses(tmp_path / "int8-always"), losses(tmp_path / "float32")
    assert found != exact
    np.testing.assert_allclose(found, exact, rtol=0.05)
    first = lines(tmp_path / "int8-always")[0]
    assert min(first[name] for name in ("int8_quantized", "int8_reused", "int8_kept_bytes")) > 0
    content = torch.load(tmp_path / "int8-always" / "checkpoints" / "last.pt", weights_only=True)
    assert {value.dtype for value in content["model"].values()} == {torch.float32}


@pytest.mark.parametrize(
    ("where", "flags"),
    [
        ("layer 2's boundary rows", ["--bits", "2"]),
        *(
            (r"layer \d's (boundary rows|gradients)", [*ALWAYS, "--int8-most-error", "1", "--bits", bits])
            for bits in "82"
        ),
    ],
    ids=["float32, 2 bits", "int8, 8 bits", "int8, 2 bits"],
)
def test_numbers_that_grow_without_end_are_reported_with_layer_and_rank(train, tmp_path, where, flags):
    error = refusal(train("run", *flags, "--norm", "none", "--lr", "1e20", check=False))
    assert re.search(rf"{where} of rank \d held NaN or infinite values in epoch 1", error)
    assert len(lines(tmp_path / "run")) == 1
