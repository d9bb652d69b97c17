"""The section on disks: the calls that fail, and the detection of files that are neither complete nor absent."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest
from requires import require

from campaign.disk import client
from campaign.disk.cases import Bench, alone, faults, try_fault, without_process
from campaign.disk.client import SHORT, Call, Fault, Server, build
from campaign.disk.commands import CONVERT, PREPARATION
from campaign.processes import environment
from campaign.section import FAILED, Session
from campaign.whole import not_whole

IN_PLACE = """
import contextlib
import pathlib
from hpcgnn.base import whole_file

@contextlib.contextmanager
def in_place(path, **how):
    with whole_file._one_sentence(path):
        yield pathlib.Path(path)

whole_file.replacing = in_place
"""


def test_each_call_meets_each_error_that_it_can():
    calls = [Call(1, kind, "f", False) for kind in ("open", "pwrite", "pwrite", "unlink")] + [
        Call(2, "read", "f", False)
    ]
    assert faults(calls) == [
        Fault("open", 1, errno.EIO),
        *(Fault("pwrite", 1, error) for error in (errno.EIO, errno.ENOSPC, SHORT)),
        Fault("unlink", 1, errno.EIO),
        *(Fault("pwrite", 2, error) for error in (errno.EIO, errno.ENOSPC, SHORT)),
    ]
    many = [fault.number for fault in faults([Call(1, "close", "f", False)] * 150) if fault.error == errno.EIO]
    assert len(many) == 60
    assert (min(many), max(many)) == (1, 148)


def test_names_of_temporary_files_are_the_same_in_all_runs():
    assert without_process(f"run/.last.pt.{os.uname().nodename}.4711.hpcgnn.tmp") == "run/.last.pt...hpcgnn.tmp"


@pytest.mark.parametrize("name", ["last.pt", "summary.json", "config.toml", "page.html"])
def test_half_a_file_is_not_whole(tmp_path, name):
    (tmp_path / name).write_text("{[<html>")
    assert not_whole(tmp_path / name)


def test_a_file_that_is_written_in_place_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(shutil.which("gcc") or shutil.which("cc"), "a C compiler")
    (tmp_path / "sabotage").mkdir()
    (tmp_path / "sabotage" / "sitecustomize.py").write_text(IN_PLACE)

    def sabotaged(**changes: str) -> dict[str, str]:
        usual = environment(**changes)
        return usual | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "sabotage"), usual["PYTHONPATH"]])}

    monkeypatch.setattr(client, "environment", sabotaged)
    session = Session(0, tmp_path, True, time.monotonic() + 600)
    with Server(build(tmp_path), session.new_folder("printed"), seconds=120) as server:
        bench = Bench(session, server, session.new_folder("inputs"))
        assert server.run(PREPARATION[0], bench.inputs).exit == 0
        writes = [call.path for call in alone(bench, CONVERT).calls[0] if call.kind == "pwrite"]
        number = 1 + next(k for k, path in enumerate(writes) if path.endswith("graph.h5"))
        case = try_fault(bench, CONVERT, Fault("pwrite", number, errno.EIO))
    assert case.end == FAILED
    assert "neither the old one nor the new one" in case.said
