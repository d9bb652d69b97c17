"""``hpcgnn check`` and ``hpcgnn show``: what they tell of files agrees with their arrays, and damage is named with its part."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import small_graphs
from command_line import refusal, said, told
from rank_pool import ROOT

from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.sealing import seal
from hpcgnn.sources.convert import ConvertOptions, convert

DATA = ROOT / "tests" / "data"


def refused(path: Path, command: str = "check") -> str:
    """The command's sentence for a damaged file."""
    sentence = refusal(command, path)
    assert str(path) in sentence
    return sentence


# -- check -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return Path(shutil.copy(DATA / "parts-version-3.h5", tmp_path / "parts.h5"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with the files of an old version."""
    (tmp_path / "run" / "checkpoints" / "messages").mkdir(parents=True)
    (tmp_path / "run" / "config.toml").write_text('model = "gcn"\nhidden = 4\n')
    (tmp_path / "run" / "metrics.jsonl").write_text(
        "".join(f'{{"epoch": {epoch}, "bits": 2, "stale": false, "loss": 1.5}}\n' for epoch in range(2))
    )
    shutil.copy(DATA / "checkpoint-version-2.pt", tmp_path / "run" / "checkpoints" / "last.pt")
    shutil.copy(DATA / "messages-version-2.pt", tmp_path / "run" / "checkpoints" / "messages" / "2-0.pt")
    return tmp_path / "run"


def test_what_a_file_holds_is_told(parts: Path) -> None:
    facts = told("check", parts)
    with PartsFile(parts) as file:
        assert facts["uuid"] == file.uuid
        assert (facts["nodes"], facts["edges"], facts["parts"]) == (file.meta.num_nodes, file.meta.num_edges, 2)
    assert (facts["kind"], facts["version"], facts["plans"], facts["checksums"]) == (
        "hpcgnn-parts",
        3,
        ["hybrid"],
        True,
    )
    sizes: dict[str, int] = {}
    with h5py.File(parts) as file:
        file.visititems(
            lambda name, item: sizes.update({name: item.nbytes}) if isinstance(item, h5py.Dataset) else None
        )
    arrays = [size for name, size in sizes.items() if name.rpartition("/")[2] != "checksums"]
    assert (facts["arrays"], facts["bytes"]) == (len(arrays), sum(arrays))
    assert told("check", DATA / "graph-version-3.h5")["kind"] == "hpcgnn-graph"


def test_a_file_without_checksums_is_looked_at_by_value(tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / "parts-version-1.h5", tmp_path))
    assert not told("check", path)["checksums"]
    assert "changed bytes may remain unnoticed" in " ".join(said("check", path).split())
    with h5py.File(path, "r+") as file:
        file["edges/indices"][-1] = 10**6
    assert "edges/indices holds 1000000" in refused(path)


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
    assert where in refused(parts)


def test_ids_and_edges_are_counted_over_all_parts(parts: Path) -> None:
    """Each part is valid by itself, checksums included."""
    with h5py.File(parts, "r+") as file:
        ids, offsets = file["nodes/original_ids"], file["parts/node_offsets"]
        ids[int(offsets[1]) :] = ids[: int(offsets[2] - offsets[1])]
    seal(parts)
    assert "nodes/original_ids are not the numbers from 0 to" in refused(parts)


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
    assert "plan/hybrid has" in refused(parts)


def test_plans_of_another_version_or_partition_are_told_apart(parts: Path) -> None:
    with h5py.File(parts, "r+") as file:
        file["plan/hybrid"].attrs["plan_version"] = 99
    facts = told("check", parts)
    assert (facts["plans"], facts["plans_out_of_use"]) == ([], ["hybrid"])
    assert plan_store.store_plans(parts, ["hybrid"]) == ["hybrid"]
    assert told("check", parts)["plans"] == ["hybrid"]


def test_a_run_is_checked_with_all_its_files(run: Path) -> None:
    facts = told("check", run)
    assert facts["files"] == ["config.toml", "metrics.jsonl", "checkpoints/last.pt", "checkpoints/messages/2-0.pt"]
    last = run / "checkpoints" / "last.pt"
    assert told("check", last)["next_epoch"] == 2
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    assert "damaged" in refused(run)
    last.unlink()
    (run / "metrics.jsonl").write_text('{"epoch": "first"}\n')
    assert "metrics.jsonl, line 1" in refused(run)


def test_a_number_that_python_does_not_print_ends_in_a_sentence(run: Path) -> None:
    (run / "config.toml").write_text("hidden = 0x" + "f" * 6000 + "\n")
    assert "digits" in refused(run)
    assert any("digits" in note for note in told("show", run)["notes"])


def test_what_is_no_file_of_hpcgnn_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert "is not a file of hpcgnn" in refused(tmp_path / "empty")
    assert "does not exist" in refused(tmp_path / "missing")
    assert "holds no run" in refused(tmp_path)


# -- show --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    return small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 3, plans=["hybrid", "post"])


def test_counts_are_those_of_the_arrays(planned: Path) -> None:
    facts = told("show", planned)
    with h5py.File(planned) as file:
        degrees = np.diff(file["edges/indptr"][:])
        offsets, sources = file["parts/node_offsets"][:], file["edges/indices"][:]
        masks = {name: file[f"nodes/{name}_mask"][:] for name in ("train", "val", "test")}
        y = file["nodes/y"][:]
    assert (facts["nodes"], facts["edges"], facts["parts"]) == (degrees.size, sources.size, 3)
    found = facts["degrees"]
    assert (found["smallest"], found["largest"]) == (degrees.min(), degrees.max())
    assert found["mean"] == degrees.mean()
    assert found["without_in_edges"] == (degrees == 0).sum()
    for span, count in found["histogram"].items():
        low, _, high = span.partition("-")
        assert count == ((degrees >= int(low)) & (degrees <= int(high or low))).sum()
    assert sum(found["histogram"].values()) == degrees.size
    assert facts["splits"] == {name: mask.sum() for name, mask in masks.items()}
    assert facts["labels"] == {"nodes": (y >= 0).sum(), "by_class": np.bincount(y[y >= 0]).tolist()}
    part = np.repeat(np.arange(3), np.diff(offsets))
    assert facts["cut_edges"] == (part[sources] != np.repeat(part, degrees)).sum()
    of_parts = np.bincount(part, degrees, 3)
    assert facts["balance"]["edges"] == pytest.approx(of_parts.max() / of_parts.mean())


def test_a_graph_of_several_labels_and_sparse_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.zeros((5, 3), np.uint8)
    y[0, 1] = y[1, 1] = y[1, 2] = y[2, 0] = 1
    source = {"num_nodes": 5, "edge_index": rng.integers(0, 5, (2, 9)), "y": y}
    source |= {"x_data": np.ones(4, np.float32), "x_indices": np.arange(4), "x_indptr": np.array([0, 1, 2, 3, 4, 4])}
    np.savez(tmp_path / "g.npz", **source, x_shape=np.array([5, 4]))
    convert(f"npz:{tmp_path / 'g.npz'}", tmp_path / "g.h5", ConvertOptions())
    facts = told("show", tmp_path / "g.h5")
    assert facts["labels"] == {"nodes": 3, "by_class": [1, 2, 1]}
    assert facts["features"] == {"number": 4, "stored": "sparse float32 (CSR)", "values": 4}
    assert "parts" not in facts
    assert "sparse float32" in said("show", tmp_path / "g.h5")


def test_types_and_features_of_edges_are_told(tmp_path: Path) -> None:
    graph = small_graphs.with_typed_edges(small_graphs.random_multigraph(), types=14, columns=2)
    path = small_graphs.in_parts(tmp_path / "parts.h5", graph, 2)
    facts = told("show", path)
    assert facts["edge_types"] == np.bincount(graph.edge_type).tolist()
    assert facts["edge_features"] == {"number": 2, "stored": "dense float32"}
    table = said("show", path)
    assert all(words in table for words in ("edge_types", "edge_features: number", "dense float32"))
    assert told("check", path)["arrays"] == 11


def test_tables_have_what_people_look_for(planned: Path) -> None:
    table = said("show", planned)
    wanted = ["degrees: mean", "splits: train", "balance: edges", "cut_edges", "plans: hybrid: rows", "checksums"]
    assert [words for words in wanted if words not in table] == []
    assert "63" in said("show", DATA / "checkpoint-version-2.pt")
    assert "12, 3" in said("show", DATA / "predictions-version-1.h5")


def test_a_checkpoint_and_a_run(tmp_path: Path) -> None:
    facts = told("show", DATA / "checkpoint-version-2.pt")
    assert (facts["parameters"], facts["model_config"]["model"], facts["has_optimiser"]) == (63, "sage", True)
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    shutil.copy(DATA / "checkpoint-version-2.pt", run / "checkpoints" / "last.pt")
    (run / "config.toml").write_text('model = "gcn"\nepochs = 3\n')
    epoch = '{{"epoch": {}, "loss": {}, "val_metric": {}, "bits": 2, "stale": false}}\n'
    (run / "metrics.jsonl").write_text(epoch.format(0, 1.5, 0.5) + epoch.format(1, 1.25, 0.25))
    facts = told("show", run)
    assert (facts["epochs"], facts["best"]["epoch"], facts["last_loss"]) == (2, 0, 1.25)
    assert facts["settings_changed"]["model"] == "gcn"
    assert list(facts["checkpoints"]) == ["last.pt"]
    assert "killed, after 2 of 3 epochs" in facts["state"]
    assert not [note for note in facts["notes"] if "killed" in note]  # the state alone says it
    assert re.search(r"best: val_metric +0\.5 *\n", said("show", run))


@pytest.mark.parametrize("name", ["messages-version-2.pt", "no-such-file", ""])
def test_what_holds_nothing_to_show_is_a_sentence(name: str) -> None:
    assert refused(DATA / name, "show")
