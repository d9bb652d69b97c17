"""Every backend meets the contract, an external backend needs only one package, one place chooses the backend, and
``HPCGNN_ISA`` the instruction set.
"""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from gpu.proxy import every_operator
from under_test import BACKENDS as BUILT_IN

from hpcgnn import kernels
from hpcgnn.kernels import backend as dispatcher
from hpcgnn.kernels import library
from hpcgnn.kernels.backend import FEATURES, Backend, choose, resolve
from hpcgnn.kernels.contract import EDGES, OPERATORS, SPMM, Operators
from hpcgnn.kernels.rows import ROWS

CSR = kernels.Csr(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), 2)


def differences(module: object, protocol: type) -> list[str]:
    """The functions of a protocol that a module lacks or has with other parameters. Annotations are left to mypy."""
    found = []
    for name, function in vars(protocol).items():
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        asked = [*inspect.signature(function).parameters][1:]  # without self
        try:
            signature = inspect.signature(getattr(module, name))
            signature.bind(*asked)  # it needs nothing else
        except (AttributeError, TypeError) as error:
            found.append(f"{name}: {error}")
            continue
        if [*signature.parameters][: len(asked)] != asked:
            found.append(f"{name} takes {[*signature.parameters]}, not {asked}")
    return found


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_backend_has_every_function_with_its_parameters(name):
    assert all(differences(None, operator.protocol) for operator in OPERATORS)
    found = {operator.name: differences(choose(operator, name), operator.protocol) for operator in OPERATORS}
    assert found == {operator.name: [] for operator in OPERATORS}


def test_mypy_checks_modules_against_the_protocols():
    """As ``make check-types`` does where the built-in backends name their modules, because of the types of these fields."""
    assert get_type_hints(Operators) == {each.name: each.protocol | None for each in OPERATORS}


@pytest.fixture
def registered(monkeypatch):
    """``registered(backend)`` registers a backend for this test only."""
    monkeypatch.setattr(dispatcher, "_registered", {})
    yield kernels.register
    monkeypatch.undo()
    dispatcher.forget()


TOY = """
import torch
from hpcgnn.kernels.backend import Backend, choose
from hpcgnn.kernels.contract import SPMM, Operators

BACKEND = Backend("toy", lambda: Operators(spmm=choose(SPMM, "reference")), dtypes=frozenset((torch.float32,)))
"""
ENTRIES = "[hpcgnn.backends]\ntoy = toy_backend:BACKEND\nbroken = a_compiler_that_is_not_there:BACKEND\n"


def test_a_backend_of_another_package_needs_nothing_here(registered, tmp_path, monkeypatch):
    """One that cannot be imported stops those alone who ask for it. The page on adding a backend runs a whole one."""
    facts, usual = tmp_path / "toy_backend-1.0.dist-info", resolve()
    facts.mkdir()
    (tmp_path / "toy_backend.py").write_text(TOY)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    dispatcher.forget()
    assert set(kernels.backends()) >= {"toy", "broken"}
    assert resolve() == usual  # a backend without a rank runs only if it is asked for
    x = torch.ones(2, 1)
    assert kernels.spmm(CSR, x, backend="toy").tolist() == [[2.0], [1.0]]
    for sentence, wrong in (
        ("^x must be torch.float32 for backend 'toy', not torch.float64$", lambda: choose(SPMM, "toy", x=x.double())),
        ("^x must be on the CPU for backend 'toy', not on meta$", lambda: choose(SPMM, "toy", x=x.to("meta"))),
        ("^backend 'toy' has no edges kernels: ask for another one, or for 'auto'$", lambda: choose(EDGES, "toy", x=x)),
        ("^backend 'broken' was asked for, but a_compiler.*:BACKEND cannot be imported: No", lambda: resolve("broken")),
        (f"^backend must be one of auto, {', '.join(kernels.backends())}, not 'cuda'$", lambda: resolve("cuda")),
    ):
        with pytest.raises(ValueError, match=sentence):
            wrong()


def test_the_one_of_the_highest_rank_that_can_runs(registered):
    class Quick:
        """The kernels of a better backend."""

        def spmm(self, csr, weight, x, scale, accumulate, out):
            """Marks its result."""
            out.fill_(7)

    reason: list[str | None] = [None]
    takes = FEATURES - {torch.float64}
    registered(Backend("quick", lambda: Operators(spmm=Quick()), dtypes=takes, rank=9, missing=lambda: reason[0]))
    assert kernels.backends()[0] == "quick"
    assert kernels.spmm(CSR, torch.ones(2, 1)).tolist() == [[7.0], [7.0]]
    # A type that the backend does not take.
    assert kernels.spmm(CSR, torch.ones(2, 1).double()).tolist() == [[2.0], [1.0]]
    assert kernels.edge_sum(CSR, torch.ones(3)).tolist() == [2.0, 1.0]  # an operator that it lacks
    reason[0] = "its device is asleep"
    dispatcher.forget()  # a process that begins then
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


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_was_asked_for_runs_forward_and_backward(name, monkeypatch):
    """No other backend may run: ``auto`` has none to choose from here."""
    CSR.transpose().transpose_order  # noqa: B018  # made once, by whichever backend is best
    monkeypatch.setattr(dispatcher, "_ranked", tuple)
    monkeypatch.setattr(dispatcher, "_best", functools.cache(dispatcher._best.__wrapped__))
    with pytest.raises(ValueError, match="a tensor must be on"):
        kernels.resolve()
    every_operator(name, CSR)


def test_without_a_library_native_is_refused_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_HERE", tmp_path / "library.py")
    monkeypatch.setattr(library, "_find", functools.cache(library._find.__wrapped__))
    monkeypatch.setattr(dispatcher, "_best", functools.cache(dispatcher._best.__wrapped__))
    assert resolve() == "jit"
    said = r"^backend 'native' was asked for, but hpcgnn was installed without a C\+\+ compiler"
    with pytest.raises(ValueError, match=said):
        resolve("native")


def test_the_best_instruction_set_runs_and_another_one_if_it_is_asked_for(monkeypatch):
    monkeypatch.delenv("HPCGNN_ISA", raising=False)
    assert library.isa.__wrapped__() == library.isas()[-1]
    program = (
        "import torch\nfrom hpcgnn import kernels\nfrom hpcgnn.kernels import library\n"
        "before = library.last_isa()\n"
        "kernels.spmm(kernels.Csr(torch.tensor([0, 1]), torch.tensor([0]), 1), torch.ones(1, 1))\n"
        "print([before, library.last_isa()])\n"
    )
    asked = library.isas()[0]
    monkeypatch.setenv("HPCGNN_ISA", asked)
    assert library.isa.__wrapped__() == asked
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == str(["", asked])


@pytest.mark.skipif(library.load() is None, reason="there is no native library")
def test_threads_that_begin_together_load_one_library(monkeypatch):
    class Slow(library.Library):
        def __init__(self, path: Path) -> None:
            time.sleep(0.05)
            super().__init__(path)

    monkeypatch.setattr(library, "Library", Slow)
    monkeypatch.setattr(library, "_find", functools.cache(library._find.__wrapped__))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: library.load(), range(4)))
    assert len({id(each) for each in found}) == 1
