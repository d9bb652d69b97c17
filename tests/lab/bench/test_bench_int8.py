"""Dense products and products at edges: all contenders compute the same, and reports contain the measured values."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command_line import said, told
from lab.bench.contenders import HEADS, WIDTH, matrix, results_of

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.kernels import library
from hpcgnn.lab.bench import aggregate, ceilings, gemm_contenders, products, sddmm_contenders
from hpcgnn.lab.bench.gemm_contenders import GemmProblem
from hpcgnn.lab.bench.measure import Entry, Place, Timing, difference
from hpcgnn.lab.bench.names import EDGE_OPS, PRODUCTS, How
from hpcgnn.lab.bench.problem import Special
from hpcgnn.lab.bench.results import lines as lines_of
from hpcgnn.lab.bench.results import with_speeds
from hpcgnn.lab.bench.sddmm_contenders import SddmmProblem
from hpcgnn.lab.bench.studies import Subject
from hpcgnn.lab.bench.worker import fingerprint, relative_error
from hpcgnn.nn import int8 as training

OF_GEMM, OF_SDDMM = (
    {name: each for name, each in study.by_name("cpu").items() if not each.missing()}
    for study in (gemm_contenders, sddmm_contenders)
)


@pytest.mark.parametrize("op", EDGE_OPS)
@pytest.mark.parametrize("name", OF_SDDMM)
def test_every_contender_joins_the_same_rows(monkeypatch, name, op):
    monkeypatch.setattr(sddmm_contenders, "_CHUNK", 64)  # so that there are several chunks, and a shorter last one
    contender, problem = OF_SDDMM[name], SddmmProblem(matrix(), WIDTH, HEADS)
    if op not in contender.directions:
        return
    (found,) = results_of(contender, problem, op)
    left, right = problem.a[problem.csr.entry_rows()].double(), problem.b[problem.csr.indices.long()].double()
    if name == "ceiling.gather":
        assert float(found) == pytest.approx(float(right.sum()), abs=1e-2)
    elif contender.tolerance is not None:
        wanted = left + right if op == "add" else (left * right).view(500, HEADS, -1).sum(2)
        error = (found.double() - wanted).norm() / wanted.norm()
        assert (1e-5 if contender.dtype == "int8" and name != "exact" else 0) <= error <= contender.tolerance


def test_a_wrong_result_is_refused():
    right = gemm_contenders.by_name("cpu")["ours"].prepare(GemmProblem(64, 16, 8), "layer")()
    entry = Entry("ours", "ours", Place(Subject.of("gemm", 64, 16, 8), 1, warm=True))
    expected = fingerprint(right)
    assert len(expected) == 6
    assert difference(entry, 1e-4, expected, expected) == ""
    for wrong in (fingerprint((right[0], right[1], right[2].flip(0))), [float("nan"), *expected[1:]]):
        assert difference(entry, 1e-4, wrong, expected).startswith("ours and hpcgnn compute different results")


def of(milliseconds, multiply_adds=None):
    return Timing([milliseconds / 1000], multiply_adds).as_json()


def test_figures_follow_from_times_and_counts():
    timings = {"ours": of(10.0), "ours.int8": of(4.0), "exact": of(12.0), "ceiling.copy": of(1.0)}
    timings |= {"ceiling.float32": of(3.0, 50e6), "ceiling.int8": of(2.0, 200e6)}
    found = with_speeds(timings | {"torch": Timing(missing="broken").as_json()}, OF_GEMM, 100e6)
    assert found["ours.int8"]["giga_ops"] == pytest.approx(2 * 0.1 / 4e-3)
    assert found["ceiling.int8"]["giga_ops"] == pytest.approx(2 * 0.2 / 2e-3), "a ceiling counts its own"
    assert found["ours.int8"]["times_ours"] == pytest.approx(2.5)
    assert found["ours.int8"]["of_ceiling"] == pytest.approx(0.25), "100 at 100 a ms would take 1 ms of its 4"
    assert found["ours"]["of_ceiling"] == pytest.approx(0.6), "each has the ceiling of its arithmetic"
    assert found["exact"]["of_ceiling"] == pytest.approx(0.5)
    assert found["ceiling.copy"]["giga_ops"] is found["ceiling.copy"]["times_ours"] is None
    assert found["torch"] == {"missing": "broken"}
    without = with_speeds(timings | {"ceiling.int8": {"missing": "no native kernels"}}, OF_GEMM, 100e6)
    lines = {line["axes"]["contender"]: line["figures"] for line in lines_of(without, "contender", {})}
    assert not {"torch", "ceiling.int8"} & lines.keys(), "what is missing has no line"
    assert "share_of_peak" not in lines["ours.int8"]
    edges = {"ours": of(10.0), "ours.int8": of(4.0), "ceiling.gather": of(8.0), "ceiling.gather.int8": of(1.0)}
    found = with_speeds(edges, OF_SDDMM, 100e6)
    assert found["ours"]["of_ceiling"] == pytest.approx(0.8)
    assert found["ours.int8"]["of_ceiling"] == pytest.approx(0.25)


def test_training_is_asked_with_the_threads_of_the_measurement(monkeypatch):
    seen, usual = [], torch.get_num_threads()

    def measured():
        seen.append(torch.get_num_threads())
        return training.Measured(products=1.2, sums=1.0)

    monkeypatch.setattr(training, "measured", measured)
    assert products._training_takes_int8(usual + 1)
    assert (seen, torch.get_num_threads()) == ([usual + 1], usual)


def test_errors_are_of_the_largest_result_and_relative():
    exact = GemmProblem(64, 16, 8).exact("layer")
    assert relative_error(tuple(each.float() for each in exact), exact) < 1e-6
    wrong = (exact[0], 1.5 * exact[1], 0.9 * exact[2])
    assert relative_error(wrong, exact) == pytest.approx(0.5)
    assert relative_error(exact[0], None) is None


def workload(**how):
    return aggregate.Workload(Path("g"), "g", 8, How(1, 1, **how))


def test_aggregation_is_measured_as_before_without_types():
    usual, more = (
        [entry.key for entry in aggregate.kernel_entries(workload(**how))] for how in ({}, {"dtypes": ("int8",)})
    )
    assert set(more) - set(usual) == {"ours.int8.counted", "exact", "ceiling.gather.int8"}
    assert [key for key in more if key in usual] == usual


@pytest.mark.parametrize("dtype", ["float32", "int8", "bf16"])
def test_a_ceiling_of_arithmetic_counts_what_it_does(dtype, monkeypatch):
    monkeypatch.setattr(ceilings, "_LEAST_MULTIPLY_ADDS", 1)
    if library.load() is not None and (dtype != "bf16" or library.multiplies_bf16()):
        for count in (1e6, 3e6):
            call = ceilings.multiply_call(dtype, int(count))
            assert isinstance(call, Special)
            assert count <= call.multiply_adds <= 1.2 * count
            assert float(call()) == call.multiply_adds
    monkeypatch.setattr(library, "load", lambda: None)
    with pytest.raises(HpcgnnError, match="needs the native kernels"):
        ceilings.multiply_call(dtype, 1000)


@pytest.mark.parametrize(("has_dot_products", "of_int8"), [(True, "int8_dot"), (False, "int8")])
def test_each_arithmetic_has_the_ceiling_of_its_instructions(monkeypatch, has_dot_products, of_int8):
    names = {f"multiply_ceiling_{each}" for each in ("f32", "int8", "int8_dot")}
    asked = []

    def function(name):
        asked.append(name)
        return lambda rounds, threads: 100.0 * rounds

    monkeypatch.setattr(library, "load", lambda: SimpleNamespace(interface=SimpleNamespace(functions=names)))
    monkeypatch.setattr(library, "function", function)
    monkeypatch.setattr(ceilings, "dot_products", lambda: has_dot_products)
    for name in ("ceiling.float32", "ceiling.int8"):
        call = gemm_contenders.by_name("cpu")[name].prepare(GemmProblem(8, 8, 8), "y")
        assert float(call()) == call.multiply_adds >= ceilings._LEAST_MULTIPLY_ADDS
    assert asked == ["multiply_ceiling_f32", f"multiply_ceiling_{of_int8}"]


@pytest.mark.slow
def test_the_command_for_products_measures_every_contender_beside_exact_products():
    types = ("--dtype", "float32", "--dtype", "int8", "--dtype", "bf16")
    found = told("bench", "gemm", "--shape", "64x16x8", *types, "--rounds", "1", "--threads", "1")
    (shape,) = found["shapes"]
    assert (shape["rows"], shape["depth"], shape["width"]) == (64, 16, 8)
    assert list(shape["products"]) == list(PRODUCTS)
    lines = {(line["axes"]["direction"], line["axes"]["contender"]): line["figures"] for line in found["lines"]}
    for direction, (name, contender) in itertools.product(PRODUCTS, OF_GEMM.items()):
        timing = shape["products"][direction][name]
        if direction not in contender.directions:
            assert timing == {"missing": f"has no {direction} of its own"}
        elif "missing" in timing:  # this CPU lacks the arithmetic, or a ceiling
            assert name in ("ours.bf16", "native.bf16", "torch.fbgemm", "torch.onednn") or name.startswith("ceiling")
        else:
            assert lines[direction, name]["seconds"] == timing["seconds"]
            if contender.tolerance:
                is_exact = contender.dtype == "float32" or name == "exact"
                least = 0 if is_exact else 1e-5  # it computes in what it says
                assert least <= timing["relative_error"] <= contender.tolerance, (direction, name)
    y = shape["products"]["y"]
    assert y["ours"]["times_ours"] == 1
    assert y["ours.int8"]["times_ours"] == pytest.approx(y["ours"]["seconds"] / y["ours.int8"]["seconds"])
    assert ("layer", products.AS_TRAINED) in lines


@pytest.mark.slow
def test_the_command_for_edges_shows_a_table():
    options = ["--graph", "rmat:scale=6,degree=4", "--width", "16", "--heads", "2", "--rounds", "1", "--threads", "1"]
    text = said("bench", "sddmm", *options, "--dtype", "int8")
    assert "rmat:scale=6,degree=4, width 16, 2 heads, 1 threads" in text
    for label in ("ours float32", "ours int8", "EXACT-like storage", "row-gather ceiling", "1.00"):
        assert label in text
