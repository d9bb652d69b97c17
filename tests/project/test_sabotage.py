"""``make sabotage``: its lists fit the source, and it tells faults that are caught from those that are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import tool
from rank_pool import ROOT

# Two faults in one function: its test sees one of them, and the other changes nothing.
LIST = """
[[fault]]
about = "The lower bound of a number is described as an exclusive one."
file = "hpcgnn/base/typed.py"
old = '">=": "of at least"'
new = '">=": "above"'
test = "tests/base/test_typed.py::test_a_problem_names_the_field"

[[fault]]
about = "A comment is shorter."
file = "hpcgnn/base/typed.py"
old = "# A NaN is never within bounds, so these are finite, too."
new = "# A NaN is never within bounds."
test = "tests/base/test_typed.py::test_a_problem_names_the_field"
"""


def test_every_fault_fits_the_source_and_names_a_test() -> None:
    sabotage = tool("sabotage")
    entries = sabotage.faults(sorted(sabotage.LISTS.glob("*.toml")))
    assert len(entries) >= 150
    places = [(entry.file, entry.old, entry.new) for entry in entries]
    assert [place for place in places if places.count(place) > 1] == []


def test_an_entry_that_no_longer_fits_is_named(tmp_path: Path) -> None:
    sabotage, path = tool("sabotage"), tmp_path / "list.toml"
    path.write_text(
        LIST.replace('">=": "of at least"', "no such text") + LIST.replace("test_a_problem", "test_no_problem")
    )
    with pytest.raises(sabotage.click.UsageError) as refused:
        sabotage.faults([path])
    assert "exclusive one. its text occurs 0 times in hpcgnn/base/typed.py" in str(refused.value)
    assert str(refused.value).count("there is no test tests/base/test_typed.py::test_no_problem") == 2


@pytest.mark.slow
def test_a_fault_that_no_test_sees_is_reported(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(LIST)
    command = [sys.executable, str(ROOT / "tools" / "sabotage.py"), str(tmp_path / "list.toml"), "--jobs", "1"]
    environment = os.environ | {"SABOTAGE_WORK": str(tmp_path / "work"), "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 of 2 faults caught" in done.stdout
    assert "not caught (passed): hpcgnn/base/typed.py: A comment is shorter." in done.stdout
