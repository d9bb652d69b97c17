"""The choice between adding rows from their codes and decoding them first, on times that were measured.

A line of fusing_grid.csv has the microseconds of adding from codes, of decoding, and of adding decoded rows: medians of
interleaved calls in warm memory, on two cores of an AMD EPYC with AVX-512 and 32 MiB of shared cache. Each row is named by
``uses`` entries on average, which are drawn at random, and there are as many sums as rows. Of AVX2, the lower of two runs' times
was taken; cases in which two threads took more than twice the time of one, because something else ran, were left out.
"""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.kernels import fusing, library
from hpcgnn.kernels.sizes import scaled_by

GRID = list(csv.DictReader((Path(__file__).parent / "fusing_grid.csv").open()))


def losses(cases: list[dict[str, str]]) -> np.ndarray:
    """The time of the way that is chosen, relative to the faster one, for each case."""
    found = []
    for case in cases:
        rows, uses = int(case["rows"]), int(case["uses"])
        fused, separate = float(case["fused_us"]), float(case["decode_us"]) + float(case["add_us"])
        chosen = fusing.adds_from_codes(int(case["bits"]), rows * uses, rows, int(case["width"]))
        found.append((fused if chosen else separate) / min(fused, separate))
    return np.array(found)


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_the_faster_way_is_chosen(monkeypatch, isa, threads):
    """Neighbouring cases differ by the machine's noise, so some lose; the rule of thresholds before lost 7 to 18 % on average."""
    monkeypatch.setattr(library, "isa", lambda: isa)
    monkeypatch.setattr(library, "load", lambda: True)
    cases = [case for case in GRID if (case["isa"], case["threads"]) == (isa, threads)]
    lost = losses(cases)
    assert lost.size > 100
    assert lost.mean() <= 1.02
    assert (lost > 1.15).mean() <= 0.05


def test_a_choice_that_may_change_bits_is_the_same_with_any_instruction_set(monkeypatch):
    """From 32 MiB of decoded rows on, spmm may order the entries of a row."""
    monkeypatch.setattr(library, "load", lambda: True)
    found = {}
    for isa in ("avx2", "avx512", "neon"):
        monkeypatch.setattr(library, "isa", lambda isa=isa: isa)
        sizes = [
            (bits, uses * rows, rows, 64)
            for bits in (4, 8, 16, 32)
            for uses in range(1, 20)
            for rows in (4_000, 131_072)
        ]
        found[isa] = {size: fusing.adds_from_codes(*size) for size in sizes}
    assert found["avx2"] == found["neon"]
    assert {size[2] for size in found["avx2"] if found["avx2"][size] != found["avx512"][size]} == {4_000}


def test_stand_ins_choose_as_the_matrices_for_which_they_stand():
    for bits, rows, uses in itertools.product((1, 8, 32), (1_000, 8_192, 524_288), (1, 4, 16, 64)):
        with scaled_by(1 / 8):
            chosen = fusing.adds_from_codes(bits, rows * uses // 8, rows // 8, 64)
        assert chosen == fusing.adds_from_codes(bits, rows * uses, rows, 64)
