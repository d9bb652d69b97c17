"""Training with low bit-widths and in 8-bit integers through the command line: bytes, losses, and numbers without an end."""

from __future__ import annotations

import re

import pytest
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


def test_on_a_tiny_graph_nothing_pays(train, tmp_path):
    """So --compute int8 can be given for any graph."""
    for compute in ("int8", "float32"):
        train(compute, "--bits", 8, "--compute", compute, "--epochs", 5)
    assert losses(tmp_path / "int8") == losses(tmp_path / "float32")
    assert weights(tmp_path / "int8") == weights(tmp_path / "float32")
    assert summary(tmp_path / "int8")["compute_asked"] == "int8"


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
