"""A damaged ``graph.h5``: ``partition`` verifies all of it before it does anything else."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from partition_graphs import random_graph
from rank_pool import ThreadPool
from ranks import partitions
from small_graphs import flip

from hpcgnn.data import graph_file
from hpcgnn.data.graph_file import GraphFile

OPTIONS = {"num_parts": 3, "method": "block"}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph in several blocks: weighted, with sparse features and several labels for each node."""
    monkeypatch.setattr(graph_file, "_BLOCK_NODES", 50)
    return random_graph(rich=True).write(tmp_path / "graph.h5")


def sentence_of(path: Path, ranks: int = 2) -> str:
    answers = ThreadPool(ranks).run(partitions.partitioned, path, path.with_name("parts.h5"), OPTIONS)
    assert all(answer == {"error": answers[0].get("error"), "agreed": True} for answer in answers), answers
    assert not path.with_name("parts.h5").exists()
    assert str(path) in answers[0]["error"]
    return answers[0]["error"]


def test_a_flipped_bit_is_named_whatever_the_block(path: Path) -> None:
    with GraphFile(path) as graph:
        assert graph.num_slabs == 5
        places = [(name, (0, 4)[n % 2]) for n, name in enumerate(graph.rules)]
        rows = {name: graph.slab_rows(name, block) for name, block in places}
    assert len(rows) == 12
    for name, block in places:
        copy = Path(shutil.copy(path, path.with_name("flipped.h5")))
        with h5py.File(copy) as file:
            dataset = file[name]
            flip(copy, dataset.id.get_offset() + sum(rows[name]) // 2 * (dataset.nbytes // dataset.shape[0]))
        sentence = sentence_of(copy)
        assert name in sentence, (name, sentence)
        assert f"block {block}" in sentence, (name, sentence)


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("edges/weight", 9, np.nan),
        ("nodes/x_data", 9, np.inf),
        ("nodes/x_indices", 9, 31),
        ("nodes/x_indptr", 9, 10**6),
        ("nodes/y", (9, 0), 2),
        ("edges/indptr", 0, 1),
    ],
)
def test_version_1_is_looked_at_by_value(path: Path, name: str, index: object, value: float) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 1
        del file["checksums"]
    ThreadPool(2).run(partitions.partitioned, path, path.with_name("whole.h5"), OPTIONS)
    assert path.with_name("whole.h5").exists()
    with h5py.File(path, "r+") as file:
        file[name][index] = value
    assert name in sentence_of(path)
