"""``hpcgnn show``: its output agrees with the arrays of the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_graphs
from click.testing import CliRunner

from hpcgnn.cli.show import show
from hpcgnn.data import plan_store
from hpcgnn.data.convert import ConvertOptions, convert
from hpcgnn.errors import HpcgnnError

DATA = Path(__file__).parents[1] / "data"


def said(path: Path, *options: str) -> str:
    result = CliRunner().invoke(show, [str(path), *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def facts(path: Path) -> dict[str, Any]:
    return json.loads(said(path, "--json"))


@pytest.fixture
def arrays() -> small_graphs.Graph:
    return small_graphs.random_multigraph(nodes=60, edges=300)


@pytest.fixture
def parts(tmp_path: Path, arrays: Any) -> Path:
    path = tmp_path / "parts.h5"
    small_graphs.write_parts(path, arrays, small_graphs.random_parts(arrays.num_nodes, 3), 3)
    plan_store.store_plans(path, ["hybrid", "post"])
    return path


def test_counts_are_those_of_the_arrays(parts: Path) -> None:
    told = facts(parts)
    with h5py.File(parts) as file:
        degrees = np.diff(file["edges/indptr"][:])
        offsets, sources = file["parts/node_offsets"][:], file["edges/indices"][:]
        masks = {name: file[f"nodes/{name}_mask"][:] for name in ("train", "val", "test")}
        y = file["nodes/y"][:]
    assert (told["nodes"], told["edges"], told["parts"]) == (degrees.size, sources.size, 3)
    found = told["degrees"]
    assert (found["smallest"], found["largest"]) == (degrees.min(), degrees.max())
    assert found["mean"] == degrees.mean()
    assert found["without_in_edges"] == (degrees == 0).sum()
    for span, count in found["histogram"].items():
        low, _, high = span.partition("-")
        assert count == ((degrees >= int(low)) & (degrees <= int(high or low))).sum()
    assert sum(found["histogram"].values()) == degrees.size
    assert told["splits"] == {name: mask.sum() for name, mask in masks.items()}
    assert told["labels"] == {"nodes": (y >= 0).sum(), "by_class": np.bincount(y[y >= 0]).tolist()}
    part = np.repeat(np.arange(3), np.diff(offsets))
    assert told["cut_edges"] == (part[sources] != np.repeat(part, degrees)).sum()
    of_parts = np.bincount(part, degrees, 3)
    assert told["balance"]["edges"] == pytest.approx(of_parts.max() / of_parts.mean())


def test_rows_of_plans_are_those_that_ranks_exchange(parts: Path) -> None:
    told = facts(parts)["plans"]
    with h5py.File(parts) as file:
        offsets, sources = file["parts/node_offsets"][:], file["edges/indices"][:]
        part = np.repeat(np.arange(3), np.diff(offsets))
        ends = np.repeat(part, np.diff(file["edges/indptr"][:]))
    halo = {(int(s), int(e)) for s, e in zip(sources, ends, strict=True) if part[s] != e}
    assert told["post"]["rows"] == len(halo)
    assert told["post"]["rows_summed_before_sending"] == 0
    assert 0 < told["hybrid"]["rows"] < told["post"]["rows"]
    assert told["hybrid"]["rows_summed_before_sending"] > 0
    assert told["hybrid"]["pairs_of_parts"] == 6
    assert told["hybrid"]["rows_of_the_busiest_part"] < told["hybrid"]["rows"]


def test_a_graph_of_several_labels_and_sparse_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.zeros((5, 3), np.uint8)
    y[0, 1] = y[1, 1] = y[1, 2] = y[2, 0] = 1
    source = {"num_nodes": 5, "edge_index": rng.integers(0, 5, (2, 9)), "y": y}
    source |= {"x_data": np.ones(4, np.float32), "x_indices": np.arange(4), "x_indptr": np.array([0, 1, 2, 3, 4, 4])}
    np.savez(tmp_path / "g.npz", **source, x_shape=np.array([5, 4]))
    convert(f"npz:{tmp_path / 'g.npz'}", tmp_path / "g.h5", ConvertOptions())
    told = facts(tmp_path / "g.h5")
    assert told["labels"] == {"nodes": 3, "by_class": [1, 2, 1]}
    assert told["features"] == {"number": 4, "stored": "sparse float32 (CSR)", "values": 4}
    assert "parts" not in told
    assert "sparse float32" in said(tmp_path / "g.h5")


def test_tables_have_what_people_look_for(parts: Path, tmp_path: Path) -> None:
    table = said(parts)
    for words in (
        "in-degree",
        "train nodes",
        "max/mean in-edges",
        "edges between parts",
        "plan hybrid",
        "rows per aggregation, all ranks",
        "checksums",
    ):
        assert words in table
    assert "63" in said(DATA / "checkpoint-version-2.pt")
    assert "[12, 3]" in said(DATA / "predictions-version-1.h5")


def test_a_checkpoint_and_a_run(tmp_path: Path) -> None:
    told = facts(DATA / "checkpoint-version-2.pt")
    assert (told["parameters"], told["model_config"]["model"], told["has_optimiser"]) == (63, "sage", True)
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    shutil.copy(DATA / "checkpoint-version-2.pt", run / "checkpoints" / "last.pt")
    (run / "config.toml").write_text('model = "gcn"\nepochs = 3\n')
    lines = [
        {"epoch": epoch, "loss": 1.5 - epoch / 4, "val_metric": 0.5 - epoch / 4, "bits": 2, "stale": False}
        for epoch in (0, 1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = facts(run)
    assert (told["epochs"], told["best"]["epoch"], told["last_loss"]) == (2, 0, 1.25)
    assert told["settings_changed"]["model"] == "gcn"
    assert list(told["checkpoints"]) == ["last.pt"]
    assert "killed, after 2 of 3 epochs" in told["state"]
    assert not [note for note in told["notes"] if "killed" in note]  # the state alone says it
    assert "0.5000 in validation (epoch 0)" in said(run).replace("\n", " ")


@pytest.mark.parametrize("name", ["messages-version-2.pt", "no-such-file", ""])
def test_what_holds_nothing_to_show_is_a_sentence(name: str) -> None:
    with pytest.raises(HpcgnnError) as error:
        CliRunner().invoke(show, [str(DATA / name)], catch_exceptions=False)
    assert str(DATA / name) in str(error.value)
