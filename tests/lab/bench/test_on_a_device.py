"""Benches measure a device by the same code: here the stand-in, whose kernels are those of the host."""

from __future__ import annotations

import pytest
import small_graphs
from lab.bench import device_programs
from lab.bench.contenders import HEADS, WIDTH, assert_aggregated, matrix
from lab.bench.device_programs import HERE
from requires import require_module

from hpcgnn.lab.bench import gemm_contenders, sddmm_contenders
from hpcgnn.lab.bench.contenders import DEVICE, HOST, by_name
from hpcgnn.lab.bench.gemm_contenders import GemmProblem
from hpcgnn.lab.bench.sddmm_contenders import SddmmProblem


@pytest.fixture(scope="module")
def ranks(device_ranks):
    require_module("triton")
    return device_ranks


@pytest.fixture(scope="module")
def results(ranks):
    return ranks(1).run(device_programs.results)[0]


@pytest.mark.parametrize("contender", HERE, ids=lambda contender: contender.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_contender_computes_the_same(results, contender, direction):
    assert_aggregated(contender, direction, results[contender.name, direction])


def test_products_on_a_device_are_those_of_the_host(ranks):
    (found,) = ranks(1).run(device_programs.products)
    problems = {
        gemm_contenders: GemmProblem(*device_programs.SHAPE),
        sddmm_contenders: SddmmProblem(matrix(), WIDTH, HEADS),
    }
    for study, problem in problems.items():
        of_study = {key[1:]: value for key, value in found.items() if key[0] == study.__name__}
        ran = {key: value for key, value in of_study.items() if not isinstance(value, str)}
        for name in ("ours", "ours.int8", "exact", "torch"):
            assert {direction for each, direction in ran if each == name} == set(study.by_name("cuda")[name].directions)
        for (name, direction), results in ran.items():
            contender = study.by_name("cuda")[name]
            if contender.tolerance is None:
                continue
            wanted = study.by_name("cpu")["ours"].prepare(problem, direction)()
            for each, expected in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
                assert (each - expected).norm() <= contender.tolerance * expected.norm()


def test_the_host_and_a_device_are_described_alike():
    assert {"ours", "ceiling.gather", "ceiling.copy", "torch.mm", "dgl", "pyg.layer"} <= DEVICE.keys()
    assert by_name("cpu") is HOST
    assert by_name("cuda:0") is by_name("standin:0") is DEVICE


def test_short_calls_are_timed_together_on_a_device_alone(ranks):
    assert ranks(1).run(device_programs.timed_together) == [[1, 10, 100, 1, 5]]


def test_quantization_beside_a_copy_of_the_device(ranks):
    bits = (1, 2, 4, 8, 16)
    ((found, host),) = ranks(1).run(device_programs.quantized, bits)
    assert found.keys() == host.keys()
    assert found["kernels"].keys() == host["kernels"].keys()
    steps = {f"{what} {number}" for what in ("encode", "decode", "aggregate") for number in bits}
    assert {line["axes"]["step"] for line in found["lines"]} == {"copy"} | steps
    assert found["kernels"]["encode 16"]["bytes"] == 64 * WIDTH * 6, "rows of bfloat16 have no parameters"


def test_an_exchange_from_a_device(ranks, tmp_path):
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(nodes=300, edges=3000), 2)
    host, both, mixed = (ranks(2).run(device_programs.exchanged, path, kinds)[0] for kinds in ("hh", "dd", "hd"))
    assert [found["ranks_by_way"] for found in (host, both, mixed)] == [
        {"host": 2, "staged": 0, "direct": 0},
        {"host": 0, "staged": 2, "direct": 0},
        {"host": 1, "staged": 1, "direct": 0},
    ]
    for direction in ("forward", "backward"):
        lines = [found["directions"][direction] for found in (host, both, mixed)]
        assert lines[0].keys() == lines[1].keys()
        assert len({line["bytes"] for line in lines}) == 1, "what travels is the same"
        assert all(line["wire_seconds"] > 0 for line in lines)
