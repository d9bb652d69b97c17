"""ogbn-mag, whose nodes have types, beside ogb's own loader, and tables that do not fit together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import check_refused, memory_below
from requires import require_module
from source_writers import Graph, ogb_tables, write_csv

import hpcgnn
from hpcgnn.sources import ogb_typed, open_source
from hpcgnn.sources.convert import convert

COUNTS = {"author": 25, "field_of_study": 11, "institution": 3, "paper": 40}
RELATIONS = (
    ("author", "affiliated_with", "institution"),
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has_topic", "field_of_study"),
)
MAG = "ogb:ogbn-mag?root={}"


def mag(folder: Path, relations: tuple[tuple[str, str, str], ...] = RELATIONS, papers: int = 40) -> Graph:
    """Write a small ogbn-mag; its types of edges have their numbers in this order."""
    rng = np.random.default_rng(5)
    nodes: dict[str, dict[str, Any]] = {
        name: {"num_nodes": count} for name, count in (COUNTS | {"paper": papers}).items()
    }
    group, x = rng.integers(0, 3, papers), np.round(rng.standard_normal((papers, 6)), 4).astype(np.float32)
    masks = {name: group == number for number, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    nodes["paper"] |= {"x": x, "y": np.arange(papers) % 4, **masks}
    edges = {key: {"edge_index": np.stack([rng.integers(0, nodes[end]["num_nodes"], 70) for end in (key[0], key[2])])}
             for key in relations}  # fmt: skip
    graph = Graph(nodes, edges)
    ogb_tables(graph, folder)
    return graph


def pairs(index: object) -> list[tuple[int, int]]:
    return sorted(zip(*np.asarray(index).tolist(), strict=True))


def test_ogbn_mag_equals_the_graph_of_ogbs_loader(tmp_path: Path) -> None:
    require_module("ogb")
    from ogb.nodeproppred import NodePropPredDataset

    mag(tmp_path, RELATIONS[::-1])
    convert(MAG.format(tmp_path), tmp_path / "g.h5")
    found = hpcgnn.to_pyg(tmp_path / "g.h5")
    dataset = NodePropPredDataset("ogbn-mag", str(tmp_path))
    graph, labels = dataset.graph, dataset.labels
    assert found.edge_types == list(RELATIONS)[::-1]
    for key, index in graph["edge_index_dict"].items():
        assert pairs(found[key].edge_index) == pairs(index)
        assert (graph["edge_reltype"][key] == found.edge_types.index(key)).all()
    assert np.array_equal(found["paper"].x, graph["node_feat_dict"]["paper"])
    assert np.array_equal(found["paper"].y, labels["paper"][:, 0])


WRITES, FEATURES = "relations/author___writes___paper/", "node-feat/paper/node-feat.csv.gz"


@pytest.mark.parametrize(
    ("path", "rows", "sentence"),
    [
        (WRITES + "edge.csv.gz", [[0, 0], [3, 40]], "writes__paper: edge_index has node 40, but"),
        (WRITES + "edge.csv.gz", [[0, 0], [1, 1], [3]], "edge.csv.gz cannot be read as a csv table"),
        (WRITES + "edge.csv.gz", [[0, 0, 1]], "lines of 3 numbers, but it should have 2"),
        (WRITES + "edge_reltype.csv.gz", [[1], [2]], "has 2 numbers of types"),
        (FEATURES, [[1.0]] * 39, r"shape \(39, 1\), but it should have a row for each of 40"),
        (FEATURES, [["a"]] * 40, "node-feat.csv.gz cannot be read as a csv table of numbers"),
        (FEATURES, None, "node-feat.csv.gz cannot be read as a csv table of numbers"),
        ("node-label/paper/node-label.csv.gz", [[0]] * 39, r"paper: y is int64 of shape \(39,\)"),
        ("num-node-dict.csv.gz", [COUNTS, ["1", "many", "1", "1"]], "a line of names of types, and a line of their"),
        ("num-node-dict.csv.gz", [["author"], [25]], "has the type of nodes '(institution|paper)', which"),
        ("triplet-type-list.csv.gz", [("author", "writes")], "has the line 'author,writes', but it should be head,"),
        ("triplet-type-list.csv.gz", [("author", "likes", "paper")], "author___likes___paper/edge.csv.gz does not"),
    ],
)
def test_wrong_tables_are_named(tmp_path: Path, path: str, rows: list[list[object]] | None, sentence: str) -> None:
    mag(tmp_path)
    table = tmp_path / "ogbn_mag" / "raw" / path
    if rows is None:
        os.truncate(table, table.stat().st_size // 2)
    else:
        write_csv(table, rows)
    check_refused(MAG.format(tmp_path), tmp_path, sentence)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MB of features and 4 MB of edges take a few pieces of memory."""
    monkeypatch.setattr(ogb_typed, "_PIECE_VALUES", 1 << 14)
    papers = 30_000
    mag(tmp_path, papers=papers)
    raw = tmp_path / "ogbn_mag" / "raw"
    write_csv(raw / FEATURES, [[0] * 32] * papers)
    write_csv(raw / "relations" / "paper___cites___paper" / "edge.csv.gz", np.arange(500_000).reshape(-1, 2) % papers)
    with memory_below(3_000_000):
        source = open_source(MAG.format(tmp_path), tmp_path)
        assert sum(chunk.src.size for chunk in source.edges(1 << 12)) == 250_000 + 3 * 70
        assert sum(source.features(first, first + 1000).shape[0] for first in range(39, papers, 1000)) == papers
