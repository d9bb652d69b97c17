"""Dense products in bfloat16: how far from float32 they may be, where they are used, and what stays float32."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import small_graphs
import torch

from hpcgnn.errors import HpcgnnError
from hpcgnn.kernels import dense
from hpcgnn.nn import compute
from hpcgnn.nn.compute import Rounded, check_compute
from hpcgnn.nn.linear import LateWeight, matmul

HPCGNN = ["-m", "hpcgnn"]
# Rounding to 8 bits of mantissa errs by at most this, relative to the number.
HALF_STEP = 2.0**-8


@pytest.fixture(params=["kernels", "torch"])
def way(request, monkeypatch):
    """Who multiplies bfloat16."""
    if request.param == "torch":
        monkeypatch.setattr(dense, "has_bf16", lambda backend="auto": False)
    elif not dense.has_bf16():
        pytest.skip("this CPU has no AVX512_BF16")
    return request.param


def products(x: torch.Tensor, weight: torch.Tensor, upstream: torch.Tensor, *, rounded: bool) -> list[torch.Tensor]:
    """``[y, dx, dW]``."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = matmul(Rounded(x) if rounded else x, weight)
    y.backward(upstream)
    return [y.detach(), x.grad, weight.grad]


@pytest.mark.parametrize("shape", [(32768, 256, 40), (5000, 128, 256), (16411, 67, 33)])
def test_products_differ_by_what_rounding_allows(shape, way):
    """Two operands, and torch's result, are rounded: by a half step each of the sum of magnitudes, for every element."""
    rows, in_width, out_width = shape
    x, weight, upstream = torch.randn(rows, in_width), torch.randn(in_width, out_width), torch.randn(rows, out_width)
    assert compute.pays(*shape)
    found = products(x, weight, upstream, rounded=True)
    wanted = products(x.double(), weight.double(), upstream.double(), rounded=False)
    magnitudes = products(x.double().abs(), weight.double().abs(), upstream.double().abs(), rounded=False)
    for one, exact, magnitude in zip(found, wanted, magnitudes, strict=True):
        assert one.dtype == torch.float32
        # 2 % more for the products of roundings and the float32 sums
        assert bool(((one - exact).abs() <= 1.02 * (3 if way == "torch" else 2) * HALF_STEP * magnitude).all())
        assert float((one - exact).norm() / exact.norm()) < HALF_STEP  # they err both ways, so most of it cancels
    assert not torch.equal(found[0], x @ weight)


def test_operands_that_bfloat16_holds_give_exact_gradients_and_sums(way):
    """Small whole numbers: nothing is rounded, so this is the same product in every way."""
    x, weight = torch.randint(-2, 3, (32768, 64)).float(), torch.randint(-1, 2, (64, 32)).float()
    upstream = torch.zeros(32768, 32)
    upstream[::512] = 1
    found, wanted = (products(x, weight, upstream, rounded=rounded) for rounded in (True, False))
    assert wanted[0].abs().max() <= 256
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_small_products_stay_float32(way):
    """They are faster so; also where a rank has no nodes."""
    for shape in ((0, 256, 256), (100, 64, 64)):
        assert not compute.pays(*shape)
    assert not compute.pays(10**6, 256, 2)
    assert compute.pays(10**6, 8, 8) == compute.pays(1000, 64, 64) == (way == "kernels")
    x, weight, upstream = torch.randn(100, 64), torch.randn(64, 32), torch.randn(100, 32)
    found, wanted = (products(x, weight, upstream, rounded=rounded) for rounded in (True, False))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_what_is_kept_for_the_gradients_is_shared_and_for_torch_half_as_large(way):
    x, weights = torch.randn(32768, 64, requires_grad=True), torch.randn(2, 64, 64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        operand = Rounded(x)
        for weight in weights:
            operand.times(weight)
    large = [tensor for tensor in kept if tensor.numel() == x.numel()]
    assert {tensor.dtype for tensor in large} == {torch.bfloat16 if way == "torch" else torch.float32}
    assert len({tensor.data_ptr() for tensor in large}) == 1
    assert (large[0].data_ptr() == x.data_ptr()) == (way == "kernels")


def test_a_weights_gradient_alone_is_the_one_of_the_product(way):
    x, weight, upstream = torch.randn(32768, 64), torch.randn(64, 32), torch.randn(32768, 32)
    wanted = products(x, weight, upstream, rounded=True)[2]
    assert torch.equal(Rounded(x).weight_gradient(upstream), wanted)
    assert not torch.equal(dense.weight_gradient(x, upstream)[0], wanted)


def test_a_late_weights_operand_is_gone_with_its_gradient(way):
    """Not with the graph, in which the operands of all layers would be there at once."""
    weight = torch.randn(64, 32, requires_grad=True)
    operand = Rounded(torch.randn(32768, 64))
    kept = weakref.ref(operand)
    y = LateWeight(weight).multiply(operand)
    del operand
    assert kept() is not None
    y.sum().backward()
    assert kept() is None
    assert weight.grad is not None


def test_a_cpu_without_it_is_refused_and_an_emulating_one_warned(monkeypatch):
    assert check_compute("float32", torch.float64) is None
    with pytest.raises(HpcgnnError, match="for models in float32"):
        check_compute("bf16", torch.float64)
    with pytest.raises(HpcgnnError, match="must be one of"):
        check_compute("int4", torch.float32)
    monkeypatch.setattr(compute, "is_native", lambda: False)
    assert "emulates" in check_compute("bf16", torch.float32)
    monkeypatch.setattr(compute, "_multiplies", lambda: False)
    with pytest.raises(HpcgnnError, match="no bfloat16 products"):
        check_compute("bf16", torch.float32)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """scikit-learn's digits in two parts."""
    folder = tmp_path_factory.mktemp("digits")
    for command in (["convert", "digits", folder / "graph.h5"],
                    ["partition", folder / "graph.h5", folder / "parts.h5", "--parts", 2]):  # fmt: skip
        subprocess.run([sys.executable, *HPCGNN, *map(str, command), "--quiet"], check=True)
    return folder / "parts.h5"


def last_checkpoint(run: Path) -> dict:
    return torch.load(run / "checkpoints" / "last.pt", weights_only=True)


def test_training_reaches_the_accuracy_of_float32_and_may_change_over(mpi_ranks, digits, tmp_path):
    flags = ["--epochs", 30, "--layers", 3, "--hidden", 256, "--quiet"]  # its middle layer is large enough
    summaries = {}
    for name in compute.COMPUTES:
        mpi_ranks(2).command("train", digits, "--out", tmp_path / name, *flags, "--compute", name)
        summaries[name] = json.loads((tmp_path / name / "summary.json").read_text())
        assert summaries[name]["compute"] == name
        assert {value.dtype for value in last_checkpoint(tmp_path / name)["model"].values()} == {torch.float32}
    assert summaries["bf16"]["test_metric_at_best_val"] > summaries["float32"]["test_metric_at_best_val"] - 0.02
    losses = [json.loads((tmp_path / n / "metrics.jsonl").read_text().splitlines()[0])["loss"] for n in summaries]
    assert losses[0] != losses[1]  # it did compute otherwise
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
    mpi_ranks(2).command("train", "--out", tmp_path / "bf16", "--resume", "--epochs", 32, "--compute", "float32")
    assert last_checkpoint(tmp_path / "bf16")["next_epoch"] == 32


def test_a_resumed_bfloat16_run_has_the_same_bytes(mpi_ranks, digits, tmp_path):
    flags = ["--layers", 3, "--hidden", 256, "--quiet", "--compute", "bf16", "--label-propagation", 0.62]
    for name, epochs in (("whole", [6]), ("broken", [3, 6])):
        for count in epochs:
            resume = ["--resume"] if count == 6 and name == "broken" else []
            mpi_ranks(2).command("train", digits, "--out", tmp_path / name, *flags, "--epochs", count, *resume)
    whole, broken = (last_checkpoint(tmp_path / name)["model"] for name in ("whole", "broken"))
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


REFUSING = """
import sys
from hpcgnn.nn import compute
from hpcgnn.comm import MpiWorld
compute._multiplies = lambda: MpiWorld().rank != 1  # one of the ranks is on another machine
from hpcgnn.cli.main import main
main()
"""


def test_one_rank_without_it_ends_all_with_one_sentence(mpirun, tmp_path):
    graph = small_graphs.random_multigraph()
    small_graphs.write_parts(tmp_path / "parts.h5", graph, small_graphs.random_parts(60, 2), 2)
    command = ["train", tmp_path / "parts.h5", "--out", tmp_path / "run", "--compute", "bf16"]
    result = mpirun(2, ["-c", REFUSING, *command], check=False)
    assert result.returncode != 0
    assert result.stderr.count("no bfloat16 products") == 1
    assert "Traceback" not in result.stderr
