"""Dense products in bfloat16: their errors, the conditions for their use, and the operations that stay in float32."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks import computes

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.kernels import dense
from hpcgnn.nn import compute
from hpcgnn.nn.compute import Bfloat16, Rounded, check_compute
from hpcgnn.nn.config import AUTO, BF16, EMULATED, FLOAT32
from hpcgnn.nn.linear import matmul
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.sources.convert import convert
from hpcgnn.world.thread_world import one_rank

# Rounding to 8 bits of mantissa has at most this relative error.
HALF_STEP = 2.0**-8


@pytest.fixture(params=["kernels", "torch"])
def way(request, monkeypatch):
    """The implementation of bfloat16 products."""
    if request.param == "kernels" and not dense.has_bf16():
        pytest.skip("this CPU has no AVX512_BF16")
    monkeypatch.setattr(compute, "bfloat16", lambda backend="auto", torch_device=None: Bfloat16(request.param, 2.0))
    return request.param


def products(x: torch.Tensor, weight: torch.Tensor, upstream: torch.Tensor, *, rounded: bool) -> list[torch.Tensor]:
    """``[y, dx, dW]``."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = matmul(Rounded(x) if rounded else x, weight)
    y.backward(upstream)
    return [y.detach(), x.grad, weight.grad]


@pytest.mark.parametrize("shape", [(32768, 256, 40), (5000, 128, 256), (16411, 67, 43)])
def test_products_differ_by_what_rounding_allows(shape, way):
    """Two operands, and torch's result, are rounded: each by half a step of the sum of magnitudes, for every element."""
    rows, in_width, out_width = shape
    x, weight, upstream = torch.randn(rows, in_width), torch.randn(in_width, out_width), torch.randn(rows, out_width)
    assert compute.pays(*shape)
    found = products(x, weight, upstream, rounded=True)
    wanted = products(x.double(), weight.double(), upstream.double(), rounded=False)
    magnitudes = products(x.double().abs(), weight.double().abs(), upstream.double().abs(), rounded=False)
    for one, exact, magnitude in zip(found, wanted, magnitudes, strict=True):
        assert one.dtype == torch.float32
        # 2 % more for products of rounding errors, and for the float32 sums
        assert bool(((one - exact).abs() <= 1.02 * (3 if way == "torch" else 2) * HALF_STEP * magnitude).all())
        assert float((one - exact).norm() / exact.norm()) < HALF_STEP  # errors have both signs, so most of them cancel
    assert not torch.equal(found[0], x @ weight)


def test_small_products_stay_float32(way):
    """They are faster in float32. This holds for ranks without nodes, too."""
    for shape in ((0, 256, 256), (100, 64, 64), (10**6, 256, 2)):
        assert not compute.pays(*shape)
    x, weight, upstream = torch.randn(100, 64), torch.randn(64, 32), torch.randn(100, 32)
    found, wanted = (products(x, weight, upstream, rounded=rounded) for rounded in (True, False))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_what_is_kept_for_the_gradients_is_shared_and_for_torch_half_as_large(way):
    """The operand is kept in the form in which its product has read it, and gives the same gradient of a weight alone."""
    x, weights, upstream = torch.randn(32768, 64), torch.randn(2, 64, 40), torch.randn(32768, 40)
    operand, kept = Rounded(x.requires_grad_()), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        for weight in weights.requires_grad_():
            operand.times(weight, None, None, "auto")
    large = [tensor for tensor in kept if tensor.numel() == x.numel()]
    form = torch.bfloat16 if way == "torch" else torch.float32
    assert {tensor.dtype for tensor in large} == {form}
    assert len({tensor.data_ptr() for tensor in large}) == 1
    assert (large[0].data_ptr() == x.data_ptr()) == (way == "kernels")
    tensors, make = operand.kept()
    assert [tensor.dtype for tensor in tensors] == [form]
    wanted = products(x.detach(), weights[0].detach(), upstream, rounded=True)[2]
    for each in (operand, make(tensors)):
        assert torch.equal(each.weight_gradient(upstream), wanted)
    assert not torch.equal(dense.weight_gradient(x.detach(), upstream)[0], wanted)


# -- the choice of the arithmetic -------------------------------------------------------------------------------------


@pytest.fixture
def worth(monkeypatch):
    """Set the speedup that is measured for bfloat16; 0 stands for emulation."""

    def set_speedup(speedup: float) -> None:
        monkeypatch.setattr(compute, "bfloat16", lambda backend="auto", torch_device=None: Bfloat16("torch", speedup))
        monkeypatch.setattr(compute, "is_native", lambda torch_device=None: speedup > 0)

    return set_speedup


@pytest.mark.parametrize(("speedup", "chosen", "said"), [
    (3.0, BF16, None),
    (1.0, FLOAT32, None),  # neither a certain gain nor a certain loss
    (0.5, FLOAT32, "2.0 times as long"),
    (0.0, FLOAT32, "no bfloat16 arithmetic"),
])  # fmt: skip
def test_auto_takes_what_is_faster_and_bf16_is_refused_where_it_is_slower(worth, speedup, chosen, said):
    worth(speedup)
    choose = ThreadPool(2).run
    assert choose(computes.choose, AUTO) == [chosen] * 2
    assert choose(computes.choose, AUTO, torch.float64) == [FLOAT32] * 2
    assert choose(computes.choose, FLOAT32) == [FLOAT32] * 2
    assert choose(computes.choose, EMULATED) == [EMULATED] * 2
    if said is None:
        assert choose(computes.choose, BF16) == [BF16] * 2
        return
    for sentence in choose(computes.refused, BF16):
        assert said in sentence
        assert "--compute bf16-emulated" in sentence


def test_names_and_types_that_cannot_be_are_refused(monkeypatch):
    check_compute(FLOAT32, torch.float64)
    with pytest.raises(HpcgnnError, match="tf32 is for GPUs of NVIDIA from Ampere on, not for this CPU"):
        check_compute("tf32", torch.float32)
    for name in (BF16, EMULATED, "int8", "int8-always"):
        with pytest.raises(HpcgnnError, match=r"is for models in float32, not in torch\.float64"):
            check_compute(name, torch.float64)
    for name, said in (("int3", "must be one of"), ("int4", "does not multiply 4-bit integers")):
        with pytest.raises(HpcgnnError, match=said):
            check_compute(name, torch.float32)
    monkeypatch.setattr(compute, "_multiplies", lambda where: False)
    with pytest.raises(HpcgnnError, match="no bfloat16 products"):
        check_compute(EMULATED, torch.float32)


@pytest.mark.parametrize(("kernels", "torchs", "units", "found"), [
    (0.5, 0.9, True, Bfloat16("kernels", 2.0)),  # seconds, where float32 takes 1
    (0.5, 0.48, True, Bfloat16("kernels", 2.0)),  # so close that it could be the opposite the next time, with other bits
    (2.0, 0.25, True, Bfloat16("torch", 4.0)),
    (2.0, 1.75, True, Bfloat16("kernels", 0.5)),
    (0.5, 0.1, False, Bfloat16("kernels", 2.0)),  # both are about as fast without matrix units: torch is not measured
    (None, 1.25, True, Bfloat16("torch", 0.8)),  # None: this CPU does not have it
    (None, None, False, Bfloat16("torch", 0.0)),
])  # fmt: skip
def test_what_a_cpu_has_is_timed_and_compared(monkeypatch, kernels, torchs, units, found):
    spent = []
    by_kernels = {"float32": 1.0, "bf16": kernels}
    multiplied = lambda x, weight, backend, name: spent.append(by_kernels[name])  # noqa: E731
    monkeypatch.setattr(compute, "multiply_and_back", multiplied)
    monkeypatch.setattr(compute, "_by_torch", lambda x, weight: spent.append(torchs))

    def least(calls, device, rounds, is_clear):
        return {name: (call(), spent[-1])[1] for name, call in calls.items()}

    monkeypatch.setattr(compute, "least_seconds", least)
    monkeypatch.setattr(compute, "torch_has_it", lambda: torchs is not None)
    monkeypatch.setattr(compute, "has_matrix_units", lambda: units)
    monkeypatch.setattr(dense, "has_bf16", lambda backend="auto", torch_device=None: kernels is not None)
    assert compute.bfloat16.__wrapped__() == found


@pytest.mark.parametrize(("known", "kept"), [(True, BF16), (False, FLOAT32)])
def test_a_resumed_run_measures_on_other_hardware_only(worth, monkeypatch, known, kept):
    """A measurement that says slower may be a disturbed one: on the same CPU it does not change the run's arithmetic."""
    worth(0.5)
    monkeypatch.setattr(compute, "processor", lambda: "this CPU")
    before = {"asked": AUTO, "chosen": BF16, "hardware": "this CPU" if known else "another CPU"}
    assert ThreadPool(2).run(computes.resume, before) == [kept] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("onednn", "said"), [
    ("AVX2", "False Bfloat16(way='torch', speedup=0.0)"), ("avx512_core", "False"),
])  # fmt: skip
def test_without_the_instructions_nothing_is_measured_and_nothing_is_native(onednn, said):
    """This must hold on any CPU, because kernels and oneDNN are kept from using the instructions."""
    code = "from hpcgnn.nn.compute import bfloat16, is_native; print(is_native(), bfloat16())"
    avx2 = {"HPCGNN_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": onednn}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | avx2, check=True
    )
    assert ran.stdout.strip().startswith(said)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """scikit-learn's digits in two parts."""
    folder = tmp_path_factory.mktemp("digits")
    convert("digits", folder / "graph.h5")
    partition(one_rank(), folder / "graph.h5", folder / "parts.h5", PartitionOptions(2, jobs=1))
    return folder / "parts.h5"


def last_checkpoint(run: Path) -> dict:
    return torch.load(run / "checkpoints" / "last.pt", weights_only=True)


def test_a_run_in_bfloat16_resumes_with_the_same_bytes_and_may_change_over(mpi_ranks, digits, tmp_path):
    first = digits, "--layers", 3, "--hidden", 256, "--label-propagation", 0.62  # the middle layer is large enough

    def train(name: str, epochs: int, arithmetic: str, *more: object) -> tuple[list[dict], dict]:
        """The lines of its epochs, and its last checkpoint."""
        out = tmp_path / name
        mpi_ranks(2).command("train", *more, "--out", out, "--epochs", epochs, "--compute", arithmetic, "--quiet")
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return lines, last_checkpoint(out)

    (exact, _), (lines, whole) = train("exact", 4, FLOAT32, *first), train("whole", 4, EMULATED, *first)
    assert exact[0]["loss"] != lines[0]["loss"]
    assert [each["loss"] for each in exact] == pytest.approx([each["loss"] for each in lines], rel=0.02)
    assert {value.dtype for value in whole["model"].values()} == {torch.float32}
    train("broken", 2, EMULATED, *first)
    _, broken = train("broken", 4, EMULATED, "--resume")
    assert all(map(torch.equal, whole["model"].values(), broken["model"].values()))
    lines, _ = train("broken", 5, FLOAT32, "--resume")
    assert [line["compute"] for line in lines] == [EMULATED] * 4 + [FLOAT32]


@pytest.fixture
def pretending(mpi_ranks, tmp_path):
    """Run ``train`` on ranks whose CPUs pretend to be this much faster at bfloat16, with the parts of a small graph; the value is
    what rank 0 printed as errors, and the exit codes.
    """
    small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 2)

    def train(speedups: tuple[float, float], *flags: object) -> tuple[list[int], str]:
        words = ["train", tmp_path / "parts.h5", "--out", tmp_path / "run", *flags]
        codes, errors = zip(*mpi_ranks(2).run(computes.pretending, speedups, words), strict=True)
        return list(codes), "".join(errors)

    return train


def test_one_rank_without_it_ends_all_with_one_sentence(pretending):
    codes, errors = pretending((2.0, 0.0), "--compute", "bf16")
    assert 0 not in codes
    assert errors.count("pass --compute bf16-emulated") == 1
    assert "Traceback" not in errors


def test_a_resumed_run_keeps_what_auto_chose_as_long_as_it_can(pretending, tmp_path):
    def chosen() -> tuple[str, str]:
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert 'compute = "auto"' in (tmp_path / "run" / "config.toml").read_text()
        kept = last_checkpoint(tmp_path / "run")["compute"]
        assert kept.items() >= {"asked": AUTO, "chosen": summary["compute"]}.items()
        return summary["compute_asked"], summary["compute"]

    assert pretending((2.0, 2.0), "--epochs", 1, "--quiet")[0] == [0, 0]
    assert chosen() == (AUTO, BF16)
    pretending((1.0, 2.0), "--epochs", 2, "--resume", "--quiet")  # it would choose float32, but can continue
    assert chosen() == (AUTO, BF16)
    codes, errors = pretending((2.0, 0.5), "--epochs", 3, "--resume")
    assert (codes, errors.count("goes on in float32")) == ([0, 0], 1)
    assert chosen() == (AUTO, FLOAT32)
    pretending((2.0, 2.0), "--epochs", 4, "--resume", "--quiet")  # it does not change back either
    assert chosen() == (AUTO, FLOAT32)
