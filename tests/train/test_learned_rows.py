"""The learned rows of nodes belong to their checkpoint, and no kill loses them."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_graphs
from command_line import said
from damages import budget, change_bytes, refusal
from hypothesis import given
from hypothesis import strategies as st
from trainings import trainer_of, weights

import hpcgnn
from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.train import checkpoint, predict
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank

SETTINGS: dict[str, Any] = {"model": "rgcn", "layers": 2, "hidden": 8, "embed": "all", "checkpoint_every": 2}
STALE = {"staleness": "pipeqs", "bits": "adaqp"}  # whose ranks keep files of their own


def train(world: World, parts: Path, out: Path, epochs: int, *, resume: bool = False, **settings: Any) -> None:
    trainer = trainer_of(hpcgnn.load(parts, world), SETTINGS | {"epochs": epochs} | settings, run=RunFolder(out))
    try:
        if resume:
            trainer.resume()
        trainer.fit()
    finally:
        trainer.run.release()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Parts, and two runs of four epochs with different seeds."""
    folder = tmp_path_factory.mktemp("rows")
    small_graphs.in_parts(folder / "parts.h5", small_graphs.with_types(), 2)
    small_graphs.in_parts(folder / "one.h5", small_graphs.with_types(), 1)
    for name, seed in (("run", 0), ("other", 1)):
        on_threads(2, lambda world, out=folder / name, seed=seed: train(world, folder / "parts.h5", out, 4, seed=seed))
    return folder


@pytest.fixture
def run(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole / "run", tmp_path / "run"))


def resumed(whole: Path, run: Path) -> None:
    on_threads(2, lambda world: train(world, whole / "parts.h5", run, 6, resume=True))


def predicted(whole: Path, run: Path, name: str = checkpoint.LAST) -> np.ndarray:
    def job(world: World) -> np.ndarray:
        content = checkpoint.read(world, checkpoint.folder(run) / name, None)
        return predict.predict(hpcgnn.load(whole / "parts.h5", world), content).numpy()

    return np.concatenate(on_threads(2, job))


def refused(*jobs: Any) -> None:
    for job in jobs:
        with pytest.raises(HpcgnnError, match="does not belong to its checkpoint") as told:
            job()
        assert told.value.agreed, "all ranks say it"


def test_rows_of_another_run_are_refused(whole, run):
    said("check", run)
    for name, files in (("last", "last-4.h5"), ("best", "best-*.h5")):
        (mine,), (theirs,) = ((folder / "checkpoints").glob(files) for folder in (run, whole / "other"))
        kept = mine.read_bytes()
        shutil.copy(theirs, mine)
        refused(lambda: resumed(whole, run), lambda name=name: predicted(whole, run, f"{name}.pt"))
        assert "does not belong" in str(refusal(lambda: said("check", run), mine)[0])
        mine.write_bytes(kept)
    mine.unlink()
    assert "does not belong" in str(refusal(lambda: said("check", run), mine)[0])


def test_rows_of_a_checkpoint_without_digests_are_read_as_before(whole, run):
    content = checkpoint.look_at(run / "checkpoints/last.pt")
    checkpoint.save(run / "checkpoints/last.pt", content | {"node_rows": {}})
    resumed(whole, run)
    assert sorted(path.name for path in (run / "checkpoints").glob("last-*")) == ["last-6.h5"]


@pytest.mark.parametrize("step", ["x", -3.0, np.inf, np.nan, 1.5])
def test_a_step_that_is_none_is_refused(whole, run, step):
    path = run / "checkpoints/last-4.h5"
    with h5py.File(path, "r+") as file:
        file.attrs["step"] = step
    for job in (lambda: resumed(whole, run), lambda: predicted(whole, run), lambda: said("check", run)):
        assert refusal(job, path)[0]


@budget(25)
@given(data=st.data())
def test_a_damaged_file_of_rows_is_refused_or_read_as_before(whole: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=whole) as folder:
        run = Path(shutil.copytree(whole / "run", Path(folder) / "run"))
        path, before = run / "checkpoints/last-4.h5", predicted(whole, run)
        what = change_bytes(data, path)
        refusal(lambda: said("check", run), run)
        error, found = refusal(lambda: predicted(whole, run), path)
        assert error or np.array_equal(found, before), what
        refusal(lambda: resumed(whole, run), path)


# -- kills -------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """In place of a kill, between two files."""


def killed_after(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """End the process before it gives the file after ``files`` others its name."""
    count = itertools.count()

    def instead(before: Any) -> Any:
        def replacing(*given: Any, **named: Any) -> Any:
            if next(count) >= files:
                raise Killed
            return before(*given, **named)

        return replacing

    monkeypatch.setattr(whole_file, "replacing", instead(whole_file.replacing))


@pytest.mark.parametrize("every", [1, 7])  # epochs below and above that of the files that the first kill leaves
@pytest.mark.parametrize("second", range(2, 8))
def test_a_second_kill_loses_nothing(whole, tmp_path, monkeypatch, caplog, second, every):
    """The run is killed in its second checkpoint, of epoch 6, and again at every place, with other epochs of checkpoints; then it
    goes on bit for bit, with what its ranks kept."""
    parts = whole / "one.h5"
    train(one_rank(), parts, tmp_path / "wanted", 8, **STALE)
    for first in (7, 9):
        out = tmp_path / f"run-{first}"
        for files, settings, resume in (
            (first, {"checkpoint_every": 3}, False),
            (second, {"checkpoint_every": every}, True),
        ):
            with monkeypatch.context() as patch:
                killed_after(patch, files)
                with pytest.raises(Killed):
                    train(one_rank(), parts, out, 8, resume=resume, **STALE | settings)
        train(one_rank(), parts, out, 8, resume=True, **STALE)
        assert weights(out) == weights(tmp_path / "wanted")
        said("check", out)
        assert RunFolder(out).records()[-1]["loss"] == RunFolder(tmp_path / "wanted").records()[-1]["loss"]
    assert "start as in epoch 0" not in caplog.text


# -- lines of epochs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [[], [0, 1, 3], [0, 1, 2], [1, 2]])
def test_a_file_of_epochs_that_lacks_some_is_refused(whole, run, kept):
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[epoch] for epoch in kept))
    for job in (lambda: resumed(whole, run), lambda: said("check", run)):
        assert "has no line of epoch" in str(refusal(job, path)[0])


def test_a_run_without_its_first_lines_goes_on_with_a_warning(whole, run, caplog):
    path = run / "metrics.jsonl"
    path.unlink()
    resumed(whole, run)
    assert [record["epoch"] for record in RunFolder(run).records()] == [4, 5]
    said("check", run)
    assert "begins with epoch 4" in caplog.text
