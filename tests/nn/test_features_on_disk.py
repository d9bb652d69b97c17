"""Features that stay on disk: the same results, gradients and trainings as with features in memory, from one block at a time."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import small_graphs
import torch
from ranks.models import CONFIGS

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.stored import RowsOnDisk
from hpcgnn.graph import features_on_disk
from hpcgnn.train.run_config import RunConfig
from hpcgnn.world.thread_world import on_threads

_REFUSED = [name for name in CONFIGS if name.startswith(("gine", "rgat")) or "of types" in name]
_GRAPH = small_graphs.with_typed_edges(small_graphs.random_multigraph())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of about seven rows, so that each part has several."""
    monkeypatch.setattr(features_on_disk, "_BLOCK_BYTES", 7 * 9 * 4)


def run(ranks, program, *given, **named):
    """The results of ranks that are threads."""
    return on_threads(ranks, lambda world: program(world, *given, **named))


def test_a_kept_aggregation_reads_the_features_once(tmp_path, monkeypatch):
    read = []
    before = RowsOnDisk.read
    monkeypatch.setattr(RowsOnDisk, "read", lambda self, rows, *rest: (read.append(rows), before(self, rows, *rest)))

    def passes(world, name, kept):
        graph = hpcgnn.load(path, world, features="disk")
        model = hpcgnn.build_model(CONFIGS[name], graph, keep_input_aggregation=kept)
        read.clear()
        for _ in range(3):
            model(graph.features).sum().backward()
        return sum(rows.stop - rows.start for rows in read) / graph.num_nodes

    path = small_graphs.in_parts(tmp_path / "parts.h5", _GRAPH, 1)
    assert run(1, passes, "gcn", True) == [1]
    assert run(1, passes, "gcn", False) == [3]
    assert run(1, passes, "gcnii", False) == [6]  # forward, and for the gradient of the weight
    blocks = {rows.stop - rows.start for rows in read}
    assert max(blocks) <= 7


def test_the_sums_of_all_ranks_take_one_pass_over_the_file(tmp_path, monkeypatch):
    read = []
    before = RowsOnDisk.read
    monkeypatch.setattr(RowsOnDisk, "read", lambda self, rows, *rest: (read.append(rows), before(self, rows, *rest)))

    def sums(world):
        graph = hpcgnn.load(path, world, features="disk")
        model = hpcgnn.build_model(CONFIGS["gcn"], graph)
        world.allreduce(np.zeros(1))
        model(graph.features)

    path = small_graphs.in_parts(tmp_path / "parts.h5", _GRAPH, 2)
    run(2, sums)
    assert sum(rows.stop - rows.start for rows in read) == _GRAPH.num_nodes


@pytest.mark.parametrize("half", [False, True])
def test_a_training_is_the_same_and_may_change_its_place(tmp_path, half):
    arrays = small_graphs.random_multigraph()
    path = small_graphs.in_parts(tmp_path / "parts.h5", arrays, 2, ["hybrid"])
    if half:
        path = as_half(path, arrays)

    def train(world, place):
        graph = hpcgnn.load(path, world, features=place)
        model = hpcgnn.build_model(CONFIGS["gin"], graph)
        trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=8, eval_every=4))
        trainer.fit()
        return [record["loss"] for record in trainer.records], trainer.evaluate()

    (losses, metrics), _ = run(2, train, "memory")
    (found, found_metrics), _ = run(2, train, "disk")
    assert found == pytest.approx(losses, rel=1e-6)
    assert found_metrics == metrics


def as_half(path, arrays):
    """The parts file with features of 16 bits; write_parts knows only those of 32."""
    from hpcgnn.partition.options import PartitionOptions
    from hpcgnn.partition.partitioner import partition
    from hpcgnn.sources.convert import ConvertOptions, convert

    folder = path.parent
    np.savez(folder / "graph.npz", num_nodes=arrays.num_nodes, edge_index=arrays.edge_index,
             x=arrays.x.astype(np.float16), y=arrays.y, **arrays.masks)  # fmt: skip
    convert(f"npz:{folder / 'graph.npz'}", folder / "graph.h5", ConvertOptions())
    options = PartitionOptions(2, method="random")
    on_threads(1, lambda world: partition(world, folder / "graph.h5", folder / "half.h5", options))
    with h5py.File(folder / "half.h5") as file:
        assert file["nodes/x"].dtype == np.float16
    return folder / "half.h5"


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


@pytest.mark.parametrize("name", _REFUSED)
def test_models_that_need_all_features_at_once_are_refused_on_every_rank(tmp_path, name):
    def build(world):
        graph = hpcgnn.load(path, world, features="disk")
        with pytest.raises(HpcgnnError, match="--features disk reads features in blocks, and --"):
            hpcgnn.build_model(CONFIGS[name], graph)

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
