"""The campaign's own program: its judgement of ends, its records and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from campaign import command, report
from campaign.processes import Ended, wrong_end
from campaign.run import run_section, write_record
from campaign.section import FAILED, LEFT_OUT, RIGHT, Case, Section, Session
from campaign.sections import NAMES, section

SENTENCE = "hpcgnn: error: g.h5 is damaged\n"
RULE = "-" * 70 + "\n"
CONNECTING = (
    f"{RULE}WARNING: Open MPI failed to TCP connect to a peer MPI process.  This\nshould not happen.\n\n"
    f"  PID:        6637\n{SENTENCE}  Error:      Operation now in progress (115)\n{RULE}"
)
OPEN_MPI = f"{RULE}MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\n{RULE}"


@pytest.mark.parametrize(
    ("exit_code", "stderr", "ranks", "wrong"),
    [
        (0, "", 0, ""),
        (1, SENTENCE, 0, ""),
        (2, "Usage: hpcgnn\nTry --help\n\nError: g.h5 has no such setting\n", 0, ""),
        (1, SENTENCE.replace("g.h5", "it"), 0, "names none of"),
        (1, SENTENCE + "more\n", 0, "2 lines where one"),
        (1, SENTENCE + SENTENCE, 0, "2 lines where one"),
        (1, SENTENCE + SENTENCE, 2, ""),
        (1, OPEN_MPI + SENTENCE, 1, ""),
        (1, CONNECTING + OPEN_MPI, 1, ""),
        (1, CONNECTING + "more\n" + OPEN_MPI, 1, "2 lines where one"),
        (1, f"{RULE}more\n{RULE}{SENTENCE}", 1, "2 lines where one"),
        (1, CONNECTING, 0, "7 lines where one"),
        (1, "", 0, "0 lines where one"),
        (3, SENTENCE, 0, "exit code 3"),
        (-11, "", 0, "by a signal"),
        (139, "", 2, "by a signal"),
        (None, "", 0, "hangs"),
        (1, "Traceback (most recent call last):\nKeyError: 'g.h5'\n" + SENTENCE, 0, "a traceback"),
    ],
)
def test_what_a_good_end_is(exit_code: int | None, stderr: str, ranks: int, wrong: str) -> None:
    found = wrong_end(Ended(exit_code, "", stderr, 1.0), names=["g.h5"], ranks=ranks)
    assert bool(found) == bool(wrong)
    assert wrong in found


def made_up(name: str = "kills") -> Section:
    def run(session: Session):
        assert session.folder.is_dir()
        session.add_fact("draw", float(session.generator("draw").random()))
        yield Case("group", "one", RIGHT)
        yield Case("group", "two", FAILED, "a traceback | of two lines")
        yield Case("other", "three", LEFT_OUT, "no such thing here")

    return Section(name, "Made up", "About it.", run)


def test_a_record_has_counts_failures_and_facts(tmp_path: Path) -> None:
    quiet = Console(quiet=True)
    one, two = (run_section(made_up(), seed=3, seconds=1.0, short=False, only=(), console=quiet) for _ in range(2))
    assert one["groups"] == {"group": {"right": 1, "failed": 1}, "other": {"left out": 1}}
    assert [case["name"] for case in one["listed"]] == ["two", "three"]
    assert one["facts"] == two["facts"], "choices by chance follow from the seed"
    assert json.loads(write_record(one, tmp_path).read_text())["seed"] == 3
    page = report.page(tmp_path)
    assert "- group, two: a traceback | of two lines" in page
    assert "no such thing here (1)" in page


def test_each_section_says_what_it_does() -> None:
    for name in NAMES:
        assert len(section(name).about) > 100, name
        assert section(name).share > 0, name


def test_a_section_that_tries_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[Case] = []
    monkeypatch.setattr(command, "section", lambda name: Section(name, "Made up", "", lambda session: iter(cases)))

    def code(*words: str) -> int:
        return CliRunner().invoke(command.campaign, ["kills", "--out", str(tmp_path), *words]).exit_code

    monkeypatch.delenv("HPCGNN_REQUIRE_ALL", raising=False)
    assert (code(), code("--only", "a name")) == (1, 0)
    cases.append(Case("group", "one", LEFT_OUT, "no such thing here"))
    assert code() == 0
    monkeypatch.setenv("HPCGNN_REQUIRE_ALL", "1")
    assert code() == 1
