"""The main job through its command line: interruption, prediction, and errors."""

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
from rank_pool import ROOT, signal_ranks
from requires import require
from trainings import (
    HPCGNN,
    errors_in,
    kill,
    lines,
    losses,
    refusal,
    rows_of_pairs,
    start,
    summary,
    trainer_of,
    wait_for_epoch,
    weights,
)
from virtual_clusters import LONGEST_SECONDS

from hpcgnn.data.sealing import seal
from hpcgnn.train.run_folder import RunFolder

pytestmark = [pytest.mark.mpi, pytest.mark.launches]

FLAGS = ["--hidden", "16", "--layers", "2", "--checkpoint-every", "7"]
INT8 = ["--compute", "int8-always"]
ENDS = ROOT / "tests" / "ranks" / "ends.py"


def test_sigkill_and_resume_give_the_same_bytes(train, parts, tmp_path):
    flags = [*INT8, "--bits", 8, "--epochs", 60, "--schedule", "plateau", "--decay-every", 5, "--weight-decay", 0.001]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train("whole", *flags)
    process = start(parts, broken, *FLAGS, *flags)
    wait_for_epoch(broken, 25, process)  # between two checkpoints, or a few epochs later
    kill(process)
    train("broken", *flags, "--resume")
    for name in ("last.pt", "best.pt"):
        assert weights(broken, name) == weights(whole, name)
    assert [record["epoch"] for record in lines(broken)] == list(range(60))
    assert losses(broken) == losses(whole)


def test_usr1_writes_a_checkpoint_and_stops_cleanly(parts, tmp_path):
    out = tmp_path / "run"
    process = start(parts, out, *FLAGS, "--epochs", 10**7, "--checkpoint-every", 100000)
    wait_for_epoch(out, 5, process)
    assert signal_ranks(process.pid, signal.SIGUSR1) == 2
    output, problems = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == 0, problems
    assert "--resume" in output
    assert not summary(out)["finished"]
    stored = torch.load(out / "checkpoints" / "last.pt", weights_only=True)["next_epoch"]
    assert stored == summary(out)["epochs"] == len(lines(out))


def test_usr1_is_never_fatal_even_before_training_starts(parts, tmp_path):
    out = tmp_path / "run"
    process = start(parts, out, *FLAGS, "--epochs", 30)
    deadline = time.monotonic() + LONGEST_SECONDS
    while process.poll() is None and time.monotonic() < deadline:  # from MPI's start to its end
        if out.exists():  # every rank has passed the start of Python
            signal_ranks(process.pid, signal.SIGUSR1)  # while a launcher exits, a signal may find it without a handler
        time.sleep(0.02)
    _, problems = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == 0, problems
    assert summary(out)["stop_reason"] == "SIGUSR1"


def test_ctrl_c_stops_all_ranks_with_one_message(parts, tmp_path):
    out = tmp_path / "run"
    process = start(parts, out, *FLAGS, "--epochs", 10**7)
    wait_for_epoch(out, 20, process)
    os.kill(process.pid, signal.SIGINT)  # the signal that a terminal sends to the launcher
    _, problems = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode != 0
    assert problems.count("hpcgnn: stopped") == 1, problems
    assert torch.load(out / "checkpoints" / "last.pt", weights_only=True)["next_epoch"] >= 14


def test_summary_and_metrics_hold_what_others_read(train, parts, tmp_path):
    told = json.loads(train("run", "--epochs", 6, "--eval-every", 4, "--model", "gcn", "--json").stdout)
    assert told == summary(tmp_path / "run")
    wanted = "metric_name best_val_metric test_metric_at_best_val epoch_seconds_median bytes_sent_per_epoch"
    wanted += " peak_memory_bytes_per_rank ranks threads_per_rank versions"
    assert set(wanted.split()) <= set(told)
    records = lines(tmp_path / "run")
    wanted = "epoch loss seconds eval_seconds train_metric val_metric test_metric aggregation_seconds"
    wanted += " communication_wait_seconds wire_seconds quantization_seconds synchronisation_seconds other_seconds"
    wanted += " bytes_sent bits stale"
    assert all(set(wanted.split()) <= set(record) for record in records)
    assert [record["val_metric"] is not None for record in records] == [False, False, False, True, False, True]
    # The 9 features are aggregated unchanged, without a backward exchange; the 4 classes are exchanged in both directions.
    expected = sum(rows_of_pairs(parts)) * 4 * (9 + 2 * 4)
    assert records[0]["bytes_sent"] == told["bytes_sent_per_epoch"] == expected > 0


def test_a_measured_node_order_is_told_and_kept(train, tmp_path):
    result = train("run", "--epochs", 1, "--node-order", "auto", "--log-level", "info")
    assert "measured: none" in " ".join(result.stderr.split())
    assert 'node_order = "auto"' in (tmp_path / "run" / "config.toml").read_text()
    assert sum(summary(tmp_path / "run")["node_orders"].values()) == 2


# -- errors: one sentence, and the same exit code on all ranks --------------------------------------------------------


def damaged(parts: Path, path: Path, dataset: str, place: object, value: object) -> None:
    """The parts file with another value in a place of a dataset."""
    shutil.copy(parts, path)
    with h5py.File(path, "a") as file:
        file[dataset][place] = value


def copy_of(parts: Path, path: Path, *change: object) -> None:
    """The same with right checksums."""
    damaged(parts, path, *change)
    seal(path)


# How the file is made of the parts, and what is said of it.
BAD_FILES = {
    "missing": (lambda parts, path: None, "there is no file"),
    "nan": (lambda parts, path: damaged(parts, path, "nodes/x", (3, 2), np.nan), "NaN"),
    "no-train": (lambda parts, path: copy_of(parts, path, "nodes/train_mask", ..., False), "no training nodes"),
    "no-order": (lambda parts, path: damaged(parts, path, "edges/indptr", 5, 10**6), "edges/indptr holds 1000000"),
    "a graph": (
        lambda parts, path: shutil.copy(ROOT / "tests" / "data" / "graph-version-3.h5", path),
        "is a graph file, but a parts file is needed: run `hpcgnn partition '{}' parts.h5 --parts 2`",
    ),
}


@pytest.mark.parametrize("problem", BAD_FILES)
def test_bad_files_end_all_ranks_with_one_sentence(train, parts, tmp_path, problem):
    make, sentence = BAD_FILES[problem]
    graph = tmp_path / f"{problem}.h5"
    make(parts, graph)
    error = refusal(train("run", graph=graph, check=False))
    assert sentence.format(graph) in error
    assert str(graph) in error
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_wrong_file_of_settings_ends_all_ranks_with_one_sentence(train, tmp_path):
    """The second file is missing on the node of rank 1."""
    wrong, of_rank = tmp_path / "settings.toml", tmp_path / "settings-{rank}.toml"
    wrong.write_text('layers = "two"')
    (tmp_path / "settings-0.toml").write_text("epochs = 1")
    for path, sentence in (
        (wrong, f"{wrong}: layers must be a whole number, not 'two'"),
        (of_rank, f"cannot read {tmp_path}/settings-1.toml: No such file or directory"),
    ):
        assert refusal(train("run", "--config", path, check=False)) == f"hpcgnn: error: {sentence}"


def test_node_local_copies_that_differ_are_refused_on_all_ranks(train, parts, tmp_path):
    """Each rank opens its own copy, and one label differs."""
    with h5py.File(parts) as file:
        other = (file["nodes/y"][-1] + 1) % file.attrs["num_classes"]
    shutil.copy(parts, tmp_path / "copy-0.h5")
    copy_of(parts, tmp_path / "copy-1.h5", "nodes/y", -1, other)
    assert "different files" in refusal(train("run", graph=tmp_path / "copy-{rank}.h5", check=False))


def test_wrong_rank_count(train):
    error = refusal(train("run", ranks=3, check=False))
    assert "2 parts" in error
    assert "3 ranks" in error


def test_a_run_is_not_overwritten_and_another_model_is_not_resumed(train, tmp_path):
    train("run", "--epochs", 2)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for flags, words in (
        ([], ["already holds a run"]),
        (["--resume", "--hidden", 8], ["another model", "hidden 16, this run has 8"]),
        (["--resume", "--label-propagation", 0.5], ["it has label_inputs False, this run has True"]),
    ):
        error = refusal(train("run", "--epochs", 4, *flags, check=False))
        assert all(word in error for word in words), error
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
    """Launches of its own, because only rank 0 meets the full disk, and it ends all processes."""
    disk = tmp_path / "disk"
    with _small_disk(disk, "256k"):
        train("disk/run", "--epochs", 7)
        kept = weights(disk / "run")
        (disk / "filler").write_bytes(b"x" * (shutil.disk_usage(disk).free - 8192))  # room for some metrics only
        for every in (7, 1000):  # the checkpoint meets the full disk, or the metrics do
            again = ["train", parts, "--out", disk / "run", *FLAGS, "--epochs", 50, "--resume"]
            result = mpirun(2, [*HPCGNN, *again, "--checkpoint-every", every], check=False)
            assert result.returncode != 0
            (error,) = errors_in(result)
            assert "No space left" in error
            _fill(disk)
        assert weights(disk / "run") == kept
        assert not list((disk / "run").rglob("*.tmp"))


def test_an_error_on_one_rank_ends_all_at_once(mpirun):
    """A launch of its own, because the error ends all processes. No rank waits until the timeout, which would be reported."""
    result = mpirun(3, [ENDS, "one_fails"], check=False)
    assert result.returncode != 0
    assert result.stderr.count("ValueError: only rank 1 knows") == 1
    assert "waited" not in result.stderr


def test_what_mpi_refuses_is_a_sentence(mpirun):
    """A launch of its own, because the error ends all processes. There is no traceback; the sentence names the rank and the
    call, and quotes MPI.
    """
    result = mpirun(2, [ENDS, "mpi_fails"], check=False)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    sentence = "hpcgnn: error on rank 1: MPI failed on rank 1 of 2 in numbers of another file: "
    # Open MPI names the truncated message, and MPICH the function in which it failed.
    told = [line for line in errors_in(result) if line.startswith(sentence)]
    assert any("trunc" in line.lower() or "internal_Test" in line for line in told), result.stderr
    assert all(line.endswith("run the same version?)") for line in told), "one line"


def test_predictions_never_replace_what_they_are_made_of(train, mpi_ranks, parts, tmp_path):
    run = tmp_path / "run"
    train("run", "--epochs", 2)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(parts)
    inputs = [parts, tmp_path / "link", run / "config.toml", *(run / "checkpoints").glob("*.pt")]
    before = {path: path.read_bytes() for path in inputs}
    for out in (*inputs, "/dev/null", tmp_path / "folder"):
        assert str(out) in refusal(mpi_ranks(2).command("predict", parts, run, "--out", out, "--force", check=False))
    assert {path: path.read_bytes() for path in inputs} == before
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_is_named_also_where_ranks_keep_rows(train, tmp_path):
    disk = tmp_path / "disk"
    with _small_disk(disk, "512k"):
        flags = ["--staleness", "pipeline", "--bits", "8"]
        train("disk/run", "--epochs", 7, *flags)
        # Room for the lock of the folder, for metrics and for decisions, a page each, and for parts of a checkpoint.
        (disk / "filler").write_bytes(b"x" * (shutil.disk_usage(disk).free - 16384))
        error = refusal(train("disk/run", *flags, "--epochs", 14, "--resume", check=False))
        assert re.search(r"cannot write .*run/checkpoints/messages/14-\d\.pt: No space left", error), error


def test_names_of_files_may_be_any_bytes(tmp_path):
    """They contain neither markup nor valid UTF-8: they are shown, and stored in config.toml, from which a run is resumed."""
    folder = tmp_path / "a[" / os.fsdecode(b"x] :smile: \xff")
    folder.mkdir(parents=True)
    run, parts = folder / "run", small_graphs.in_parts(folder / "p.h5", small_graphs.random_multigraph(), 1)
    for words in (
        ["train", parts, "--out", run, *FLAGS, "--epochs", 1],
        ["train", "--out", run, "--resume", "--epochs", 2],
        ["predict", parts, run, "--out", folder / "scores.h5"],
    ):
        wide = os.environ | {"COLUMNS": "300"}  # no path is broken into lines
        result = subprocess.run([sys.executable, *HPCGNN, *map(str, words)], env=wide, capture_output=True, check=False)
        assert result.returncode == 0, result.stderr
        assert b"[/x]" in result.stdout
    assert (folder / "scores.h5").exists()


def test_a_run_keeps_its_records_on_disk_only(graph, tmp_path):
    """Otherwise the memory of every rank would grow with the epochs."""
    for run in (None, RunFolder(tmp_path / "run")):
        trainer = trainer_of(graph, {"layers": 2, "hidden": 4, "epochs": 3}, run=run)
        assert trainer.fit()["epoch_seconds_median"] > 0
        assert [each["epoch"] for each in (run.records() if run else trainer.records)] == [0, 1, 2]
        assert len(trainer.records) == (0 if run else 3)
