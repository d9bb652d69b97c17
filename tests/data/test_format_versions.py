"""For every version of every format that hpcgnn writes, the tests' data have a file written by that version."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import pytest
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import whole_check
from hpcgnn.data.graph_file import GRAPH_VERSION, PARTS_VERSION, GraphFile, PartsFile, reader_of
from hpcgnn.data.plan_store import PLAN_VERSION
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.train import archive, checkpoint, predict, rank_state
from hpcgnn.world.thread_world import on_threads, one_rank

HERE = Path(__file__).parent
# The present versions. If you raise one, add a file of the new version, written by its command, and keep the old ones.
NOW = {
    "graph-version-{}.h5": GRAPH_VERSION,
    "parts-version-{}.h5": PARTS_VERSION,
    "checkpoint-version-{}.pt": checkpoint.CHECKPOINT_VERSION,
    "messages-version-{}.pt": checkpoint.CHECKPOINT_VERSION,
    "predictions-version-{}.h5": predict.PREDICTIONS_VERSION,
}
KEPT = [name.format(version) for name, newest in NOW.items() for version in range(1, newest + 1)]


def looked_at(path: Path) -> dict:
    """The content of a file of any format, after all of it was verified."""
    if ".pt" in path.name:
        return checkpoint.look_at(path)
    if path.name.startswith("predictions"):
        return predict.look_at_predictions(path)
    with reader_of(path)(path) as reader:
        return whole_check.verify(reader)


@pytest.mark.parametrize("name", KEPT)
def test_files_of_every_version_are_kept_and_read(name: str, tmp_path: Path) -> None:
    found = looked_at(HERE / name)
    if name.startswith("graph"):
        partition(one_rank(), str(HERE / name), str(tmp_path / "parts.h5"), PartitionOptions(2, method="random"))
        assert looked_at(tmp_path / "parts.h5")["nodes"] == found["nodes"]
    if "rows" not in found:  # files of ranks beside a checkpoint, whose format is that of the checkpoint's files
        assert found["version"] == int(name.split("-")[-1].split(".")[0])


def test_the_newest_files_are_of_the_versions_of_now() -> None:
    assert tuple(range(1, GRAPH_VERSION + 1)) == GraphFile.VERSIONS
    assert tuple(range(1, PARTS_VERSION + 1)) == PartsFile.VERSIONS
    with PartsFile(HERE / f"parts-version-{PARTS_VERSION}.h5") as parts:
        assert int(parts.file["plan/hybrid"].attrs["plan_version"]) == PLAN_VERSION  # plans have their own version
        assert whole_check.verify(parts)["plans"] == ["hybrid"]
    messages = looked_at(HERE / f"messages-version-{checkpoint.CHECKPOINT_VERSION}.pt")
    assert messages["format"] == rank_state._FORMAT


def of_version(version: int, path: Path) -> Path:
    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            file.attrs["version"] = version
        return path
    content = torch.load(path, weights_only=True) | {"version": version}
    content.pop("digest", None)
    torch.save(content | {"digest": archive.digest_of(content)}, path)
    return path


@pytest.mark.parametrize("name", [name.format(newest) for name, newest in NOW.items() if "messages" not in name])
def test_files_of_a_later_version_say_to_update(name: str, tmp_path: Path) -> None:
    path = of_version(99, Path(shutil.copy(HERE / name, tmp_path)))
    with pytest.raises(HpcgnnError, match=r"version 99.*update hpcgnn"):
        looked_at(path)
    of_version(0, path)
    with pytest.raises(HpcgnnError, match="version 0, but this hpcgnn reads") as error:
        looked_at(path)
    assert "update" not in str(error.value)


def test_old_checkpoints_are_read_by_all_ranks() -> None:
    for version in range(1, checkpoint.CHECKPOINT_VERSION + 1):
        path = HERE / f"checkpoint-version-{version}.pt"
        contents = on_threads(2, lambda world, path=path: checkpoint.read(world, path, None, checkpoint.Last))
        assert [content["next_epoch"] for content in contents] == [2, 2]
