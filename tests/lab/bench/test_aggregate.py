"""Aggregation and codecs: all contenders compute the same, and benches measure and draw what was asked for."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from command_line import refusal, told
from lab.bench.contenders import NODES, WIDTH, matrix, results_of
from requires import require_module

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.bench import aggregate, graphs, quantize
from hpcgnn.lab.bench.contenders import HOST
from hpcgnn.lab.bench.measure import Entry, Place, measured
from hpcgnn.lab.bench.names import How
from hpcgnn.lab.bench.problem import Problem
from hpcgnn.lab.bench.studies import Subject


@pytest.fixture
def graph(tmp_path):
    """The stored matrix."""
    csr = matrix()
    graphs.write_graph(tmp_path / "graph", csr.indices.numpy(), csr.entry_rows().numpy(), NODES, "small")
    return tmp_path / "graph"


# DGL, torch_sparse and MKL have no packages for most machines, so they take part only if they are installed.
HERE = [contender for contender in HOST.values() if not contender.missing()]


def test_what_is_not_here_is_what_cannot_be_installed_everywhere():
    absent = [contender for contender in HOST.values() if contender not in HERE]
    assert all({"dgl", "torch_sparse", "sparse_dot_mkl"} & set(contender.modules) for contender in absent)


@pytest.mark.parametrize("contender", HERE, ids=lambda contender: contender.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_contender_computes_the_same(contender, direction):
    if direction not in contender.directions:
        return
    problem = Problem(matrix(), WIDTH)
    (found,) = results_of(contender, problem, direction)
    x = problem.x if direction == "forward" else problem.dz
    named = x[problem.operand(direction)[0].indices.long()]
    if contender.name == "ceiling.gather":
        assert float(found.double().sum()) == pytest.approx(float(named.double().sum()), abs=1e-2)
    elif not contender.name.startswith("ceiling"):
        source, target = problem.edge_index if direction == "forward" else problem.edge_index.flip(0)
        weight = problem.weight[:, None] if contender.name == "ours.weighted" else 1
        wanted = torch.zeros(NODES, WIDTH).index_add_(0, target, x[source] * weight)
        tolerance = 3 * (contender.tolerance or 1e-4)
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


@pytest.mark.slow
def test_interleaving_gives_a_value_a_round_and_says_what_is_missing(graph, monkeypatch):
    study = Subject.of("aggregate", graph, WIDTH)
    entries = [
        Entry(name, name, Place(study, 1, warm=True))
        for name in ("ours", "torch.mm", "torch.mm.kept", "ceiling.gather")
    ]
    entries.append(Entry("alone", "ours", Place(study, 1, warm=False, huge_pages=False), alone=True))
    counted: list[int] = []
    monkeypatch.setattr(How, "progress", lambda how, title, total: nullcontext(counted.append))
    found = measured("small", entries, How(1, 2))
    assert sum(counted) == 2 * len(entries) * 3
    forward, backward = found.values()
    assert list(forward) == ["ours", "torch.mm", "ceiling.gather", "alone", "torch.mm.kept"], (
        "what is missing comes last"
    )
    assert forward.pop("torch.mm.kept") == {"missing": "has no forward of its own"}
    assert set(backward) == {"ours", "torch.mm", "torch.mm.kept", "ceiling.gather", "alone"}
    assert all(len(timing["rounds"]) == 2 for each in (forward, backward) for timing in each.values())


@pytest.mark.slow
def test_a_process_that_dies_is_one_sentence(graph):
    (graph / "indices.npy").unlink()
    entry = Entry("ours", "ours", Place(Subject.of("aggregate", graph, WIDTH), 1, warm=False))
    with pytest.raises(HpcgnnError, match=r"measures ours ended with code 1.*indices\.npy"):
        measured("small", [entry], How(1, 1))


def test_a_metis_part_holds_inner_edges_of_one_part(tmp_path):
    require_module("pymetis")
    store, source = graphs.Graphs(tmp_path), "rmat:scale=9,degree=8"
    parts = store.parts(source, 4)
    sizes = np.bincount(parts)
    facts = graphs.facts(store.part(source, 4), WIDTH)
    assert facts["nodes"] in sizes
    whole = graphs.facts(store.whole(source), WIDTH)
    assert facts["entries"] < whole["entries"] == 8 * 512


@pytest.mark.parametrize("order", graphs.ORDERS)
def test_another_order_is_the_same_graph(tmp_path, order):
    csr = graphs.read_graph(graphs.Graphs(tmp_path).whole("rmat:scale=10,degree=4", order))
    usual = graphs.read_graph(graphs.Graphs(tmp_path).whole("rmat:scale=10,degree=4"))
    assert torch.equal(csr.row_lengths().sort().values, usual.row_lengths().sort().values)
    assert csr.num_entries == usual.num_entries


@pytest.mark.slow
def test_the_command_prints_one_object_and_draws_the_picture(tmp_path):
    require_module("matplotlib")
    picture = tmp_path / "roofline.svg"
    options = ["--graph", "rmat:scale=8,degree=4", "--width", "32", "--rounds", "1", "--threads", "1", "--parts", "0"]
    found = told("bench", "aggregate", *options, "--mode", "kernel", "--plot", picture)
    assert {"machine", "threads", "rounds", "graphs", "lines"} <= set(found)
    (graph,) = found["graphs"]
    assert graph["nodes"] == 256
    assert graph["flop"] == 32 * graph["entries"]
    assert {"ours", "torch.mm", "ceiling.gather"} <= set(graph["kernel"]["forward"])
    ours = {"subject": "rmat:scale=8,degree=4, width 32", "mode": "kernel", "direction": "forward", "contender": "ours"}
    (line,) = [line for line in found["lines"] if line["axes"].items() >= ours.items()]
    assert line["figures"]["seconds"] == graph["kernel"]["forward"]["ours"]["seconds"]
    assert "<svg" in picture.read_text()
    rate = aggregate.points(graph)["ours"]
    assert rate[0] == pytest.approx(32 / (32 * 4 + 4))
    assert rate[1] == pytest.approx(graph["flop"] / graph["kernel"]["forward"]["ours"]["seconds"])


def test_quantization_beside_a_copy():
    found = quantize.run(64, 32, (2, 8), 1, 2, lambda count: None)
    timed = {f"{what} {bits}" for what in ("encode", "decode", "aggregate") for bits in (2, 8)}
    assert set(found["kernels"]) == {"copy"} | timed
    assert found["kernels"]["copy"]["of_copy"] == 1
    assert {line["axes"]["step"] for line in found["lines"]} == {"copy"} | timed


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("aggregate --graph rmat:scale=8 --width 8 --width 16", "--width was given 2 times for 1 graphs"),
        ("aggregate --mode user --plot a.svg", "--plot needs the measurements of --mode kernel"),
        ("aggregate --graph nonsense", "is not a source"),
        ("aggregate --graph rmat:scale=5,degree=0", "has no edges"),
        ("aggregate --graph rmat:scale=5 --parts 64", "too few for 64 parts"),
        ("aggregate --graph rmat:scale=5 --parts 0 --device cuda:999", "--device cuda:999 was asked for"),
        ("quantize --device cuda:999", "--device cuda:999 was asked for"),
        ("gemm --shape 8x8", "write ROWSxDEPTHxWIDTH"),
        ("gemm --shape 8x0x8", "is not a shape"),
        ("gemm --dtype int4", "'int4' is not one of"),
        ("sddmm --graph rmat:scale=5 --width 10 --heads 3", "3 heads do not divide the 10 columns"),
        ("sddmm --graph rmat:scale=5 --width 8 --width 16", "--width was given 2 times for 1 graphs"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    assert sentence in refusal("bench", *arguments.split())
