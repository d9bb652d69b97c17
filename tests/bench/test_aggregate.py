"""All contenders compute the same results, and the bench measures, reports and draws the requested ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.shipped_targets import answers
from click.testing import CliRunner
from requires import require_module

from hpcgnn.bench import graphs, plot, report, studies
from hpcgnn.bench.line_up import HOST
from hpcgnn.bench.measure import Entry, Place, Timing, compare, interleave
from hpcgnn.bench.problem import Problem
from hpcgnn.bench.worker import fingerprint
from hpcgnn.cli.bench import bench
from hpcgnn.errors import HpcgnnError

NODES, WIDTH = 60, 32
BENCH = [sys.executable, "-m", "hpcgnn", "bench"]


@pytest.fixture
def graph(tmp_path):
    """A stored multigraph with self-loops, parallel edges and nodes without edges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, NODES - 5, (2, 500))
    dst[:100] = 3
    graphs.write_graph(tmp_path / "graph", src, dst, NODES, "small")
    return tmp_path / "graph"


@pytest.fixture
def problem(graph):
    return Problem(graphs.read_graph(graph), WIDTH)


def expected(problem: Problem, direction: str, weight: torch.Tensor | None = None) -> torch.Tensor:
    """The result, computed from the edge list without SciPy."""
    src, dst = problem.edge_index
    if direction == "backward":
        src, dst = dst, src
    rows = (problem.x if direction == "forward" else problem.dz)[src]
    rows = rows if weight is None else rows * weight[:, None]
    return torch.zeros(NODES, WIDTH).index_add_(0, dst, rows)


# DGL and torch_sparse have no packages for most machines, so they take part only if they are installed.
HERE = [contender for contender in HOST.by_name.values() if not contender.missing()]


def test_what_is_not_here_is_what_cannot_be_installed_everywhere():
    absent = [contender for contender in HOST.by_name.values() if contender not in HERE]
    assert all({"dgl", "torch_sparse"} & set(contender.modules) for contender in absent)


@pytest.mark.parametrize("contender", HERE, ids=lambda contender: contender.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_contender_computes_the_same(problem, contender, direction):
    if direction not in contender.directions:
        return
    result = contender.prepare(problem, direction)()
    if contender.family == "ceiling":
        return
    weight = problem.weight if contender.name == "ours.weighted" else None
    tolerance = 3 * (contender.tolerance or 1e-4)
    wanted = expected(problem, direction, weight)
    torch.testing.assert_close(result, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


def test_the_gather_ceiling_reads_every_row_that_is_named(problem):
    for direction in ("forward", "backward"):
        total = HOST.by_name["ceiling.gather"].prepare(problem, direction)()
        csr, x = problem.operand(direction)
        assert float(total) == pytest.approx(float(x[csr.indices.long()].double().sum()), abs=1e-2)


def test_fingerprints_tell_results_apart():
    result = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    value, size = fingerprint(result)
    other = result.clone()
    other[:20] = result[20:]
    assert fingerprint(result) == [value, size]
    assert abs(fingerprint(other)[0] - value) > 1e-3 * size


@pytest.mark.slow
def test_interleaving_gives_a_value_a_round_and_says_what_is_missing(graph):
    place = Place(studies.aggregation(graph, WIDTH), 1, warm=True)
    entries = [Entry(name, name, place) for name in ("ours", "torch.mm", "torch.mm.kept", "ceiling.gather")]
    entries.append(
        Entry("alone", "ours", Place(studies.aggregation(graph, WIDTH), 1, warm=False, huge_pages=False), alone=True)
    )
    counted: list[int] = []
    outcomes = interleave(entries, 2, counted.append)
    assert sum(counted) == 2 * len(entries) * 3
    assert set(outcomes["forward"].timings) == {"ours", "torch.mm", "ceiling.gather", "alone"}
    assert outcomes["forward"].missing == {"torch.mm.kept": "has no forward of its own"}
    assert set(outcomes["backward"].timings) == {"ours", "torch.mm", "torch.mm.kept", "ceiling.gather", "alone"}
    assert all(len(timing.rounds) == 2 for outcome in outcomes.values() for timing in outcome.timings.values())


@pytest.mark.slow
def test_a_process_that_dies_is_one_sentence(graph):
    (graph / "indices.npy").unlink()
    with pytest.raises(HpcgnnError, match=r"measures ours ended with code 1.*indices\.npy"):
        interleave(
            [Entry("ours", "ours", Place(studies.aggregation(graph, WIDTH), 1, warm=False))], 1, lambda count: None
        )


def test_the_median_of_rounds():
    timing = Timing([3.0, 1.0, 2.0])
    assert (timing.seconds, timing.spread) == (2.0, 1.0)


def timings(**milliseconds: float) -> dict:
    return {name.replace("_", "."): {"seconds": value / 1000} for name, value in milliseconds.items()}


def answered(kernel: dict, user: dict | None = None, **facts: object) -> dict[str, list[str]]:
    """The verdicts of the study's targets on one graph with these measurements."""
    both = {"kernel": kernel} | ({"user": user} if user else {})
    modes = {mode: {"forward": found} for mode, found in both.items()}
    graph = {"name": "g", "width": 8, "beyond_caches": True} | modes | facts
    return answers("kernels", {"lines": report.lines_of(graph)})


def test_targets_are_about_every_way_of_a_library():
    kernel = timings(ours=10, ours_jit=15, ours_int8=5, dgl=25, torch_mm=90, torch_mm_kept=20, ceiling_gather=9)
    kernel |= {"ours@1": {"seconds": 0.019}, "ceiling.gather@1": {"seconds": 0.018}}
    kernel |= {"pyg.layer": {"missing": "no module"}}
    assert answered(kernel) == {
        "DGL's libxsmm kernel relative to hpcgnn": ["yes"],
        "torch.sparse.mm relative to hpcgnn": ["yes", "no"],
        "gathering the same rows relative to hpcgnn": ["yes"],
        "numba kernels relative to native kernels": ["yes"],
        "thread scaling relative to that of gathering rows": ["yes"],
        "float32 relative to features stored in 8 bits, beyond the caches": ["yes"],
    }, "PyG's is not measured"


@pytest.mark.parametrize(("scale", "reached"), [(1.001, "yes"), (0.999, "no")])
def test_each_target_of_aggregation_has_its_bound(scale, reached):
    """Rivals, ceilings and float32 are exactly as slow as they must be, and then a bit faster."""
    ours = {"ours": {"seconds": 1.0}}
    kernel = {"dgl": 2.0, "torch.mm": 3.0, "pyg.layer": 8.0, "pyg.index_add": 8.0, "ceiling.gather": 0.85}
    rivals = {name: {"seconds": factor * scale} for name, factor in kernel.items()}
    others = {"ours.jit": {"seconds": 2.0 / scale}, "ours.int8": {"seconds": 1 / 1.8 / scale}}
    others |= {"ours@1": {"seconds": 1.9 * scale}, "ceiling.gather@1": {"seconds": 1.9 * 0.85 * scale / 0.95}}
    user = {"dgl": 3.0, "torch.mm": 4.0, "pyg.layer": 25.0, "pyg.index_add": 25.0}
    found = answered(ours | rivals | others, ours | {name: {"seconds": f * scale} for name, f in user.items()})
    assert len(found) == 10
    assert {each for every in found.values() for each in every} == {reached}


def test_no_target_is_about_8_bits_where_caches_hold_the_rows():
    kernel = timings(ours=1, ours_int8=1)
    assert list(answered(kernel)) == ["float32 relative to features stored in 8 bits, beyond the caches"]
    assert answered(kernel, beyond_caches=False) == {}


def test_a_metis_part_holds_inner_edges_of_one_part(tmp_path):
    require_module("pymetis")
    store, source = graphs.Graphs(tmp_path), "rmat:scale=9,degree=8"
    parts = store.parts(source, 4)
    sizes = np.bincount(parts)
    facts = graphs.facts(store.part(source, 4))
    assert facts["nodes"] in sizes
    whole = graphs.facts(store.whole(source))
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
    command = [*BENCH, "aggregate", *options, "--mode", "kernel", "--json", "--plot", str(picture)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert {"machine", "threads", "rounds", "graphs", "lines"} <= set(found)
    (graph,) = found["graphs"]
    assert graph["nodes"] == 256
    assert graph["flop"] == 32 * graph["entries"]
    assert {"ours", "torch.mm", "ceiling.gather"} <= set(graph["kernel"]["forward"])
    ours = {"subject": "rmat:scale=8,degree=4, width 32", "mode": "kernel", "direction": "forward", "contender": "ours"}
    (line,) = [line for line in found["lines"] if line["axes"].items() >= ours.items()]
    assert line["figures"]["seconds"] == graph["kernel"]["forward"]["ours"]["seconds"]
    assert "<svg" in picture.read_text()
    rate = plot.points(graph)["ours"]
    assert rate[0] == pytest.approx(32 / (32 * 4 + 4))
    assert rate[1] == pytest.approx(graph["flop"] / graph["kernel"]["forward"]["ours"]["seconds"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--graph", "rmat:scale=8", "--width", "8", "--width", "16"], "--width was given 2 times for 1 graphs"),
        (["--mode", "user", "--plot", "a.svg"], "--plot needs the measurements of --mode kernel"),
        (["--graph", "nonsense"], "is not a source"),
        (["--graph", "rmat:scale=5,degree=0"], "has no edges"),
        (["--graph", "rmat:scale=5", "--parts", "64"], "too few for 64 parts"),
    ],
)
def test_bad_input_is_one_sentence(arguments, said):
    result = CliRunner().invoke(bench, ["aggregate", *arguments])
    assert result.exit_code != 0
    assert isinstance(result.exception, (HpcgnnError, SystemExit))  # SystemExit is click's, after its message
    message = result.stderr if isinstance(result.exception, SystemExit) else str(result.exception)
    assert said in message
    assert not result.stdout


@pytest.mark.parametrize("name", ["aggregate", "quantize"])
def test_help_has_an_example(name):
    assert f"hpcgnn bench {name} --" in CliRunner().invoke(bench, [name, "--help"]).output


def test_quantization_beside_a_copy():
    from hpcgnn.bench import quantize

    found = quantize.run(64, 32, (2, 8), 1, 2, lambda count: None)
    timed = {f"{what} {bits}" for what in ("encode", "decode", "aggregate") for bits in (2, 8)}
    assert set(found["kernels"]) == {"copy"} | timed
    assert found["kernels"]["copy"]["of_copy"] == 1
    assert {line["axes"]["step"] for line in found["lines"]} == {"copy"} | timed
    for share, reached in ((0.6, "yes"), (0.59, "no")):
        shares = {"encode 2": share, "decode 2": share, "encode 8": 0.1, "aggregate 2": 0.1}
        told = [{"axes": {"step": step}, "figures": {"share_of_copy": value}} for step, value in shares.items()]
        assert answers("kernels", {"lines": told}) == {"bandwidth of 2-bit codecs relative to a copy": [reached] * 2}


@pytest.mark.parametrize("found", [[2.0, 1.0], [float("nan"), 1.0]])
def test_a_contender_that_computes_something_else_is_refused(found):
    entry = Entry("other", "other", Place(studies.aggregation(Path(), 1), 1, warm=True))
    compare(entry, 1e-4, [1.0, 1.0], [1.0, 1.0])
    with pytest.raises(HpcgnnError, match="other and hpcgnn compute different results"):
        compare(entry, 1e-4, found, [1.0, 1.0])
