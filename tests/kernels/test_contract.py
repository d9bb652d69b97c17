"""Every backend meets the contract, an external backend needs only one package, and one place chooses the backend."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from quantized_rows import dequantize, quantize
from under_test import BACKENDS as BUILT_IN

from hpcgnn import kernels
from hpcgnn.kernels import backend as dispatcher
from hpcgnn.kernels import contract
from hpcgnn.kernels.backend import FEATURES, Backend, choose, resolve
from hpcgnn.kernels.contract import OPERATORS, SPMM, Operators
from hpcgnn.kernels.messages import spmm_rows
from hpcgnn.kernels.native import library
from hpcgnn.kernels.rows import ROWS

ROOT = Path(kernels.__file__).parents[2]
CSR = kernels.Csr(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), 2)


def functions_of(protocol: type) -> dict[str, inspect.Signature]:
    """The functions of a protocol, without ``self``."""
    found = {}
    for name, function in vars(protocol).items():
        if not name.startswith("_") and inspect.isfunction(function):
            signature = inspect.signature(function)
            found[name] = signature.replace(parameters=list(signature.parameters.values())[1:])
    return found


def differences(kernels_of_one: object, protocol: type) -> list[str]:
    """The differences between a module and its protocol. Annotations are left to mypy."""
    found = []
    for name, wanted in functions_of(protocol).items():
        function = getattr(kernels_of_one, name, None)
        if function is None:
            found.append(f"{name} is missing")
            continue
        given = list(inspect.signature(function).parameters.values())
        asked = [parameter.name for parameter in wanted.parameters.values()]
        if [parameter.name for parameter in given[: len(asked)]] != asked:
            found.append(f"{name} takes {[parameter.name for parameter in given]}, not {asked}")
        if any(parameter.default is parameter.empty for parameter in given[len(asked) :]):
            found.append(f"{name} needs more than {asked}")
    return found


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_backend_has_every_function_with_its_parameters(name):
    assert all(functions_of(operator.protocol) for operator in OPERATORS)
    found = {operator.name: differences(choose(operator, name), operator.protocol) for operator in OPERATORS}
    assert found == {operator.name: [] for operator in OPERATORS}


class Wrong:
    """Kernels that lack a function, have an argument with another name, and need an additional one."""

    @staticmethod
    def encode_rows(x, rows, bits, key, buffer, payload, params_at):
        """Its argument payload_at is called payload."""

    @staticmethod
    def decode_rows(buffer, payload_at, params_at, bits, out, rows, accumulate, threads):
        """It needs an argument threads."""


def test_what_breaks_the_contract_is_noticed():
    found = differences(Wrong, contract.MessageKernels)
    assert [line.split()[:2] for line in found] == [
        ["encode_rows", "takes"],
        ["decode_rows", "needs"],
        ["spmm_rows", "is"],
    ]


MISTYPED = """
from hpcgnn.kernels.contract import Operators
from hpcgnn.kernels.reference import edges, rows, spmm

good = Operators(spmm=spmm, edges=edges, rows=rows)
mixed_up = Operators(spmm=edges)


class Narrow:
    @staticmethod
    def pack_bf16(x: int, out: int) -> None: ...

    @staticmethod
    def unpack_bf16(x: int, out: int) -> None: ...


mistyped = Operators(narrow=Narrow())
"""


@pytest.mark.slow
def test_mypy_checks_modules_against_the_protocols(tmp_path):
    (tmp_path / "checked.py").write_text(MISTYPED)
    kept = ROOT / ".mypy_cache"  # files that were checked before need no second check
    options = ["--config-file", ROOT / "setup.cfg", "--cache-dir", kept]
    command = [sys.executable, "-m", "mypy", *options, tmp_path / "checked.py"]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    errors = [line for line in result.stdout.splitlines() if "error:" in line]
    assert len(errors) == 2, result.stdout
    assert 'to "Operators" has incompatible type Module' in errors[0]
    assert 'to "Operators" has incompatible type "Narrow"' in errors[1]


TOY = '''
"""A backend of another package: it adds rows up with a dense matrix, in float32 alone."""

import torch

from hpcgnn.kernels.backend import Backend
from hpcgnn.kernels.contract import Operators


class Spmm:
    """Counts its calls."""

    calls = 0

    def spmm(self, csr, weight, x, scale, accumulate, out):
        """As the contract says."""
        self.calls += 1
        values = torch.ones(csr.num_entries) if weight is None else weight
        dense = torch.zeros(csr.num_rows, csr.num_cols)
        dense.index_put_((csr.entry_rows(), csr.indices.long()), values, accumulate=True)
        out.copy_(dense @ x + (out if accumulate else 0))


SPMM = Spmm()
BACKEND = Backend("toy", lambda: Operators(spmm=SPMM), dtypes=frozenset((torch.float32,)))
'''
USE = """
import json, torch
import hpcgnn.kernels as kernels

def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)

csr = kernels.Csr(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), 2)
x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
found = {"backends": kernels.backends(), "auto": kernels.resolve()}
y = kernels.spmm(csr, x, backend="toy")
y.sum().backward()
found |= {"y": y.tolist(), "gradient": x.grad.tolist()}
import toy_backend
found["calls"] = toy_backend.SPMM.calls
found["refused"] = [
    refusal(lambda: kernels.spmm(csr, x.double(), backend="toy")),
    refusal(lambda: kernels.edge_sum(csr, torch.ones(3), backend="toy")),
    refusal(lambda: kernels.spmm(csr, x.detach().to("meta"), backend="toy")),
    refusal(lambda: kernels.resolve("broken")),
]
print(json.dumps(found))
"""


def test_a_backend_of_another_package_needs_nothing_here(tmp_path):
    """A backend that cannot be imported stops those alone who ask for it."""
    package, facts = tmp_path / "toy_backend", tmp_path / "toy_backend-1.0.dist-info"
    package.mkdir()
    facts.mkdir()
    (package / "__init__.py").write_text(TOY)
    (package / "broken.py").write_text("import a_compiler_that_is_not_there\n")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    names = "toy = toy_backend:BACKEND\nbroken = toy_backend.broken:BACKEND\n"
    (facts / "entry_points.txt").write_text(f"[hpcgnn.backends]\n{names}")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    result = subprocess.run([sys.executable, "-c", USE], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert set(found["backends"]) == {*BUILT_IN, "toy", "broken"}
    assert found["auto"] == resolve()  # a backend without a rank runs only if it is asked for
    assert found["y"] == [[4.0, 6.0], [3.0, 4.0]]
    assert found["gradient"] == [[1.0, 1.0], [2.0, 2.0]]
    assert found["calls"] == 2  # forward and backward
    assert found["refused"] == [
        "x must be torch.float32 for backend 'toy', not torch.float64",
        "backend 'toy' has no edges kernels: ask for another one, or for 'auto'",
        "x must be on the CPU for backend 'toy', not on meta",
        "backend 'broken' was asked for, but toy_backend.broken:BACKEND cannot be imported: "
        "No module named 'a_compiler_that_is_not_there'",
    ]


@pytest.fixture
def registered(monkeypatch):
    """``registered(backend)`` registers a backend for this test only."""
    monkeypatch.setattr(dispatcher, "_registered", {})

    def clear() -> None:
        dispatcher._found.cache_clear()
        dispatcher._ranked.cache_clear()

    yield kernels.register
    monkeypatch.undo()
    clear()


def test_the_one_of_the_highest_rank_that_can_runs(registered):
    class Quick:
        """The kernels of a better backend."""

        def spmm(self, csr, weight, x, scale, accumulate, out):
            """Marks its result."""
            out.fill_(7)

    reason: list[str | None] = [None]
    registered(
        Backend(
            "quick",
            lambda: Operators(spmm=Quick()),
            dtypes=FEATURES - {torch.float64},
            rank=9,
            missing=lambda: reason[0],
        )
    )
    assert kernels.backends()[0] == "quick"
    assert kernels.spmm(CSR, torch.ones(2, 1)).tolist() == [[7.0], [7.0]]
    # A type that the backend does not take.
    assert kernels.spmm(CSR, torch.ones(2, 1).double()).tolist() == [[2.0], [1.0]]
    assert kernels.edge_sum(CSR, torch.ones(3)).tolist() == [2.0, 1.0]  # an operator that it lacks
    reason[0] = "its device is asleep"
    assert kernels.spmm(CSR, torch.ones(2, 1)).tolist() == [[2.0], [1.0]]
    with pytest.raises(ValueError, match="backend 'quick' was asked for, but its device is asleep"):
        resolve("quick")
    with pytest.raises(ValueError, match="there is a backend called 'quick' already"):
        registered(Backend("quick", Operators))


def test_tensors_of_a_device_choose_the_backend_that_takes_it(registered):
    elsewhere = torch.ones(2, 1, device="meta")  # a device that every torch has
    with pytest.raises(ValueError, match=r"^x must be on the CPU for the backends that run here, not on meta$"):
        choose(SPMM, x=elsewhere)
    registered(Backend("ghost", lambda: Operators(rows=choose(ROWS, "reference")), devices=("meta",), rank=0))
    assert resolve(x=elsewhere) == "ghost"
    assert resolve(x=torch.ones(1)) == resolve()
    assert choose(ROWS, x=elsewhere) is choose(ROWS, "reference")
    with pytest.raises(ValueError, match=r"^none of the backends .* has spmm kernels for torch.float32 on meta$"):
        choose(SPMM, x=elsewhere)
    for first, second, wrong in ((elsewhere, torch.ones(1), "cpu"), (torch.ones(1), elsewhere, "meta")):
        with pytest.raises(ValueError, match=f"^out must be on {first.device}, as x is, not on {wrong}$"):
            choose(ROWS, x=first, weight=None, out=second)
    with pytest.raises(ValueError, match=r"^x must be on meta for backend 'ghost', not on cpu$"):
        choose(ROWS, "ghost", x=torch.ones(1))


def every_operator(backend: str, csr: kernels.Csr) -> None:
    """Call each function of hpcgnn.kernels that takes a backend, forward and backward."""
    x, scores = torch.ones(2, 4, requires_grad=True), torch.ones(3, requires_grad=True)
    index, ids = torch.tensor([1, 0]), torch.arange(2)
    norm = kernels.Norm(torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True), 1e-5)
    mask = kernels.DropoutMask(ids, 1, 0.5)
    results = [
        kernels.spmm(csr, x, scores, "mean", backend=backend),
        kernels.sddmm(csr, x, x, "dot", backend=backend),
        kernels.sddmm(csr, x, x, "add", backend=backend),
        kernels.edge_softmax(csr, scores, backend),
        kernels.edge_sum(csr, scores, backend),
        kernels.attention_weights(csr, x, x, 0.2, backend),
        kernels.gather_rows(x, index, backend),
        kernels.scatter_rows(index, x, 3, backend),
        kernels.dense_product(
            x, torch.ones(4, 2, requires_grad=True), torch.ones(2, requires_grad=True), backend=backend
        ),
        kernels.activation(x, norm, mask, backend),
    ]
    torch.autograd.backward([result.sum() for result in results])
    kernels.dropout(x.detach(), ids, 1, 0.5, backend)
    kernels.unpack_bf16(kernels.pack_bf16(x, backend=backend), backend=backend)
    payload, params = quantize(x.detach(), 2, 1, backend)
    dequantize(payload, params, 2, 4, backend)
    buffer = torch.zeros(32, dtype=torch.uint8)
    spmm_rows(csr, buffer, torch.tensor([0, 16]), None, 32, 4, torch.zeros(2, 4), backend)


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_was_asked_for_runs_forward_and_backward(name, monkeypatch):
    """No other backend may run: ``auto`` has none to choose from here."""
    CSR.transpose().transpose_order  # noqa: B018  # made once, by whichever backend is best
    monkeypatch.setattr(dispatcher, "_ranked", tuple)
    with pytest.raises(ValueError, match="a tensor must be on"):
        kernels.resolve()
    every_operator(name, CSR)


def test_without_a_library_native_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(library, "load", lambda: None)
    assert resolve() == "jit"
    with pytest.raises(
        ValueError, match="backend 'native' was asked for, but hpcgnn was installed without a C\\+\\+ compiler"
    ):
        resolve("native")


def test_an_unknown_name_is_answered_with_those_that_there_are():
    names = ", ".join(kernels.backends())
    with pytest.raises(ValueError, match=f"^backend must be one of auto, {names}, not 'cuda'$"):
        kernels.spmm(CSR, torch.ones(2, 1), backend="cuda")
