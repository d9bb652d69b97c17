"""Aggregations that gather bfloat16 rows (``--compute bf16``): rows are rounded once, and sums are float32."""

from __future__ import annotations

import pytest
import small_graphs
import torch

import hpcgnn
from hpcgnn.kernels import narrow
from hpcgnn.nn import attention_step, linear_map
from hpcgnn.nn.aggregators import make_aggregator
from hpcgnn.nn.config import BF16, EMULATED, FLOAT32
from hpcgnn.world.thread_world import on_threads

HALF_STEP = 2.0**-8  # the largest relative error of a value with 8 significant bits
WIDTH = 8


@pytest.fixture
def everywhere(monkeypatch):
    """Rows are rounded whatever their number and width."""
    for module in (linear_map, attention_step):  # attention_step has the function under a name of its own
        monkeypatch.setattr(module, "gathers_bf16", lambda csr, width: True)


def reference(made, exact, x):
    """The float64 aggregation of rows that are rounded as those of ``made`` are, and of the magnitudes of ``x``."""
    right = made.linear.right
    rounded = x.bfloat16().double() if right is None else (x * right).bfloat16().double() / exact.linear.right
    return exact(rounded), exact(x.abs().double())


def on_rank(world, path, kind):
    """In both directions: the largest difference from float64 sums of rounded rows; the largest difference from those of exact
    rows, relative to the allowed one; and the first for float32 rows."""
    graph = hpcgnn.load(path, world)
    made = [make_aggregator(graph, kind, dtype=dtype) for dtype in (torch.float32, torch.float32, torch.float64)]
    made[0].use_compute(EMULATED)
    x = torch.randn(graph.num_nodes, WIDTH, generator=torch.Generator().manual_seed(world.rank))
    found = []
    for direction in ("forward", "backward"):
        one, float32, exact = made if direction == "forward" else [each.reverse for each in made]
        z, (wanted, magnitudes) = one(x).double(), reference(one, exact, x)
        of_exact = exact(x.double())
        allowed = HALF_STEP * magnitudes + 1e-5
        found.append([
            float((z - wanted).abs().max()),
            float(((z - of_exact).abs() / allowed).max()),
            float((float32(x).double() - wanted).abs().max()),
        ])  # fmt: skip
    return found


@pytest.mark.parametrize("kind", ["sum", "mean", "gcn"])
def test_sums_are_those_of_rounded_rows(tmp_path, everywhere, kind):
    """Rows are rounded before they are added up, also for other ranks; nothing else is."""
    arrays = small_graphs.random_multigraph(weighted=kind == "gcn")
    path = small_graphs.in_parts(tmp_path / "parts.h5", arrays, 3)
    for of_rank in on_threads(3, lambda world: on_rank(world, path, kind)):
        for difference, share_of_allowed, without in of_rank:
            assert difference < 2e-5
            assert share_of_allowed <= 1
            assert without > 50 * difference  # the rows of the test are not exact in bfloat16


@pytest.mark.parametrize(("compute", "isa", "dtype"), [
    (FLOAT32, "avx512", torch.float32),
    (BF16, "avx512", torch.bfloat16),
    (BF16, "avx2", torch.float32),  # where the conversion takes as long as it saves
    (EMULATED, "avx2", torch.bfloat16),
])  # fmt: skip
def test_arithmetics_and_instruction_sets_that_round_rows(tmp_path, monkeypatch, everywhere, compute, isa, dtype):
    monkeypatch.setattr(narrow, "isa", lambda: isa)
    monkeypatch.setattr(narrow, "resolve", lambda *given, **tensors: "native")
    graph = hpcgnn.load(small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 1))
    made = make_aggregator(graph, "gcn")
    made.use_compute(compute)
    for each in (made, made.reverse):
        assert each.rows.scaled(torch.randn(graph.num_nodes, WIDTH)).dtype == dtype
        assert each.rows.scaled(torch.randn(graph.num_nodes, WIDTH).double()).dtype == torch.float64


def gathered(monkeypatch, model, features):
    """The types of the rows that the aggregations of a training step add up, whole or in blocks."""
    types = []

    def noting(before):
        return lambda csr, x, *rest, **named: (types.append(x.dtype), before(csr, x, *rest, **named))[1]

    with monkeypatch.context() as patch:
        for name in ("multiply", "products_by_blocks"):
            patch.setattr(linear_map, name, noting(getattr(linear_map, name)))
        model.begin_epoch(0)
        model(features).square().sum().backward()
    return types


@pytest.mark.parametrize(("model", "rows"), [
    ("sage", torch.bfloat16), ("gcn", torch.bfloat16), ("gin", torch.bfloat16), ("gcnii", torch.bfloat16),
    ("gat", torch.float32),  # copies for attention stay exact
])  # fmt: skip
def test_all_sums_of_a_model_read_rounded_rows(tmp_path, monkeypatch, everywhere, model, rows):
    graph = hpcgnn.load(small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 1))
    built = hpcgnn.build_model(hpcgnn.ModelConfig(model, layers=3, hidden=WIDTH), graph, compute=EMULATED)
    types = gathered(monkeypatch, built, graph.features)
    assert set(types) <= {rows}
    assert len(types) >= (5 if model != "gat" else 0)  # forward and backward
    built.use_compute(FLOAT32)
    assert torch.bfloat16 not in gathered(monkeypatch, built, graph.features)


def test_an_aggregation_that_is_kept_for_all_epochs_is_exact(tmp_path, everywhere):
    """It is made once, so there is nothing to gain."""
    graph = hpcgnn.load(small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 1))
    how = {"compute": EMULATED, "keep_input_aggregation": True}
    built = hpcgnn.build_model(hpcgnn.ModelConfig("sage", layers=2, hidden=4), graph, **how)
    assert torch.equal(built.aggregators[0](graph.features), make_aggregator(graph, "mean")(graph.features))
