"""``hpcgnn check``: it reports the content of valid files, and names the damaged part of others."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hpcgnn.cli.check import check
from hpcgnn.data import plan_store, whole_check
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.data.sealing import seal
from hpcgnn.errors import HpcgnnError

DATA = Path(__file__).parents[1] / "data"


def facts(path: Path) -> dict:
    """The command's output for a valid file."""
    result = CliRunner().invoke(check, [str(path), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def refusal(path: Path) -> str:
    """The command's sentence for a damaged file."""
    with pytest.raises(HpcgnnError) as error:
        CliRunner().invoke(check, [str(path)], catch_exceptions=False)
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Two parts with a plan."""
    return Path(shutil.copy(DATA / "parts-version-3.h5", tmp_path / "parts.h5"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with the files of an old version."""
    (tmp_path / "run" / "checkpoints" / "messages").mkdir(parents=True)
    (tmp_path / "run" / "config.toml").write_text('model = "gcn"\nhidden = 4\n')
    (tmp_path / "run" / "metrics.jsonl").write_text('{"epoch": 0, "bits": 2, "stale": false, "loss": 1.5}\n')
    shutil.copy(DATA / "checkpoint-version-2.pt", tmp_path / "run" / "checkpoints" / "last.pt")
    shutil.copy(DATA / "messages-version-2.pt", tmp_path / "run" / "checkpoints" / "messages" / "2-0.pt")
    return tmp_path / "run"


def test_what_a_file_holds_is_told(parts: Path) -> None:
    told = facts(parts)
    with PartsFile(parts) as file:
        assert told["uuid"] == file.uuid
        assert (told["nodes"], told["edges"], told["parts"]) == (file.meta.num_nodes, file.meta.num_edges, 2)
    assert (told["kind"], told["version"], told["plans"], told["checksums"]) == ("hpcgnn-parts", 3, ["hybrid"], True)
    with h5py.File(parts) as file:
        arrays = [each for each in items(file) if each.name.rpartition("/")[2] != "checksums"]
    assert told["arrays"] == len(arrays)
    assert told["bytes"] == sum(each.nbytes for each in arrays)
    assert facts(DATA / "graph-version-3.h5")["kind"] == "hpcgnn-graph"


def items(group: h5py.Group) -> list[np.ndarray]:
    found: list = []
    group.visititems(lambda name, item: found.append(Named(name, item)) if isinstance(item, h5py.Dataset) else None)
    return found


class Named:
    """Refers to a dataset by name after its file was closed."""

    def __init__(self, name: str, item: h5py.Dataset) -> None:
        self.name, self.nbytes = name, item.nbytes


def test_a_file_without_checksums_is_looked_at_by_value(tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / "parts-version-1.h5", tmp_path))
    assert not facts(path)["checksums"]
    shown = CliRunner().invoke(check, [str(path)]).stdout
    assert "changed bytes may remain unnoticed" in " ".join(shown.split())
    with h5py.File(path, "r+") as file:
        file["edges/indices"][-1] = 10**6
    assert "edges/indices holds 1000000" in refusal(path)


def test_each_step_is_told_to_the_progress_bar(parts: Path) -> None:
    steps: list[int] = []
    with PartsFile(parts) as file:
        whole_check.verify(file, steps.append)
        assert sum(steps) == whole_check.count_steps(file) == 4


@pytest.mark.parametrize(
    ("name", "row", "where"),
    [
        ("nodes/x", 0, "nodes/x (part 0)"),
        ("edges/indices", -1, "edges/indices"),
        ("plan/hybrid/S_edges", -1, "plan/hybrid/S_edges (part 1)"),
        ("plan/hybrid/L_indices", 0, "plan/hybrid/L_indices"),
    ],
)
def test_damage_is_named_with_its_array_and_part(parts: Path, name: str, row: int, where: str) -> None:
    with h5py.File(parts, "r+") as file:
        file[name][row] = file[name][row] + 1
    assert where in refusal(parts)


def test_ids_and_edges_are_counted_over_all_parts(parts: Path) -> None:
    """Each part is valid by itself, checksums included."""
    with h5py.File(parts, "r+") as file:
        ids, offsets = file["nodes/original_ids"], file["parts/node_offsets"]
        ids[int(offsets[1]) :] = ids[: int(offsets[2] - offsets[1])]
    seal(parts)
    assert "nodes/original_ids are not the numbers from 0 to" in refusal(parts)


def test_a_plan_that_counts_an_edge_twice_is_found(parts: Path) -> None:
    with h5py.File(parts, "r+") as file:
        indptr, offsets = file["plan/hybrid/L_indptr"], file["plan/hybrid/L_offsets"]
        wanted = int(offsets[1, 1])  # the last entry of part 0 becomes the first of part 1
        assert indptr[int(offsets[1, 0]) - 1] == wanted
        offsets[1, 1] = wanted - 1
        rows = int(offsets[1, 0])
        indptr[:rows] = np.minimum(indptr[:rows], wanted - 1)
        last = int(offsets[1, 0])
        indptr[last + 1 :] = indptr[last + 1 :] + 1
        file["plan/hybrid/L_indices"][wanted - 1] = 0
        first_edge = int(file["edges/indptr"][int(file["parts/node_offsets"][1])])
        file["plan/hybrid/L_edges"][wanted - 1] = first_edge
    seal(parts)
    assert "plan/hybrid has" in refusal(parts)


def test_plans_of_another_version_or_partition_are_told_apart(parts: Path) -> None:
    with h5py.File(parts, "r+") as file:
        file["plan/hybrid"].attrs["plan_version"] = 99
    told = facts(parts)
    assert (told["plans"], told["plans_out_of_use"]) == ([], ["hybrid"])
    assert plan_store.store_plans(parts, ["hybrid"]) == ["hybrid"]
    assert facts(parts)["plans"] == ["hybrid"]


def test_a_run_is_checked_with_all_its_files(run: Path) -> None:
    told = facts(run)
    assert told["files"] == ["config.toml", "metrics.jsonl", "checkpoints/last.pt", "checkpoints/messages/2-0.pt"]
    last = run / "checkpoints" / "last.pt"
    assert facts(last)["next_epoch"] == 2
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    assert "damaged" in refusal(run)
    last.unlink()
    (run / "metrics.jsonl").write_text('{"epoch": "first"}\n')
    assert "metrics.jsonl, line 1" in refusal(run)


def test_what_is_no_file_of_hpcgnn_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert "is not a file of hpcgnn" in refusal(tmp_path / "empty")
    assert "does not exist" in refusal(tmp_path / "missing")
    assert "but not a run folder" in refusal(tmp_path)


def test_the_command_ends_with_one_sentence_and_has_help(parts: Path) -> None:
    parts.write_bytes(parts.read_bytes()[:9000])
    command = [sys.executable, "-m", "hpcgnn", "check"]
    job = subprocess.run([*command, str(parts)], capture_output=True, text=True, timeout=120)
    assert job.returncode == 1
    assert job.stderr.startswith("hpcgnn: error: ")
    assert len(job.stderr.splitlines()) == 1
    text = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=120, check=True).stdout
    assert "hpcgnn check parts.h5" in text
