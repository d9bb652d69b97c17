"""The verdicts of the section ``wrong_cluster`` on made-up output of ranks and commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.processes import Ended
from campaign.section import FAILED, REFUSED
from campaign.wrong_cluster import files, versions


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        ([("the file is damaged", True)] * 2, ""),
        ([None, None], "accepted"),
        ([None, ("the file is damaged", True)], "refused by some ranks only"),
        ([("the file is damaged", True), ("the file is old", True)], "ranks say different things"),
        ([("the file is damaged", False)] * 2, "ranks say different things"),
        ([("something is wrong", True)] * 2, "no sentence"),
    ],
)
def test_what_ranks_may_say_of_copies(answers: list, wrong: str) -> None:
    found = files._wrong_answers(answers)
    assert found.startswith(wrong) if wrong else found == ""


@pytest.mark.parametrize(
    ("ended", "end"),
    [
        (Ended(1, "", "hpcgnn: error: rank 1 runs hpcgnn 99\n", 1), REFUSED),
        (Ended(0, "", "", 1), FAILED),
        (Ended(1, "", "hpcgnn: error: the file is damaged\n", 1), FAILED),
        (Ended(1, "", "hpcgnn: error: hpcgnn 99\nhpcgnn: error: hpcgnn 99\n", 1), FAILED),
        (Ended(1, "", "Traceback (most recent call last)\n", 1), FAILED),
    ],
)
def test_how_ranks_of_two_versions_may_end(ended: Ended, end: str) -> None:
    assert versions._judged("", ended, "hpcgnn 99", 1).end == end


def test_what_names_damage() -> None:
    assert files._names("nodes/x (part 1) is not", "nodes/x", "part 1")
    assert not files._names("nodes/x (part 1) is not", "nodes/x", "part 0")
    assert not files._names("nodes/y (part 1) is not", "nodes/x", "part 1")


def test_a_bit_that_nobody_finds_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files._said_by_check(files._DATA / files.KEPT["parts"][-1]) == ""
    case = files._looked_at("a later version", files._DATA / files.KEPT["graph"][-1], "update hpcgnn")
    assert (case.end, case.said) == (FAILED, "accepted")
