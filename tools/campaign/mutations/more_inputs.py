"""Small valid files of further kinds, beside graphs, checkpoints and logs of a run. They are made after those of
:mod:`inputs`.
"""

from __future__ import annotations

import gzip
import importlib
import json
import shutil
import sys
import tomllib
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
import torch

from campaign.mutations.readers import SMALL, command
from campaign.run import ROOT

_NODES, _EDGES = 40, 150
_MODEL = ("--hidden", "8", "--layers", "2", "--epochs", "2")
_HOSTS = "node1 slots=2\nnode2 slots=2 max_slots=4\n# a comment\nnode3\n"
_PAIRS = "0 1\n2 3\n39 0\n5 5\n"
_SPECIFICATION = """\
name = "mine"
kind = "strong"
about = "Two runs."
seeds = [0, 1]

[axes]
graph = "digits"
ranks = [1, 2]

[settings]
threads = 1
hidden = 8
epochs = 3
device = "cpu"

[[report.tables]]
title = "By ranks"
rows = "ranks"
figures = ["epoch_seconds_median", "speedup", "test_metric_at_best_val"]
"""
_TARGETS = """\
[[targets]]
figure = "seconds"
where = {step = "both"}
at_most = 1000.0
about = "It is quick."

[[targets]]
figure = "seconds"
where = {step = "both", direction = "forward"}
baseline = {step = "wire"}
at_most = 100.0
at_least = 0.0
"""
_PROFILE = "fugaku-like"


def make_more_inputs(folder: Path) -> None:
    """Write all files to ``folder``."""
    rng = np.random.default_rng(1)
    _write_tables(folder, rng)
    _write_webgraph(folder / "web", rng)
    _write_of_others(folder)
    _write_mag(folder / "mag240m_kddcup2021", rng)
    _write_papers(folder / "ogbn_papers100M", rng)
    (folder / "hosts").write_text(_HOSTS)
    (folder / "pairs.txt").write_text(_PAIRS)
    np.save(folder / "pairs.npy", np.array([[0, 1], [2, 3], [39, 0]]))
    (folder / "study.toml").write_text(_SPECIFICATION)
    (folder / "targets.toml").write_text(_TARGETS)
    _write_studies(folder)
    _write_profile(folder / "profile.toml")
    _write_runs(folder)
    _write_large(folder)


def _run(*arguments: object) -> None:
    words = [*map(str, arguments), "--quiet"]
    if code := command(words):
        raise SystemExit(f"hpcgnn {' '.join(words)} ended with {code}")


def _write_tables(folder: Path, rng: np.random.Generator) -> None:
    pairs = rng.integers(0, _NODES, (_EDGES, 2))
    pairs.astype("<i8").tofile(folder / "pairs.bin")
    columns = {"source": pairs[:, 0], "target": pairs[:, 1], "weight": rng.random(_EDGES).astype(np.float32)}
    pq.write_table(pa.table(columns), folder / "table.parquet", row_group_size=64)


def _write_webgraph(base: Path, rng: np.random.Generator) -> None:
    sys.path.append(str(ROOT / "tests" / "data"))
    writer = importlib.import_module("bv_writer").Writer()
    sys.path.pop()
    writer.write(base, [sorted(set(rng.integers(0, _NODES, rng.integers(0, 9)).tolist())) for _ in range(_NODES)])


def _write_of_others(folder: Path) -> None:
    """Write a file as DGL writes it, and a GraphML file."""
    shutil.copyfile(ROOT / "tests" / "data" / "dgl-2.1-csc.bin", folder / "dgl.bin")
    graph = nx.path_graph(12)
    for node, values in graph.nodes(data=True):
        values |= {"x": node / 4, "y": node % 3, "train": node < 6, "test": node > 8}
    nx.write_graphml(graph, folder / "g.graphml")


def _labels(rng: np.random.Generator) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    labelled = rng.permutation(_NODES)[:20]
    y = np.full(_NODES, np.nan, np.float32)
    y[labelled] = np.arange(20) % 3
    return y, {"train": labelled[:10], "valid": labelled[10:15], "test": labelled[15:]}


def _write_mag(folder: Path, rng: np.random.Generator) -> None:
    """Write a small MAG240M as OGB publishes it."""
    paper, cites = folder / "processed" / "paper", folder / "processed" / "paper___cites___paper"
    paper.mkdir(parents=True)
    cites.mkdir()
    y, split = _labels(rng)
    np.save(paper / "node_feat.npy", rng.standard_normal((_NODES, 6)).astype(np.float16))
    np.save(paper / "node_label.npy", y)
    np.save(cites / "edge_index.npy", rng.integers(0, _NODES, (2, _EDGES)))
    names = {"train": "train", "valid": "valid", "test-dev": "test", "test-whole": "test", "test-challenge": "test"}
    torch.save({name: split[own] for name, own in names.items()}, folder / "split_dict.pt")
    torch.save({"paper": _NODES, "author": 7, "institution": 2, "num_classes": 3}, folder / "meta.pt")


def _write_papers(folder: Path, rng: np.random.Generator) -> None:
    """Write a small papers100M as OGB publishes it."""
    (folder / "raw").mkdir(parents=True)
    (folder / "split" / "time").mkdir(parents=True)
    y, split = _labels(rng)
    np.savez(
        folder / "raw" / "data.npz",
        num_nodes_list=np.array([_NODES]),
        num_edges_list=np.array([_EDGES]),
        edge_index=rng.integers(0, _NODES, (2, _EDGES)),
        node_feat=rng.standard_normal((_NODES, 6)).astype(np.float32),
    )
    np.savez_compressed(folder / "raw" / "node-label.npz", node_label=y[:, None])
    for name, nodes in split.items():
        text = "".join(f"{node}\n" for node in nodes)
        (folder / "split" / "time" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))


def _write_studies(folder: Path) -> None:
    """Write ``study``, with some runs and a failed one, and a model that was fitted to other runs."""
    studies = ROOT / "docs" / "studies"
    (folder / "study").mkdir()
    shutil.copyfile(studies / "exchange" / "study.toml", folder / "study" / "study.toml")
    records = (studies / "exchange" / "records.jsonl").read_text().splitlines()
    failed = json.loads(records[0]) | {"status": "failed", "error": "it was too hot"}
    records.insert(0, json.dumps(failed))
    (folder / "study" / "records.jsonl").write_text("".join(f"{line}\n" for line in records))
    shutil.copyfile(studies / "fit" / "model.toml", folder / "model.toml")


def _write_profile(path: Path) -> None:
    """Write one of the machine profiles that the package contains, as a user's file."""
    shipped = tomllib.loads((ROOT / "hpcgnn" / "lab" / "cost_model" / "profiles.toml").read_text())
    path.write_text(tomli_w.dumps({_PROFILE: shipped[_PROFILE]}))


def _write_runs(folder: Path) -> None:
    """Write runs of other models, of another width, and of another graph of the same size; and a run of link prediction."""
    _run("train", folder / "plain-1.h5", "--out", folder / "run-sage", *_MODEL, "--model", "sage")
    _run("train", folder / "plain-1.h5", "--out", folder / "run-wide", *SMALL[:2], "--hidden", 16, *SMALL[4:])
    _run(
        "train",
        folder / "plain-1.h5",
        "--out",
        folder / "run-deep",
        *_MODEL[:2],
        "--layers",
        3,
        "--epochs",
        2,
        "--model",
        "gcn",
    )
    _run("train", folder / "sparse-1.h5", "--out", folder / "run-other", *SMALL)
    _run("train", folder / "plain-1.h5", "--out", folder / "run-link", *SMALL, "--task", "link")
    _run(
        "train",
        folder / "plain-1.h5",
        "--out",
        folder / "run-adaqp",
        *SMALL,
        "--bits",
        "adaqp",
        "--staleness",
        "pipeline",
    )
    _run("partition", folder / "plain-graph.h5", folder / "again-1.h5", "--parts", 1)
    _run("partition", folder / "plain-graph.h5", folder / "again-2.h5", "--parts", 2, "--method", "random")


def _write_large(folder: Path) -> None:
    """Write files of some hundred KiB, to be cut at every 4 KiB."""
    source = "sbm:nodes=2000,blocks=3,degree=8,features=24"
    _run("convert", source, folder / "large-graph.h5", "--undirected")
    _run("partition", folder / "large-graph.h5", folder / "large-1.h5", "--parts", 1)
    _run("partition", folder / "large-graph.h5", folder / "large-2.h5", "--parts", 2)
