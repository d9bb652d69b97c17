"""The verdicts of the section on security: findings that count as failures."""

from __future__ import annotations

import h5py
import pytest

from campaign.processes import Ended
from campaign.section import FAILED, REFUSED
from campaign.security import files, names, source


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("import pickle", source.RUNS_CODE),
        ("from yaml import load", source.RUNS_CODE),
        ("eval(text)", source.RUNS_CODE),
        ("exec(open(path).read())", source.RUNS_CODE),
        ("np.load(path)", source.LOADS),
        ("read_array(file, allow_pickle=True)", source.LOADS),
        ("torch.load(path)", source.LOADS),
        ("torch.load(path, weights_only=False)", source.LOADS),
        ("subprocess.run(line, shell=True)", source.SHELL),
        ("os.system(line)", source.SHELL),
        ("ctypes.CDLL(os.environ['X'])", source.LIBRARIES),
        ("open('/tmp/x', 'w')", source.TEMPORARY),
        ("tempfile.mktemp()", source.TEMPORARY),
    ],
)
def test_offences_are_found(text, rule):
    assert source.judged({"some.py": source.offences(text)}, rule)


def test_what_is_in_order_is_no_offence():
    text = (
        "model.eval(); np.load(p, allow_pickle=False); torch.load(p, weights_only=True); subprocess.run([a]); re.compile(b);"
        "json.load(f); 'in /tmp there is'"
    )
    assert source.offences(text) == []


def test_a_script_that_leaves_a_name_unquoted(tmp_path):
    script = tmp_path / "s.sh"
    script.write_text("#!/bin/bash\nif\n")
    assert "syntax error" in source.script_problems(script, None)


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        '<img src="https://example.org/x.png">',
        '<p onclick="f()">',
        '<a href="javascript:f()">',
        '<link rel="stylesheet" href="x.css">',
    ],
)
def test_pages_that_run_or_fetch_something(text):
    assert names.page_problem(f"<html><body>{text}</body></html>")
    assert not names.page_problem('<p>&lt;script&gt;</p><a href="#s1">one</a><img src="data:image/png;base64,AAAA">')


def test_ends_of_commands():
    assert names.wrong(Ended(0, "fine", "", 1.0)) == ""
    assert "exit code 1" in names.wrong(Ended(1, "", "hpcgnn: error: no", 1.0))
    assert "escape" in names.wrong(Ended(0, "a\x1b[31mb", "", 1.0))
    assert files.refused(Ended(1, "", "hpcgnn: error: g.h5 is damaged", 1.0), "g.h5")[0] == REFUSED
    assert files.refused(Ended(0, "", "", 1.0), "g.h5")[0] == FAILED
    assert files.refused(Ended(1, "", "Traceback (most recent call last)\n", 1.0), "g.h5")[0] == FAILED


def test_marks_and_modes(tmp_path):
    assert names.marks(tmp_path) == ""
    assert files.too_wide(tmp_path, 0o077) == ""
    (tmp_path / names.MARK).touch(mode=0o644)
    assert names.marks(tmp_path) == str(tmp_path / names.MARK)
    assert files.too_wide(tmp_path, 0o077) == f"{names.MARK} (644)"


def test_names_can_be_files_and_would_leave_a_mark(tmp_path):
    for name in names.NAMES.values():
        (tmp_path / name).mkdir()
    assert sum(names.MARK in name for name in names.NAMES.values()) >= 4


@pytest.mark.parametrize("kind", files._POINTERS)
def test_pointers_hold_what_the_whole_file_holds(tmp_path, kind):
    """A reader that follows a pointer must notice nothing wrong in the values."""
    whole, path = tmp_path / "whole.h5", tmp_path / "pointing.h5"
    with h5py.File(whole, "w") as file:
        file["values"] = [3, 1, 2]
    with h5py.File(path, "w", libver=("v108", "v110")) as file:
        files._POINTERS[kind](file, "values", whole)
    with h5py.File(path) as file:
        assert file["values"][()].tolist() == [3, 1, 2]
