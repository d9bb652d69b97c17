"""A killed partition continues where it was; several processes and threads write the same bytes as one."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from partition_graphs import datasets, random_graph
from rank_pool import ThreadPool
from ranks import partitions
from requires import require

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import plan_pieces
from hpcgnn.partition import PartitionOptions, part_order, partition, partitioner, problem, work
from hpcgnn.world import whole_job

OPTIONS = {"num_parts": 5, "method": "ldg", "jobs": 1}
MOMENTS = {
    "before anything": ("hpcgnn.partition.partitioner._assign", 1),
    "after the assignment": ("hpcgnn.partition.partitioner._write", 1),
    "while features are written": ("hpcgnn.partition.part_order.Reordering._write_rows", 7),
    "while edges are written": ("hpcgnn.partition.part_order.Reordering._write_edges", 9),
    "before the checksums": ("hpcgnn.partition.partitioner._seal", 1),
    "while parts are planned": ("hpcgnn.data.plan_pieces.make", 4),
    "while the plan is added": ("hpcgnn.data.plan_store._write_senders", 1),
    "before the name": ("hpcgnn.base.whole_file.put", 1),
}

FOLDER = r"\.parts\.h5\.work"
REFUSED = {
    "hpcgnn.partition.work._replace": r"parts\.h5",
    "hpcgnn.partition.work._checksum": FOLDER + "/assignment",
    "hpcgnn.data.h5.SlabWriter.write": "the parts",
    "hpcgnn.data.sealing.store": FOLDER + r"/parts\.h5",
    "hpcgnn.partition.partitioner.make_pieces": FOLDER,
    "hpcgnn.data.plan_store.add_plan": r"parts\.h5",
    "hpcgnn.data.plan_store.assemble": FOLDER + r"/parts\.h5",
}


def ready(graph, path, **options):
    return partition(whole_job(), graph, path, PartitionOptions(**OPTIONS | options))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return random_graph(400, 3000, rich=False).write(tmp_path_factory.mktemp("graph") / "graph.h5")


@pytest.fixture(scope="module")
def undisturbed(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "parts.h5"
    ready(graph, path)
    return datasets(path)


@pytest.fixture(scope="module")
def writing(graph, tmp_path_factory):
    """The files left by a run that was killed while it wrote edges."""
    folder = tmp_path_factory.mktemp("killed")
    kill(graph, folder / "parts.h5", "while edges are written")
    return folder


@pytest.fixture
def killed(writing, tmp_path):
    """A copy of these files, to be changed; and the path of its parts file."""
    shutil.copytree(writing, tmp_path / "own")
    return tmp_path / "own" / "parts.h5"


def check_same(path, expected):
    """Check that everything is equal, except the checksums of the attributes of the plan and of the file, which include the
    uuid.
    """
    found = datasets(path)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert values.tobytes() == found[name].tobytes(), name
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def kill(graph, path, moment):
    """Partition in a forked process, which has imported everything, that ends by SIGKILL at that moment."""
    process = multiprocessing.get_context("fork").Process(target=killed_at, args=(graph, path, *MOMENTS[moment]))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not path.exists()
    assert (path.parent / ".parts.h5.work").is_dir()


def killed_at(graph, path, name, count):
    """Partition in small chunks, and end at the given number of calls of a function."""
    work._NOTE_EVERY_SECONDS = 0
    part_order.CHUNK_BYTES, part_order._RUN_BYTES, problem.CHUNK_EDGES = 256, 1, 100
    original, calls = pkgutil.resolve_name(name), []

    def deadly(*arguments):
        calls.append(1)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    pytest.MonkeyPatch().setattr(name, deadly)
    ThreadPool(1).run(partitions.partitioned, graph, path, OPTIONS)


def made_again(*_):
    pytest.fail("what was there was made again")


@pytest.mark.parametrize("moment", MOMENTS)
def test_goes_on_after_a_kill(graph, undisturbed, tmp_path, monkeypatch, caplog, moment):
    path = tmp_path / "parts.h5"
    kill(graph, path, moment)
    reused = {"while edges are written": "_write_rows", "while parts are planned": "run"}
    if moment != "before anything":
        monkeypatch.setattr(partitioner, "_assign", made_again)
    if moment in reused:
        monkeypatch.setattr(part_order.Reordering, reused[moment], made_again)
    with caplog.at_level(logging.WARNING, "hpcgnn"):
        report = ready(graph, path)
    assert sum("continuing the stopped run whose work is" in each for each in caplog.messages) == 1
    assert report.method == "ldg"
    check_same(path, undisturbed)


def test_pieces_that_are_there_are_not_made_again(graph, undisturbed, tmp_path, monkeypatch):
    path = tmp_path / "parts.h5"
    kill(graph, path, "while parts are planned")  # the fourth of five
    made = []
    make = plan_pieces.make
    monkeypatch.setattr(plan_pieces, "make", lambda *given: (made.append(given[-1]), make(*given)))
    piece = plan_pieces.path_of(tmp_path / ".parts.h5.work", "hybrid", 1)
    content = piece.read_bytes()
    piece.write_bytes(content[:-1] + bytes([content[-1] ^ 0xFF]))  # damaged since then
    ready(graph, path)
    assert made == [1, 3, 4]
    check_same(path, undisturbed)


@pytest.mark.parametrize("change", [{"seed": 1}, {"num_parts": 4}, {"plan": "none"}, {"force": True}])
def test_starts_anew_with_other_arguments(graph, killed, tmp_path, caplog, change):
    with caplog.at_level(logging.WARNING, "hpcgnn"):
        ready(graph, killed, **change)
    assert "removing" in caplog.text
    ready(graph, tmp_path / "other.h5", **change)
    check_same(killed, datasets(tmp_path / "other.h5"))


@pytest.mark.parametrize("damage", [b"", b"\0" * 40])
@pytest.mark.parametrize("name", ["assignment", "assignment.json", "key.json", "parts.h5", "written.0.1"])
def test_what_is_damaged_is_made_anew(graph, undisturbed, killed, name, damage):
    (killed.parent / ".parts.h5.work" / name).write_bytes(damage)
    ready(graph, killed)
    check_same(killed, undisturbed)


def test_the_work_of_a_run_that_has_named_its_file_is_removed(graph, tmp_path, monkeypatch):
    path, remove = tmp_path / "parts.h5", shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **how: None)  # as if it were killed, or the system refused
    ready(graph, path)
    assert (tmp_path / ".parts.h5.work").is_dir()
    monkeypatch.setattr(shutil, "rmtree", remove)
    with pytest.raises(HpcgnnError, match="exists: choose another name"):
        ready(graph, path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_work_of_a_forced_run_outlives_a_refusal(graph, tmp_path):
    """A killed run with --force has left hours of work beside the file that it was to replace."""
    path, folder = tmp_path / "parts.h5", tmp_path / ".parts.h5.work"
    ready(graph, path)
    folder.mkdir()
    (folder / "key.json").write_text('{"key": {}, "uuid": "of the new file"}')
    with pytest.raises(HpcgnnError, match="exists: choose another name"):
        ready(graph, path)
    assert (folder / "key.json").exists()


def test_a_lock_that_cannot_be_closed_costs_nothing(tmp_path):
    path = tmp_path / "parts.h5"
    with work.kept(whole_job(), path, {}, force=False, inputs=[]) as held:
        held.parts.write_text("whole")
        links = {int(entry.name): entry for entry in Path("/proc/self/fd").iterdir()}
        os.close(next(number for number, link in links.items() if link.exists() and link.readlink().name == "lock"))
    assert path.read_text() == "whole"


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_system_refuses_is_named(graph, tmp_path, monkeypatch, name):
    def refused(*_):
        raise OSError(errno.EIO, "Input/output error")  # an error of an open file, without a name

    path = tmp_path / "parts.h5"
    path.write_text("old")
    monkeypatch.setattr(name, refused)
    with pytest.raises(HpcgnnError, match=rf"{REFUSED[name]}: Input/output error$"):
        ready(graph, path, force=True)
    assert path.read_text() == "old"
    if not name.endswith("_replace"):  # a folder whose key cannot be written stays
        assert list(tmp_path.iterdir()) == [path]


def test_two_at_once_are_refused(graph, tmp_path):
    path = tmp_path / "parts.h5"
    holds = work.kept(whole_job(), path, {}, force=False, inputs=[])
    holds.__enter__()
    with pytest.raises(HpcgnnError, match="another process is writing") as refused:
        ready(graph, path)
    holds.__exit__(HpcgnnError, refused.value, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_go_on_as_well(graph, undisturbed, killed, size):
    """Written rows are reused only with the same number of ranks; the assignment is reused with any number."""
    (report, *_) = ThreadPool(size).run(partitions.partitioned, graph, killed, OPTIONS)
    assert "made by the run that this one continues" in report["reason"]
    check_same(killed, undisturbed)


def test_a_worker_that_is_killed_is_one_sentence(graph, tmp_path, monkeypatch):
    start = plan_pieces._Worker.__enter__

    def killed(worker):
        os.kill(worker._process.pid, signal.SIGKILL)
        return start(worker)

    monkeypatch.setattr(plan_pieces._Worker, "__enter__", killed)
    with pytest.raises(HpcgnnError, match=r"ended \(signal 9\): if memory is short, take fewer --jobs"):
        ready(graph, tmp_path / "parts.h5", jobs=2)
    assert list(tmp_path.iterdir()) == []


def test_workers_import_neither_torch_nor_numba():
    program = "import sys, hpcgnn.data.plan_pieces; print({'torch', 'numba', 'mpi4py'} & sys.modules.keys())"
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stdout == "set()\n"


@pytest.mark.parametrize("planted", ["link", "folder of another user"])
def test_work_that_somebody_else_has_left_is_not_used(graph, tmp_path, planted):
    folder = tmp_path / ".p.h5.work"
    if planted == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        require(os.geteuid() == 0, "root, to make a folder of another user")
        tmp_path.chmod(0o1777)  # as /tmp; in a private or a group's folder, the work of other users may be continued
        folder.mkdir()
        os.chown(folder, 65534, 65534)
    with pytest.raises(HpcgnnError, match=r"p\.h5\.work.* belongs to another user or is not a folder: remove it"):
        ready(graph, tmp_path / "p.h5")
    assert not (tmp_path / "p.h5").exists()
    assert not any(folder.iterdir())
