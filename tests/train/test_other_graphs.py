"""A run, its checkpoints and its decisions belong to one graph: its other parts are welcome, another graph is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
import small_graphs
from command_line import said, told
from trainings import trainer_of

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.policy.clock import Clock, read_log
from hpcgnn.train import checkpoint
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank

SETTINGS = {"model": "gcn", "layers": 2, "hidden": 8, "checkpoint_every": 2, "bits": "sylvie"}
GRAPH = small_graphs.random_multigraph()
# Of the same sizes, with other edges and labels, as another npz file may have.
OTHER = replace(GRAPH, edge_index=GRAPH.edge_index[:, ::-1].copy(), y=(GRAPH.y + 1) % 4)
OTHER.edge_index[0, 5:50] = (OTHER.edge_index[0, 5:50] + 1) % 55
SENTENCE = "another graph, which differs in edges and labels: "


def train(world: World, parts: Path, out: Path, epochs: int = 4, *, resume: bool = False, log: Path | None = None):
    graph = hpcgnn.load(parts, world)
    clock = Clock(None if log is None else read_log(world, log, graph.data))
    trainer = trainer_of(graph, SETTINGS | {"epochs": epochs}, run=RunFolder(out), clock=clock)
    if resume:
        trainer.resume()
    return trainer.fit()


def done(parts: Path, out: Path, epochs: int = 4, **how: object) -> dict:
    with PartsFile(parts) as file:
        ranks = file.num_parts
    return on_threads(ranks, lambda world: train(world, parts, out, epochs, **how))[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the parts of two graphs, and a run on the first."""
    folder = tmp_path_factory.mktemp("whole")
    for name, graph, parts in (("one", GRAPH, 2), ("one-3", GRAPH, 3), ("two", OTHER, 2), ("two-1", OTHER, 1)):
        small_graphs.in_parts(folder / f"{name}.h5", graph, parts)
    done(folder / "one.h5", folder / "run")
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole / "run", tmp_path / "run")
    return tmp_path / "run"


def contents(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.rglob("[!.]*") if path.is_file()}


@pytest.mark.parametrize("epochs", [4, 6])
@pytest.mark.parametrize("parts", ["two", "two-1"])
def test_another_graph_does_not_continue_a_run(whole: Path, run: Path, parts: str, epochs: int) -> None:
    """Neither a run that has epochs left, nor one that has none, whose summary would tell of the first graph."""
    before = contents(run)
    with pytest.raises(HpcgnnError, match=SENTENCE) as error:
        done(whole / f"{parts}.h5", run, epochs, resume=True)
    assert error.value.agreed
    assert "last.pt was made with" in str(error.value)
    assert "choose another --out" in str(error.value)
    assert contents(run) == before


def test_a_checkpoint_that_does_not_tell_its_graph_continues_with_a_warning(
    whole: Path, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of versions before digests."""
    path = run / "checkpoints" / "last.pt"
    checkpoint.save(
        path, {name: value for name, value in checkpoint.look_at(path).items() if name not in ("data", "digest")}
    )
    assert done(whole / "one-3.h5", run, 6, resume=True)["epochs"] == 6
    assert "an older file does not tell whether they are parts of the same graph" in caplog.text


def test_a_log_is_not_replayed_on_another_graph(whole: Path, tmp_path: Path) -> None:
    log = whole / "run" / "decisions.jsonl"
    first, *others = map(json.loads, log.read_text().splitlines())
    assert first["data"] == checkpoint.look_at(whole / "run" / "checkpoints" / "last.pt")["data"]
    assert all("data" not in line for line in others)
    with pytest.raises(HpcgnnError, match=r"decisions\.jsonl is the log of a run on " + SENTENCE):
        done(whole / "two.h5", tmp_path / "run", log=log)
    done(whole / "one.h5", tmp_path / "run", log=log)
    assert (tmp_path / "run" / "decisions.jsonl").read_text() == log.read_text()
    (tmp_path / "old.jsonl").write_text("".join(json.dumps(line) + "\n" for line in others))
    assert len(read_log(one_rank(), tmp_path / "old.jsonl", {"nodes": "7"})) == len(others)


def test_predictions_tell_their_graph_and_what_is_new_in_it(whole: Path, tmp_path: Path) -> None:
    """Another graph is no error, and its labels are not read."""
    out, run = tmp_path / "scores.h5", whole / "run"
    assert "another graph" not in said("predict", whole / "one-3.h5", run, "--out", out)
    note = f"note: {run}/checkpoints/best.pt was trained on another graph: {whole}/two.h5 differs in edges\n"
    assert note in said("predict", whole / "two.h5", run, "--out", out, "--force")
    assert not said("predict", whole / "two.h5", run, "--out", out, "--force", "--quiet")
    assert told("show", out)["data"] == told("show", whole / "two.h5")["data"]
    with h5py.File(out, "r+") as file:
        del file.attrs["data"]  # as in files of earlier versions
    assert told("show", out)["data"] == {}
