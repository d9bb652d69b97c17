"""Features that stay on disk: the same results, gradients and trainings as with features in memory, from one block at a time."""

from __future__ import annotations

import h5py
import pytest
import small_graphs
import torch
from ranks.models import small

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.stored import RowsOnDisk
from hpcgnn.graph import features_on_disk
from hpcgnn.train.run_config import RunConfig
from hpcgnn.world.thread_world import on_threads

_GRAPH = small_graphs.with_typed_edges(small_graphs.random_multigraph())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of about seven rows, so that each part has several."""
    monkeypatch.setattr(features_on_disk, "_BLOCK_BYTES", 7 * 9 * 4)


@pytest.fixture
def read(monkeypatch):
    """The numbers of rows that are read from the file, in order."""
    found, before = [], RowsOnDisk.read
    monkeypatch.setattr(
        RowsOnDisk,
        "read",
        lambda self, rows, *rest: (found.append(rows.stop - rows.start), before(self, rows, *rest))[1],
    )
    return found


@pytest.mark.parametrize(("name", "is_kept", "times"), [
    ("gcn", True, 1),
    ("gcn", False, 3),
    ("gcnii", False, 6),  # forward, and for the gradient of the weight
])  # fmt: skip
def test_features_are_read_once_in_each_pass_and_once_for_a_kept_aggregation(tmp_path, read, name, is_kept, times):
    path = small_graphs.in_parts(tmp_path / "parts.h5", _GRAPH, 2)

    def passes(world):
        graph = hpcgnn.load(path, world, features="disk")
        model = hpcgnn.build_model(small(name), graph, keep_input_aggregation=is_kept)
        for _ in range(3):
            model(graph.features).sum().backward()

    on_threads(2, passes)
    assert sum(read) == times * _GRAPH.num_nodes
    assert max(read) <= 7


def test_a_training_is_the_same_and_may_change_its_place(tmp_path):
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 2, ["hybrid"])

    def train(world, place):
        graph = hpcgnn.load(path, world, features=place)
        trainer = hpcgnn.Trainer(
            hpcgnn.build_model(small("gin"), graph), graph, hpcgnn.TrainConfig(epochs=2, eval_every=2)
        )
        trainer.fit()
        return [record["loss"] for record in trainer.records], trainer.evaluate()

    (losses, metrics), (found, found_metrics) = (
        on_threads(2, lambda world, place=place: train(world, place))[0] for place in ("memory", "disk")
    )
    assert found == pytest.approx(losses, rel=1e-6)
    assert found_metrics == metrics


def test_the_whole_matrix_can_be_read(tmp_path):
    path = small_graphs.in_parts(tmp_path / "parts.h5", _GRAPH, 1)
    in_memory, on_disk = (on_threads(1, lambda world, place=place: hpcgnn.load(path, world, features=place))[0]
                          for place in ("memory", "disk"))  # fmt: skip
    assert torch.equal(on_disk.x, in_memory.features)
    path.write_bytes(b"")  # the file is open already, and is the old one; what it lost is noticed
    with pytest.raises(HpcgnnError, match="was truncated while it was read"):
        _ = on_disk.x


def test_values_and_checksums_are_checked_when_the_graph_is_loaded(tmp_path):
    path = small_graphs.in_parts(tmp_path / "parts.h5", _GRAPH, 2)
    with h5py.File(path) as file:
        place = file["nodes/x"].id.get_offset()
    small_graphs.flip(path, place + 4 * 9 * 50)
    with pytest.raises(HpcgnnError, match="checksum of nodes/x"):
        on_threads(2, lambda world: hpcgnn.load(path, world, features="disk"))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("gine", {}), ("rgat", {"bases": 2}), ("sage", {"edge_types": "sum"}), ("gat", {"edge_types": "max"})],
)
def test_models_that_need_all_features_at_once_are_refused_on_every_rank(tmp_path, name, settings):
    def build(world):
        graph = hpcgnn.load(path, world, features="disk")
        with pytest.raises(HpcgnnError, match="--features disk reads features in blocks, and --"):
            hpcgnn.build_model(small(name, **settings), graph)

    path = small_graphs.in_parts(tmp_path / "parts.h5", _GRAPH, 2)
    on_threads(2, build)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"node_order": "rcm"}, "leave out --node-order"),
        ({"compute": "int8"}, "--compute int8 rounds them as a whole"),
        ({"label_propagation": 0.5}, "--label-propagation adds labels to them"),
        ({"embed": "all"}, "--embed adds learned rows to them"),
    ],
)
def test_settings_that_need_all_features_at_once_are_refused(settings, told):
    with pytest.raises(HpcgnnError, match=told):
        RunConfig.from_settings({"features": "disk"} | settings).check()


def test_other_forms_of_features_are_refused(tmp_path):
    sparse = small_graphs.in_parts(tmp_path / "typed.h5", small_graphs.with_types(), 2)
    with pytest.raises(HpcgnnError, match="cannot stay on disk, because the nodes have types"):
        on_threads(2, lambda world: hpcgnn.load(sparse, world, features="disk"))
