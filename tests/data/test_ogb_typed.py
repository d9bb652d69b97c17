"""ogbn-mag, whose nodes have types, from small files in OGB's raw layout, beside ogb's own loader."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from helpers import check_refused, write_csv
from requires import require_module

import hpcgnn
from hpcgnn.sources import ogb_typed, open_source
from hpcgnn.sources.convert import convert

COUNTS = {"paper": 40, "author": 25, "institution": 3, "field_of_study": 11}
RELATIONS = {
    ("author", "affiliated_with", "institution"): 0,
    ("author", "writes", "paper"): 1,
    ("paper", "cites", "paper"): 2,
    ("paper", "has_topic", "field_of_study"): 3,
}
CLASSES = 4
MAG = "ogb:ogbn-mag?root={}"


class Published:
    """The arrays of a small ogbn-mag."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.edges = {
            key: np.stack([rng.integers(0, COUNTS[key[0]], 70), rng.integers(0, COUNTS[key[2]], 70)])
            for key in RELATIONS
        }
        self.x = np.round(rng.standard_normal((COUNTS["paper"], 6)), 4).astype(np.float32)
        self.x[3] = 0
        self.y = np.arange(COUNTS["paper"]) % CLASSES
        self.split = dict(
            zip(("train", "valid", "test"), np.split(rng.permutation(COUNTS["paper"]), [20, 30]), strict=True)
        )


DATA = Published()


def mag(root: Path, numbers: dict[tuple[str, str, str], int] = RELATIONS) -> Path:
    """The folder ``ogbn_mag`` as OGB's archive has it. numbers: of the types of edges."""
    base = root / "ogbn_mag"
    raw = base / "raw"
    write_csv(raw / "num-node-dict.csv.gz", [COUNTS, COUNTS.values()])
    write_csv(raw / "triplet-type-list.csv.gz", numbers)
    for key, number in numbers.items():
        there = raw / "relations" / "___".join(key)
        write_csv(there / "edge.csv.gz", DATA.edges[key].T)
        write_csv(there / "num-edge-list.csv.gz", [[DATA.edges[key].shape[1]]])
        write_csv(there / "edge_reltype.csv.gz", [[number]] * DATA.edges[key].shape[1])
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", DATA.x)
    write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", [[2015]] * COUNTS["paper"])
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", DATA.y[:, None])
    write_csv(raw / "nodetype-has-label.csv.gz", [COUNTS, [name == "paper" for name in COUNTS]])
    write_csv(base / "split" / "time" / "nodetype-has-split.csv.gz", [COUNTS, [name == "paper" for name in COUNTS]])
    for name, nodes in DATA.split.items():
        write_csv(base / "split" / "time" / "paper" / f"{name}.csv.gz", nodes[:, None])
    (base / "processed").mkdir()
    (base / "RELEASE_v2.txt").touch()
    return base


def pairs(index: object) -> list[tuple[int, int]]:
    return sorted(zip(*np.asarray(index).tolist(), strict=True))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read few lines at a time."""
    monkeypatch.setattr(ogb_typed, "_PIECE_VALUES", 24)


@pytest.mark.usefixtures("small_pieces")
def test_ogbn_mag_has_its_types(tmp_path: Path) -> None:
    mag(tmp_path)
    meta = convert(MAG.format(tmp_path), tmp_path / "g.h5").meta
    assert [(each.name, each.count, each.columns, each.classes) for each in meta.node_types] == [
        ("author", 25, 0, 0), ("field_of_study", 11, 0, 0), ("institution", 3, 0, 0), ("paper", 40, 6, CLASSES),
    ]  # fmt: skip
    found = hpcgnn.to_pyg(tmp_path / "g.h5")
    assert found.edge_types == list(RELATIONS)
    assert all(pairs(found[key].edge_index) == pairs(DATA.edges[key]) for key in RELATIONS)
    paper = found["paper"]
    assert np.array_equal(paper.x, DATA.x)
    assert np.array_equal(paper.y, DATA.y)
    for mask, name in {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}.items():
        assert np.flatnonzero(paper[mask]).tolist() == sorted(DATA.split[name])
    assert "x" not in found["author"]


def test_ogbn_mag_equals_the_graph_of_ogbs_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_module("ogb")
    from ogb.nodeproppred import NodePropPredDataset

    mag(tmp_path)
    convert(MAG.format(tmp_path), tmp_path / "g.h5")
    found = hpcgnn.to_pyg(tmp_path / "g.h5")
    dataset = NodePropPredDataset("ogbn-mag", str(tmp_path))
    graph, labels = dataset.graph, dataset.labels
    for key, index in graph["edge_index_dict"].items():
        assert pairs(found[key].edge_index) == pairs(index)
        assert (graph["edge_reltype"][key] == found.edge_types.index(key)).all()
    assert np.array_equal(found["paper"].x, graph["node_feat_dict"]["paper"])
    assert np.array_equal(found["paper"].y, labels["paper"][:, 0])


def test_types_of_edges_keep_ogbs_numbers(tmp_path: Path) -> None:
    mag(tmp_path, {key: 3 - number for key, number in RELATIONS.items()})
    convert(MAG.format(tmp_path), tmp_path / "g.h5")
    assert hpcgnn.to_pyg(tmp_path / "g.h5").edge_types == list(RELATIONS)[::-1]


def test_reverse_edges_are_types_of_their_own(tmp_path: Path) -> None:
    mag(tmp_path)
    convert(f"{MAG.format(tmp_path)}&inverse=yes", tmp_path / "g.h5")
    found = hpcgnn.to_pyg(tmp_path / "g.h5")
    reverse = {key: (key[2], f"rev_{key[1]}", key[0]) for key in RELATIONS}
    assert found.edge_types == [key for both in reverse.items() for key in both]
    for key, other in reverse.items():
        assert pairs(found[other].edge_index) == pairs(DATA.edges[key][::-1])


@pytest.mark.parametrize(
    ("path", "rows", "sentence"),
    [
        (
            "relations/author___writes___paper/edge.csv.gz",
            [[0, 0], [3, 40]],
            "writes__paper: edge_index has node 40, but",
        ),
        (
            "relations/author___writes___paper/edge.csv.gz",
            [[0, 0], [1, 1], [3]],
            "edge.csv.gz cannot be read as a csv table",
        ),
        ("relations/author___writes___paper/edge.csv.gz", [[0, 0, 1]], "lines of 3 numbers, but it should have 2"),
        ("relations/author___writes___paper/edge_reltype.csv.gz", [[1], [2]], "has 2 numbers of types"),
        ("node-feat/paper/node-feat.csv.gz", [[1.0]] * 39, r"shape \(39, 1\), but it should have a row for each of 40"),
        ("node-feat/paper/node-feat.csv.gz", [["a"]] * 40, "node-feat.csv.gz cannot be read as a csv table of numbers"),
        ("node-label/paper/node-label.csv.gz", [[0]] * 39, r"paper: y is int64 of shape \(39,\)"),
        (
            "num-node-dict.csv.gz",
            [COUNTS, ["1", "many", "1", "1"]],
            "a line of names of types, and a line of their numbers",
        ),
        ("num-node-dict.csv.gz", [["author"], [25]], "has the type of nodes '(institution|paper)', which"),
        ("triplet-type-list.csv.gz", [("author", "writes")], "has the line 'author,writes', but it should be head,"),
        (
            "triplet-type-list.csv.gz",
            [("author", "likes", "paper")],
            "author___likes___paper/edge.csv.gz does not exist",
        ),
    ],
)
def test_wrong_tables_are_named(tmp_path: Path, path: str, rows: list[list[object]], sentence: str) -> None:
    write_csv(mag(tmp_path) / "raw" / path, rows)
    check_refused(MAG.format(tmp_path), tmp_path, sentence)


def test_a_table_that_was_cut_short(tmp_path: Path) -> None:
    path = mag(tmp_path) / "raw" / "node-feat" / "paper" / "node-feat.csv.gz"
    os.truncate(path, path.stat().st_size // 2)
    check_refused(MAG.format(tmp_path), tmp_path, f"{path} cannot be read as a csv table of numbers")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_tables(tmp_path: Path) -> None:
    """32 MB of features and 16 MB of edges take a few pieces of memory."""
    base = mag(tmp_path)
    papers = 250_000
    write_csv(base / "raw" / "num-node-dict.csv.gz", [COUNTS, [papers, 25, 3, 11]])
    write_csv(base / "raw" / "node-label" / "paper" / "node-label.csv.gz", np.zeros((papers, 1), int))
    write_csv(base / "raw" / "node-feat" / "paper" / "node-feat.csv.gz", np.zeros((papers, 32), int))
    edges = np.arange(2_000_000).reshape(-1, 2) % papers
    write_csv(base / "raw" / "relations" / "paper___cites___paper" / "edge.csv.gz", edges)
    del edges
    tracemalloc.start()
    try:
        source = open_source(MAG.format(tmp_path), tmp_path)
        assert sum(chunk.src.size for chunk in source.edges(1 << 16)) == 1_000_000 + 3 * 70
        assert sum(source.features(first, first + 10_000).shape[0] for first in range(39, papers, 10_000)) == papers
        assert tracemalloc.get_traced_memory()[1] < 24_000_000
    finally:
        tracemalloc.stop()
