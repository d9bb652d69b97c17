"""The section `bad_input`: it must fail if the package fails."""

from __future__ import annotations

import importlib.util
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from rank_pool import ROOT
from requires import require

SABOTAGE = """\
import hpcgnn.cli.main as main
from hpcgnn import HpcgnnError

leave = main._leave_after
def with_a_traceback(error):
    leave(KeyError("nobody's sentence").with_traceback(error.__traceback__) if isinstance(error, HpcgnnError) else error)
main._leave_after = with_a_traceback
"""


def test_a_traceback_in_place_of_a_sentence_fails_the_campaign(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(SABOTAGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, str(ROOT / "tools" / "campaign"), "bad_input", "--short", "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, "--only", "last.pt of run-sage"], capture_output=True, text=True, check=False)
    record = json.loads((tmp_path / "out" / "bad_input.json").read_text())
    assert done.returncode == 1, done.stderr
    (failed,) = record["listed"]
    assert (failed["group"], failed["name"]) == ("files of another run", "last.pt / train--resume: last.pt of run-sage")
    assert 'traceback: KeyError: "nobody\'s sentence"' in failed["said"]
    assert failed["name"] in done.stderr
    assert "traceback" in done.stderr
    assert record["groups"]["files of another run"]["refused"] == 1  # refused by a function, which is still allowed to


@pytest.mark.parametrize("where", ["last.pt", "x.npy"])
def test_code_in_files_would_run_and_be_seen(tmp_path, monkeypatch, where):
    from campaign.bad_input import code_in_files
    from campaign.mutations.fork import CODE_RAN

    monkeypatch.chdir(tmp_path)
    path = tmp_path / where
    if where == "x.npy":
        np.save(path, np.ones(3))
        code_in_files._of_objects(path)
        np.load(path, allow_pickle=True)
    else:
        code_in_files._pickled(path)
        pickle.loads(path.read_bytes())
    assert (tmp_path / CODE_RAN).exists()


def test_a_wrong_result_is_none_that_a_kernel_may_have():
    import torch

    from campaign.bad_input.calls import _compare

    _compare(torch.ones(3), torch.ones(3))
    for other in (torch.ones(3) * 2, torch.ones(2), torch.ones(3).double()):
        with pytest.raises(AssertionError):
            _compare(other, torch.ones(3))


def test_a_parser_that_fails_is_found_behind_its_branches(tmp_path, monkeypatch):
    require(
        importlib.util.find_spec("atheris") is not None,
        "Atheris, of which there is one for Python 3.11 to 3.13 on x86-64",
    )
    from campaign.bad_input import guided
    from campaign.bad_input.section import GUIDED
    from hpcgnn import HpcgnnError

    assert tuple(guided.FORMATS) == GUIDED
    ends = {
        b"right": "right",
        b"other": "another result",
        b"forbidden": "accepted what the format forbids",
        b"sentence": "not one sentence that names the file",
        b"traceback": "KeyError",
        b"leaves": "it leaves",
    }

    def read(path):
        content = path.read_bytes()
        if content == b"sentence":
            raise HpcgnnError("something is wrong")
        if content == b"traceback":
            raise KeyError
        if content in (b"leaves", b"refused"):
            (path.parent / "out.h5").write_bytes(b"")
        if content == b"refused":
            (path.parent / "out.h5").unlink()
        if content in (b"leaves", b"refused"):
            raise HpcgnnError(f"{path} is wrong")
        return "other" if content == b"other" else "right"

    oracle = {b"forbidden": None}
    made_up = guided.Format((), read, lambda content: oracle.get(content, "right"))
    monkeypatch.setitem(guided.FORMATS, "edge list", made_up)
    for content, wrong in (*ends.items(), (b"refused", "refused")):
        folder = tmp_path / content.decode()
        folder.mkdir()
        fuzzer = guided.Fuzzer(guided.Request("edge list", "", str(folder), 0, 1, 1.0))
        said = fuzzer.wrong(content)
        assert wrong in (said or next(iter(fuzzer.ends)))
