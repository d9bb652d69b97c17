"""The main job through its command line: interruption, resumption, prediction, and errors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import small_graphs
import torch
from rank_pool import signal_ranks
from requires import require
from under_way import HPCGNN, kill, start, wait_for_epoch

import hpcgnn
from hpcgnn.comm.thread_world import one_rank
from hpcgnn.data.sealing import seal
from hpcgnn.stop import StopRequest
from hpcgnn.train.run_folder import RunFolder

pytestmark = [pytest.mark.mpi, pytest.mark.launches]

DATA = Path(__file__).parents[1] / "data"
SMALL = ["--hidden", "16", "--layers", "2", "--checkpoint-every", "7"]


@pytest.fixture
def train(mpi_ranks, parts, tmp_path):
    """Run ``hpcgnn train`` on two ranks, and return the run folder."""

    def run(*flags, out=tmp_path / "run", graph=parts, ranks=2):
        return mpi_ranks(ranks).command("train", graph, "--out", out, *SMALL, *flags, check=False)

    return run


def weights(out: Path, name: str = "last.pt") -> dict[str, bytes]:
    content = torch.load(out / "checkpoints" / name, weights_only=True)
    return {key: value.numpy().tobytes() for key, value in content["model"].items()}


def errors_in(result: subprocess.CompletedProcess) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("hpcgnn: error")]


def test_sigkill_and_resume_give_the_same_bytes(train, parts, tmp_path):
    flags = ["--epochs", "150", "--schedule", "plateau", "--decay-every", "5", "--weight-decay", "0.001"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(*flags, out=whole).returncode == 0
    process = start(parts, broken, *SMALL, *flags)
    wait_for_epoch(broken, 53, process)  # between two checkpoints, or a few epochs later
    kill(process)
    result = train(*flags, "--resume", out=broken)
    assert result.returncode == 0, result.stderr
    for name in ("last.pt", "best.pt"):
        assert weights(broken, name) == weights(whole, name)
    epochs = [json.loads(line)["epoch"] for line in (broken / "metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(150))
    losses = [[json.loads(s)["loss"] for s in (f / "metrics.jsonl").read_text().splitlines()] for f in (whole, broken)]
    assert losses[0] == losses[1]


def test_usr1_writes_a_checkpoint_and_stops_cleanly(train, parts, tmp_path):
    out = tmp_path / "run"
    process = start(parts, out, *SMALL, "--epochs", "100000", "--checkpoint-every", "100000")
    wait_for_epoch(out, 5, process)
    assert signal_ranks(process.pid, signal.SIGUSR1) == 2
    output, problems = process.communicate(timeout=60)
    assert process.returncode == 0, problems
    assert "--resume" in output
    summary = json.loads((out / "summary.json").read_text())
    assert not summary["finished"]
    stored = torch.load(out / "checkpoints" / "last.pt", weights_only=True)["next_epoch"]
    assert stored == summary["epochs"] == len((out / "metrics.jsonl").read_text().splitlines())


def test_usr1_is_never_fatal_even_before_training_starts(parts, tmp_path):
    out = tmp_path / "run"
    process = start(parts, out, *SMALL, "--epochs", "30")
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:  # from MPI's start to its end
        if out.exists():  # every rank has passed the start of Python
            signal_ranks(process.pid, signal.SIGUSR1)  # while a launcher exits, a signal may find it without a handler
        time.sleep(0.02)
    _, problems = process.communicate(timeout=60)
    assert process.returncode == 0, problems
    assert json.loads((out / "summary.json").read_text())["stop_reason"] == "SIGUSR1"


def test_ctrl_c_stops_all_ranks_with_one_message(parts, tmp_path):
    out = tmp_path / "run"
    process = start(parts, out, *SMALL, "--epochs", "100000")
    wait_for_epoch(out, 20, process)
    os.kill(process.pid, signal.SIGINT)  # the signal that a terminal sends to the launcher
    _, problems = process.communicate(timeout=60)
    assert process.returncode != 0
    assert problems.count("hpcgnn: stopped") == 1, problems
    assert torch.load(out / "checkpoints" / "last.pt", weights_only=True)["next_epoch"] >= 14


def test_summary_and_metrics_hold_what_others_read(train, tmp_path):
    result = train("--epochs", 6, "--eval-every", 4, "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    wanted = "metric_name best_val_metric test_metric_at_best_val epoch_seconds_median bytes_sent_per_epoch"
    wanted += " peak_memory_bytes_per_rank ranks threads_per_rank versions"
    assert set(wanted.split()) <= set(summary)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    wanted = "epoch loss seconds eval_seconds train_metric val_metric test_metric aggregation_seconds"
    wanted += " communication_wait_seconds wire_seconds quantization_seconds synchronisation_seconds other_seconds"
    wanted += " bytes_sent bits stale"
    assert all(set(wanted.split()) <= set(record) for record in records)
    assert [record["val_metric"] is not None for record in records] == [False, False, False, True, False, True]
    assert records[0]["bytes_sent"] == summary["bytes_sent_per_epoch"] > 0


def test_resume_keeps_the_settings_of_the_run(mpi_ranks, train, tmp_path):
    run = tmp_path / "run"
    assert train("--epochs", 5, "--lr", 0.003, "--dropout", 0.1, "--model", "gcn").returncode == 0
    config = (run / "config.toml").read_text()
    mpi_ranks(2).command("train", "--out", run, "--resume", "--epochs", 8)
    assert (run / "config.toml").read_text() == config.replace("epochs = 5", "epochs = 8")
    whole = train("--epochs", 8, "--lr", 0.003, "--dropout", 0.1, "--model", "gcn", out=tmp_path / "whole")
    assert whole.returncode == 0
    assert weights(run) == weights(tmp_path / "whole")


def test_resuming_a_finished_run_changes_nothing(mpi_ranks, train, tmp_path):
    run = tmp_path / "run"
    assert train("--epochs", 200, "--patience", 3, "--eval-every", 2).returncode == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "summary.json"}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["stop_reason"] == "early stopping"
    assert summary["best_epoch"] <= summary["epochs"] - 1 < 199
    mpi_ranks(2).command("train", "--out", run, "--resume")
    fewer = mpi_ranks(2).command("train", "--out", run, "--resume", "--epochs", 2, check=False)
    assert "--epochs is the total number and must be at least" in fewer.stderr
    assert {path: path.read_bytes() for path in before} == before
    again = json.loads((run / "summary.json").read_text())
    same = ("best_epoch", "epochs", "stop_reason", "epoch_seconds_median", "bytes_sent_per_epoch", "best_val_metric")
    assert {name: again[name] for name in same} == {name: summary[name] for name in same}


def test_config_toml_repeats_a_run(train, tmp_path):
    assert train("--epochs", 5, "--lr", 0.02, "--model", "gcn").returncode == 0
    again = train("--config", tmp_path / "run" / "config.toml", out=tmp_path / "again")
    assert again.returncode == 0, again.stderr
    assert weights(tmp_path / "again") == weights(tmp_path / "run")
    assert (tmp_path / "again" / "config.toml").read_text() == (tmp_path / "run" / "config.toml").read_text()


def test_bytes_sent_follow_from_the_plan(train, parts):
    summary = json.loads(train("--epochs", 2, "--json", "--model", "gcn").stdout)
    plan = subprocess.run(
        [sys.executable, *HPCGNN, "plan", str(parts), "--json"], check=True, capture_output=True, text=True
    )
    rows = json.loads(plan.stdout)["strategies"]["hybrid"]["rows"]
    # The 9 features are aggregated unchanged, without a backward exchange; the 4 classes are exchanged in both directions.
    assert summary["bytes_sent_per_epoch"] == rows * 4 * (9 + 2 * 4)


def test_predictions_are_the_same_on_any_number_of_ranks(train, mpi_ranks, parts, tmp_path):
    run = tmp_path / "run"
    assert train("--epochs", 5).returncode == 0
    scores = []
    for ranks in (1, 2, 3):
        out = tmp_path / f"predictions-{ranks}.h5"
        mpi_ranks(ranks).command("predict", parts, run, "--out", out)
        with h5py.File(out) as file:
            scores.append(file["scores"][:])
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores[0], scores[2], rtol=1e-4, atol=1e-5)
    graph = small_graphs.random_multigraph(nodes=300, edges=3000)
    mask = graph.masks["val_mask"]
    accuracy = (scores[0].argmax(1) == graph.y)[mask].mean()
    assert accuracy == pytest.approx(json.loads((run / "summary.json").read_text())["best_val_metric"])


def test_a_node_order_is_undone_for_the_user(train, mpi_ranks, parts, tmp_path):
    """It changes neither metrics nor predictions, a resumed run keeps it, and a measured order is reported."""
    scores, losses = [], []
    assert train("--epochs", 6, out=tmp_path / "none").returncode == 0
    assert train("--epochs", 3, "--node-order", "hubs", out=tmp_path / "hubs").returncode == 0
    assert train("--epochs", 6, "--resume", out=tmp_path / "hubs").returncode == 0
    result = train("--epochs", 6, "--node-order", "auto", "--log-level", "info", out=tmp_path / "auto")
    assert result.returncode == 0
    assert "measured: none" in " ".join(result.stderr.split())
    for method in ("none", "hubs", "auto"):
        run, out = tmp_path / method, tmp_path / f"{method}.h5"
        assert f'node_order = "{method}"' in (run / "config.toml").read_text()
        orders = json.loads((run / "summary.json").read_text())["node_orders"]
        assert sum(orders.values()) == 2
        assert method == "auto" or orders == {method: 2}
        losses.append([json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()])
        mpi_ranks(2).command("predict", parts, run, "--checkpoint", "last", "--out", out)
        with h5py.File(out) as file:
            scores.append(file["scores"][:])
    for other in (1, 2):
        np.testing.assert_allclose(losses[other], losses[0], rtol=1e-5)
        np.testing.assert_allclose(scores[other], scores[0], rtol=1e-4, atol=1e-5)


def damaged(parts: Path, folder: Path) -> dict[str, Path]:
    """Files that cannot be used for training, by their defect."""
    files = {
        name: folder / f"{name}.h5"
        for name in ("missing", "truncated", "foreign", "version", "nan", "no-train", "no-order")
    }
    files["truncated"].write_bytes(parts.read_bytes()[:5000])
    with h5py.File(files["foreign"], "w") as file:
        file["temperature"] = np.arange(4)
    for name in ("version", "nan", "no-train", "no-order"):
        shutil.copy(parts, files[name])
    with h5py.File(files["version"], "a") as file:
        file.attrs["version"] = 99
    with h5py.File(files["nan"], "a") as file:
        file["nodes/x"][3, 2] = np.nan
    with h5py.File(files["no-train"], "a") as file:
        file["nodes/train_mask"][:] = False
    seal(files["no-train"])
    with h5py.File(files["no-order"], "a") as file:
        file["edges/indptr"][5] = 10**6
    return files


# Launchers kill the other ranks when one fails. This program keeps the exit code of each rank, and succeeds.
KEEP_EXIT_CODE = """
import os, pathlib, subprocess, sys
code = subprocess.call(sys.argv[2:], close_fds=False)  # MPICH talks to its ranks through an inherited one
pathlib.Path(sys.argv[1], f"exit.{os.getpid()}").write_text(str(code))
"""
OWN_COPY = """
import sys
from hpcgnn.cli.main import main
from hpcgnn.comm import MpiWorld
sys.argv = ["hpcgnn", "train", f"{sys.argv[1]}-{MpiWorld().rank}.h5", *sys.argv[2:]]
main()
"""
OWN_SETTINGS = """
import sys
from hpcgnn.cli.main import main
from hpcgnn.comm.job import launcher_rank
sys.argv = ["hpcgnn", "train", *sys.argv[2:], "--config", f"{sys.argv[1]}-{launcher_rank()}.toml"]
main()
"""
BAD_FILES = {
    "missing": "there is no file",
    "truncated": "truncated",
    "foreign": "is an HDF5 file that hpcgnn did not write, but a parts file is needed: give the output of `hpcgnn partition`",
    "version": "version 99",
    "nan": "NaN",
    "no-train": "no training nodes",
    "no-order": "edges/indptr holds 1000000",
}


@pytest.mark.parametrize(("problem", "sentence"), BAD_FILES.items())
def test_bad_files_end_all_ranks_with_one_sentence(train, parts, tmp_path, problem, sentence):
    graph = damaged(parts, tmp_path)[problem]
    result = train(graph=graph)
    assert len(errors_in(result)) == 1, result.stderr
    assert sentence in errors_in(result)[0]
    assert str(graph) in errors_in(result)[0]
    assert result.codes == [1, 1]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_wrong_file_of_settings_ends_all_ranks_with_one_sentence(train, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('layers = "two"')
    result = train("--config", path)
    assert errors_in(result) == [f"hpcgnn: error: {path}: layers must be a whole number, not 'two'"]
    assert result.codes == [1, 1]


def test_a_file_of_settings_that_one_node_lacks_ends_all_ranks_with_one_sentence(mpirun, parts, tmp_path):
    (tmp_path / "own-0.toml").write_text("epochs = 1")
    result = mpirun(2, ["-c", OWN_SETTINGS, tmp_path / "own", parts, "--out", tmp_path / "run"], check=False)
    assert result.returncode != 0
    assert errors_in(result) == [f"hpcgnn: error: cannot read {tmp_path}/own-1.toml: No such file or directory"]


def test_a_graph_in_place_of_parts_ends_in_the_command_for_these_ranks(train, tmp_path):
    graph = shutil.copy(DATA / "graph-version-3.h5", tmp_path / "a graph.h5")
    sentence = (
        f"{graph} is a graph file, but a parts file is needed: run `hpcgnn partition '{graph}' parts.h5 --parts 2`"
    )
    assert errors_in(train(graph=graph)) == [f"hpcgnn: error: {sentence}"]


def test_processes_end_with_one_sentence_and_the_same_exit_code(mpirun, tmp_path):
    """This tests the ends of the processes themselves, which shared ranks of other tests do not show."""
    keep_exit_code = ["-c", KEEP_EXIT_CODE, tmp_path, sys.executable, *HPCGNN]
    result = mpirun(2, [*keep_exit_code, "train", tmp_path / "no.h5", "--out", tmp_path / "run"])
    assert len(errors_in(result)) == 1, result.stderr
    assert "there is no file" in errors_in(result)[0]
    assert [path.read_text().strip() for path in tmp_path.glob("exit.*")] == ["1", "1"]


def test_node_local_copies_that_differ_are_refused_on_all_ranks(mpirun, parts, tmp_path):
    """Each process opens its own copy, and one label differs."""
    for rank in range(2):
        shutil.copy(parts, tmp_path / f"copy-{rank}.h5")
    with h5py.File(tmp_path / "copy-1.h5", "r+") as file:
        file["nodes/y"][-1] = (file["nodes/y"][-1] + 1) % file.attrs["num_classes"]
    seal(tmp_path / "copy-1.h5")
    result = mpirun(2, ["-c", OWN_COPY, tmp_path / "copy", "--out", tmp_path / "run", *SMALL], check=False)
    assert result.returncode != 0
    assert len(errors_in(result)) == 1, result.stderr
    assert "different files" in errors_in(result)[0]


def test_wrong_rank_count(train):
    result = train(ranks=3)
    assert result.returncode != 0
    assert len(errors_in(result)) == 1
    assert "2 parts" in result.stderr
    assert "3 ranks" in result.stderr


def test_a_run_is_not_overwritten_and_another_model_is_not_resumed(train, tmp_path):
    assert train("--epochs", 2).returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    result = train("--epochs", 2)
    assert "already holds a run" in errors_in(result)[0]
    result = train("--epochs", 4, "--resume", "--hidden", 8)
    assert len(errors_in(result)) == 1
    assert "another model" in result.stderr
    assert "hidden 16, this run has 8" in result.stderr
    assert {path: path.read_bytes() for path in before} == before


def _fill(disk: Path) -> None:
    """Use up all remaining space, down to the last page."""
    with (disk / "rest").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


@contextlib.contextmanager
def _small_disk(disk: Path, size: str) -> Iterator[None]:
    """A file system of this many bytes in a new folder."""
    require(os.geteuid() == 0, "root, to mount a small tmpfs")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(train, mpirun, parts, tmp_path):
    """Only rank 0 meets it, and all ranks end with it, so this needs a separate launch."""
    disk = tmp_path / "disk"
    with _small_disk(disk, "256k"):
        assert train("--epochs", 7, out=disk / "run").returncode == 0
        kept = weights(disk / "run")
        (disk / "filler").write_bytes(b"x" * (shutil.disk_usage(disk).free - 8192))  # room for some metrics only
        for every in (7, 1000):  # the checkpoint meets the full disk, or the metrics do
            again = ["train", parts, "--out", disk / "run", *SMALL, "--epochs", 50, "--resume"]
            result = mpirun(2, [*HPCGNN, *again, "--checkpoint-every", every], check=False)
            assert result.returncode != 0
            assert len(errors_in(result)) == 1, result.stderr
            assert "No space left" in result.stderr
            _fill(disk)
        assert weights(disk / "run") == kept
        assert not list((disk / "run").rglob("*.tmp"))


def test_an_error_on_one_rank_ends_all_at_once(mpirun):
    """No rank waits until the timeout, which would be reported."""
    program = Path(__file__).parents[1] / "ranks" / "one_fails.py"
    result = mpirun(3, [program], check=False)
    assert result.returncode != 0
    assert result.stderr.count("ValueError: only rank 1 knows") == 1
    assert "waited" not in result.stderr


def test_what_mpi_refuses_is_a_sentence(mpirun):
    """There is no traceback; the sentence names the rank and the call, and quotes MPI."""
    result = mpirun(2, [Path(__file__).parents[1] / "ranks" / "mpi_fails.py"], check=False)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    sentence = "hpcgnn: error on rank 1: MPI failed on rank 1 of 2 in numbers of another file: "
    # Open MPI names the truncated message, and MPICH the function in which it failed.
    told = [line for line in errors_in(result) if line.startswith(sentence)]
    assert any("trunc" in line.lower() or "internal_Test" in line for line in told), result.stderr
    assert all(line.endswith("run the same version?)") for line in told), "one line"


def test_predictions_never_replace_what_they_are_made_of(train, mpi_ranks, parts, tmp_path):
    run = tmp_path / "run"
    assert train("--epochs", 2).returncode == 0
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(parts)
    inputs = [parts, tmp_path / "link", run / "config.toml", *(run / "checkpoints").glob("*.pt")]
    before = {path: path.read_bytes() for path in inputs}
    for out in (*inputs, "/dev/null", tmp_path / "folder"):
        result = mpi_ranks(2).command("predict", parts, run, "--out", out, "--force", check=False)
        assert result.codes == [1, 1]
        assert len(errors_in(result)) == 1, result.stderr
        assert str(out) in errors_in(result)[0]
    assert {path: path.read_bytes() for path in inputs} == before
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_is_named_also_where_ranks_keep_rows(train, mpirun, parts, tmp_path):
    disk = tmp_path / "disk"
    with _small_disk(disk, "512k"):
        flags = ["--staleness", "pipeline", "--bits", "8"]
        assert train("--epochs", 7, *flags, out=disk / "run").returncode == 0
        # Room for the lock of the folder and for metrics, a page each, and for parts of a checkpoint.
        (disk / "filler").write_bytes(b"x" * (shutil.disk_usage(disk).free - 12288))
        again = ["train", parts, "--out", disk / "run", *SMALL, *flags, "--epochs", 14, "--resume"]
        result = mpirun(2, [*HPCGNN, *again], check=False)
        assert result.returncode != 0
        assert "Traceback" not in result.stderr
        told = errors_in(result)
        assert len(told) == 1, result.stderr
        assert re.search(r"cannot write .*run/checkpoints/messages/14-\d\.pt: No space left", told[0]), told


def test_names_of_files_may_be_any_bytes(tmp_path):
    """They contain neither markup nor valid UTF-8: they are shown, and stored in config.toml, from which a run is resumed."""
    folder = tmp_path / "a[" / os.fsdecode(b"x] :smile: \xff")
    folder.mkdir(parents=True)
    graph, parts, run = folder / "g.h5", folder / "p.h5", folder / "run"
    for words in (
        ["convert", "digits", graph],
        ["partition", graph, parts, "--parts", 1],
        ["train", parts, "--out", run, *SMALL, "--epochs", 1],
        ["train", "--out", run, "--resume", "--epochs", 2],
        ["predict", parts, run, "--out", folder / "scores.h5"],
    ):
        wide = os.environ | {"COLUMNS": "300"}  # no path is broken into lines
        result = subprocess.run([sys.executable, *HPCGNN, *map(str, words)], env=wide, capture_output=True, check=False)
        assert result.returncode == 0, result.stderr
        assert b"[/x]" in result.stdout
    assert (folder / "scores.h5").exists()


def test_command_line_mistakes_are_told_once(mpi_ranks):
    result = mpi_ranks(2).command("train", "x.h5", "--out", "y", "--layers", "none", check=False)
    assert result.returncode != 0
    assert result.stderr.count("Invalid value for '--layers'") == 1


def test_a_run_keeps_its_records_on_disk_only(tmp_path):
    """Otherwise the memory of every rank would grow with the epochs."""
    graph = small_graphs.random_multigraph()
    small_graphs.write_parts(tmp_path / "parts.h5", graph, np.zeros(graph.num_nodes, np.int64), 1)
    local = hpcgnn.load(tmp_path / "parts.h5", one_rank())
    for run in (None, RunFolder(tmp_path / "run")):
        model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=4), local)
        trainer = hpcgnn.Trainer(model, local, hpcgnn.TrainConfig(epochs=3), run=run, stop=StopRequest())
        summary = trainer.fit()
        assert summary["epoch_seconds_median"] > 0
        assert [each["epoch"] for each in (run.records() if run else trainer.records)] == [0, 1, 2]
        assert len(trainer.records) == (0 if run else 3)
