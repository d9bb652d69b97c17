"""Each program of examples/ runs at its small size on two ranks, and prints the expected lines."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from rank_pool import ROOT

EXAMPLES = ROOT / "examples"
# The expected lines. A number after "accuracy" or "ROC-AUC" must be at least the one given here.
SAYS = {
    "pyg_gcn": (r"epoch 20: training accuracy \S+, validation (\S+), test \S+", 0.9),
    "ogbn_arxiv": (r"label propagation 0.62: test accuracy (\S+)", 0.9),
    "links": (r"ROC-AUC of held-out links: (\S+)\nmost likely partner of node 0: node \d+", 0.7),
    "own_policy": (r"bits by epoch: 2 2 [28 ]+\ntest accuracy (\S+)", 0.9),
    "own_loop": (r"test accuracy (\S+) over 120 nodes of 600", 0.9),
}


def test_all_examples_are_here() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"small_graph"}
    assert programs == set(SAYS)
    table = (EXAMPLES / "README.md").read_text()
    assert all(f"| [{name}.py]({name}.py) |" in table for name in programs)


@pytest.mark.parametrize("name", SAYS)
def test_the_header_says_how_to_run_it(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    for command in (
        r"    hpcgnn convert \S+",
        r"    hpcgnn partition \S+ \S+ --parts \d",
        r"    mpirun -n \d python -m mpi4py",
    ):
        assert re.search(command, text), command
    assert f"examples/{name}.py --small" in text


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(name: str, mpirun: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = mpirun(2, ["-m", "mpi4py", EXAMPLES / f"{name}.py", "--small"], timeout_seconds=120)
    pattern, least = SAYS[name]
    found = re.search(pattern, done.stdout)
    assert found, done.stdout
    assert float(found[1]) >= least
    assert len(re.findall(pattern, done.stdout)) == 1  # printed by rank 0 alone


def test_an_example_without_a_graph_says_what_it_takes(mpirun: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = mpirun(1, [EXAMPLES / "own_loop.py"], check=False)
    assert done.returncode
    assert "give either a file with parts or --small" in done.stderr
