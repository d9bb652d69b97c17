"""Kills while checkpoints are written, and again: nothing is lost of learned rows of nodes, and of what ranks keep."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import small_graphs
from command_line import said
from trainings import trainer_of, weights

import hpcgnn
from hpcgnn.base import whole_file
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world.thread_world import one_rank

# A model with learned rows, and policies whose ranks keep files of their own.
SETTINGS = {
    "model": "rgcn",
    "layers": 2,
    "hidden": 8,
    "embed": "all",
    "staleness": "pipeqs",
    "bits": "adaqp",
    "epochs": 8,
}


def train(parts: Path, out: Path, *, resume: bool = False, every: int = 2) -> None:
    graph = hpcgnn.load(parts, one_rank())
    trainer = trainer_of(graph, SETTINGS | {"checkpoint_every": every}, run=RunFolder(out))
    try:
        if resume:
            trainer.resume()
        trainer.fit()
    finally:
        trainer.run.release()


class Killed(BaseException):
    """In place of a kill, between two files."""


def killed_after(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """End the process before it gives the file after ``files`` others its name."""
    count, before = itertools.count(), whole_file.replacing

    def replacing(*given: Any, **named: Any) -> Any:
        if next(count) >= files:
            raise Killed
        return before(*given, **named)

    monkeypatch.setattr(whole_file, "replacing", replacing)


@pytest.mark.parametrize("every", [1, 7])  # epochs below and above that of the files that the first kill leaves
@pytest.mark.parametrize("second", range(2, 8))
def test_a_second_kill_loses_nothing(tmp_path, monkeypatch, caplog, second, every):
    """The run is killed in its second checkpoint, of epoch 6, and again at every place, with other epochs of checkpoints; then it
    goes on bit for bit, with what its ranks kept."""
    parts = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.with_types(), 1)
    train(parts, tmp_path / "wanted")
    for first in (7, 9):  # with files of epoch 6, while last.pt is of epoch 3
        out = tmp_path / f"run-{first}"
        for files, epochs, resume in ((first, 3, False), (second, every, True)):
            with monkeypatch.context() as patch:
                killed_after(patch, files)
                with pytest.raises(Killed):
                    train(parts, out, resume=resume, every=epochs)
        train(parts, out, resume=True)
        assert weights(out) == weights(tmp_path / "wanted")
        assert RunFolder(out).records()[-1]["loss"] == RunFolder(tmp_path / "wanted").records()[-1]["loss"]
        said("check", out)
        assert [path.name for path in (out / "checkpoints").glob("last-*.h5")] == ["last-8.h5"]
    assert "start as in epoch 0" not in caplog.text
