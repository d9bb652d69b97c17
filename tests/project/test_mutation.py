"""``make mutation``: its faults fit the source, its mutants are those of their seed, and it tells caught changes from others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from checkout import assert_none, tool
from rank_pool import ROOT

PACKAGES = ["exchange", "plan", "nn", "policy", "train"]
# Puts every fault into its module, in a process of its own.
PUT_ALL = """\
import importlib
from mutation.faults import FAULTS

for fault in FAULTS.values():
    fault.put_into(importlib.import_module(fault.module))
"""
# Two faults in one function: its test sees one of them, and the other changes nothing.
TOYS = """\
from mutation import command
from mutation.faults import fault

@fault("base.typed:validated", "base/test_typed.py")
def nothing_is_validated(before, value, *given):
    "Values are not checked."
    return value

@fault("base.typed:validated", "base/test_typed.py")
def nothing_changes(before, *given):
    "The same function is called by another one."
    return before(*given)

command.mutation(["faults", "nothing_is_validated", "nothing_changes", "--jobs", "1"])
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "200"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=300, check=False)


def test_every_fault_fits_the_source_and_names_tests() -> None:
    faults = tool("mutation.faults").FAULTS
    assert 40 <= len(faults) <= 60
    tests = {(name, test) for name, fault in faults.items() for test in fault.tests}
    assert_none(
        f"{name} names {test}, which is not there" for name, test in sorted(tests) if not (ROOT / test).exists()
    )
    assert_none(f"{name} says nothing" for name, fault in faults.items() if not fault.about.endswith("."))
    done = run(PUT_ALL)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_fault_that_no_test_sees_is_reported() -> None:
    done = run(TOYS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 of 2 faults caught" in done.stdout
    assert "not caught (passed): nothing_changes: The same function is called by another one." in done.stdout


def test_a_seed_draws_the_same_mutants() -> None:
    mutants = tool("mutation.mutants")
    drawn = mutants.drawn(ROOT, PACKAGES, 100, 3)
    assert len(set(drawn)) == 100
    assert drawn == mutants.drawn(ROOT, PACKAGES, 100, 3) != mutants.drawn(ROOT, PACKAGES, 100, 4)


def test_mutants_compile_and_differ_from_the_source() -> None:
    mutants, path = tool("mutation.mutants"), ROOT / "hpcgnn" / "plan" / "build.py"
    found = mutants.of_file(ROOT, "hpcgnn/plan/build.py")
    codes = {mutants.compiled(each.name, path) for each in found}
    assert len(codes) == len(found) > 50
    assert compile(path.read_text(), str(path), "exec") not in codes


def test_known_equivalent_mutants_are_there_and_have_reasons() -> None:
    mutants, command = tool("mutation.mutants"), tool("mutation.command")
    known = command.equivalent()
    files = {mutants.file_of(name) for name in known}
    names = {mutant.name for file in files for mutant in mutants.of_file(ROOT, file)}
    assert_none(f"there is no mutant {name}" for name in known if name not in names)
    assert_none(f"{name} has no reason" for name, reason in known.items() if not reason.endswith("."))
