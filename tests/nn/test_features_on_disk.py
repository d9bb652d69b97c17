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
from hpcgnn.nn import linear_map
from hpcgnn.train.objective import loss_sum
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


def results(graph, config, *, dtype=torch.float64, backend="auto", kept=False, compute="float32"):
    """Scores, and all gradients one after the other, of two training steps, and scores of an evaluation."""
    model = hpcgnn.build_model(
        config, graph, dtype=dtype, backend=backend, keep_input_aggregation=kept, seed=1, compute=compute
    )
    model.begin_epoch(3)
    found, features = [], graph.features.to(dtype)
    for _ in range(2):  # the second pass uses what the first one kept
        model.zero_grad()
        scores = model(features)
        loss_sum(scores, graph.y, graph.masks["train_mask"].nonzero()[:, 0]).backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found += [scores.detach(), torch.from_numpy(graph.world.allreduce(gradients.numpy()))]
    model.eval()
    with torch.no_grad():
        return [*found, model(features)]


def on_both(world, path, config, **how):
    """The largest difference between the two places of features, relative to the largest score, or the largest gradient."""
    if world.rank == 0:
        parts = small_graphs.random_parts(
            _GRAPH.num_nodes, world.size, empty=world.size - 1 if world.size >= 3 else None
        )
        small_graphs.write_parts(path, _GRAPH, parts, world.size)
    world.allreduce(np.zeros(1))
    graphs = [hpcgnn.load(path, world, features=place) for place in ("memory", "disk")]
    wanted, found = (results(graph, config, **how) for graph in graphs)
    both = np.array([[float(each.abs().max()) if each.numel() else 0.0 for each in values]
                     for values in (wanted, [a - b for a, b in zip(wanted, found, strict=True)])])  # fmt: skip
    largest, difference = world.allreduce(both.ravel(), "max").reshape(2, -1)
    return float((difference / largest).max())


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in _REFUSED])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_model_has_the_same_scores_and_gradients(tmp_path, name, ranks):
    for rate in (0.0, 0.4):
        config = hpcgnn.ModelConfig.of_used(CONFIGS[name].flat() | {"input_dropout": rate})
        assert max(run(ranks, on_both, tmp_path / "parts.h5", config)) < 1e-10


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", ["sage", "gcn", "gin", "gat", "sgc"])
def test_also_in_float32_and_with_every_first_layer(tmp_path, name, ranks):
    config = CONFIGS[name]
    wide = hpcgnn.ModelConfig.of_used(config.flat() | {"hidden": 4, "heads": 2})  # rows of 4 columns travel, not of 9
    for each in (config, wide):
        assert max(run(ranks, on_both, tmp_path / "parts.h5", each, dtype=torch.float32)) < 1e-6
    if name != "gat":
        assert max(run(ranks, on_both, tmp_path / "parts.h5", config, kept=True)) < 1e-10


@pytest.mark.parametrize("name", ["sage", "gcn"])
def test_bfloat16_rounds_the_same_numbers(tmp_path, monkeypatch, name):
    monkeypatch.setattr(linear_map, "gathers_bf16", lambda csr, width: True)  # also for so small a graph
    config = CONFIGS[name]
    how = {"dtype": torch.float32, "compute": "bf16-emulated"}
    assert max(run(2, on_both, tmp_path / "parts.h5", config, **how)) < 1e-6


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
