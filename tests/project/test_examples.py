"""Programs of examples/, some that the commit draws and all every night, run at their small size on two ranks, and print what is
expected."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from checkout import assert_none, drawn, text_of
from rank_pool import ROOT

EXAMPLES = ROOT / "examples"
# The expected lines. A number after "accuracy" or "ROC-AUC" must be at least the one given here.
SAYS = {
    "pyg_gcn": (r"epoch 20: training accuracy \S+, validation (\S+), test \S+", 0.9),
    "ogbn_arxiv": (r"label propagation 0.62: test accuracy (\S+)", 0.9),
    "links": (r"ROC-AUC of held-out links: (\S+)\nmost likely partner of node 0: node \d+", 0.7),
    "own_policy": (r"bits by epoch: 2 2 [28 ]+\ntest accuracy (\S+)", 0.9),
    "energy": (r"measured 20 epochs: test accuracy (\S+)", 0.9),
    "search": (r"best of 6 trials: test accuracy (\S+) with", 0.9),
    "tracker": (r"tracked 20 epochs: test accuracy (\S+)", 0.9),
    "own_loop": (r"test accuracy (\S+) over 120 nodes of 600", 0.9),
}


def test_all_examples_are_here() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"small_graph"}
    assert programs == set(SAYS)
    table = text_of(EXAMPLES / "README.md")
    assert_none(f"examples/README.md has no {name}" for name in programs if f"| [{name}.py]({name}.py) |" not in table)


def lacks(name: str) -> Iterator[str]:
    """The commands that the header of an example does not give."""
    text = text_of(EXAMPLES / f"{name}.py")
    steps = r"    hpcgnn convert \S+", r"    hpcgnn partition \S+ \S+ --parts \d", r"    mpirun -n \d python -m mpi4py"
    yield from (step for step in (*steps, rf"examples/{name}\.py --small") if not re.search(step, text))


def test_headers_say_how_to_run_the_examples() -> None:
    assert_none(f"examples/{name}.py lacks {command}" for name in SAYS for command in lacks(name))


def test_examples_run(mpirun: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """A launch of their own, because one of them registers a policy in its process, and because a user starts them so."""
    paths = drawn([EXAMPLES / f"{name}.py" for name in SAYS], 4)
    printed = mpirun(2, ["-m", "mpi4py", ROOT / "tests" / "ranks" / "examples.py", *paths]).stdout
    printed = printed.replace("\x1b[0m", "")  # if colorama is installed, numba resets colours behind what others print
    for name in (path.stem for path in paths):
        pattern, least = SAYS[name]
        (found,) = re.findall(pattern, printed)  # of rank 0 alone
        assert float(found) >= least, name


def test_an_example_without_a_graph_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    from small_graph import arguments

    for given in ([], ["parts.h5", "--small"]):
        monkeypatch.setattr(sys, "argv", ["own_loop.py", *given])
        with pytest.raises(SystemExit):
            arguments("A training loop.", 100)
        assert "give either a file with parts or --small" in capsys.readouterr().err
