"""Run under mpirun: label propagation on P ranks beside one process of PyG; rank 0 writes a JSON report.

usage: label_propagation.py REPORT.json WORKFOLDER CORA.npz CASE [CASE ...]      a case is graph/model/draw/precision
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyg_models
import pyg_reference
import small_graphs

import hpcgnn
from hpcgnn.comm import Exchange, MpiWorld, World
from hpcgnn.comm.mailbox import Message
from hpcgnn.graph import LocalGraph
from hpcgnn.nn import GraphModel
from hpcgnn.train import checkpoint, label_propagation, predict
from hpcgnn.train.gradients import GradientBucket
from hpcgnn.train.label_propagation import LabelPropagationConfig
from hpcgnn.train.run_folder import RunFolder

EPOCHS, LR, SEED = 20, 0.01, 5
PRECISIONS = {"float32": (torch.float32, "auto"), "float64": (torch.float64, "reference")}
BASE = hpcgnn.ModelConfig(layers=2, dropout=0.0, label_inputs=True)
CONFIGS = {
    "gcn": replace(BASE, model="gcn", hidden=16),  # 9 features: aggregates them first
    "gcn-narrow": replace(BASE, model="gcn", hidden=3),  # transforms them first
    "sage": replace(BASE, model="sage", hidden=12, layers=3, norm="none"),
    "sage-dropout": replace(BASE, model="sage", hidden=12, dropout=0.5, input_dropout=0.3),
}
DRAWS = {"epoch": LabelPropagationConfig(0.62), "once": LabelPropagationConfig(0.4, "once")}


def make_graphs(world: World, folder: Path, cora: Path) -> dict[str, tuple[small_graphs.Arrays, Path]]:
    """The last of three or more ranks is empty in the random graphs; one has its training nodes all on rank 0."""
    plain, few, multi = (small_graphs.random_multigraph(seed=seed) for seed in (0, 1, 2))
    part = {"few": small_graphs.random_parts(few.num_nodes, world.size)}
    on_first = part["few"] == 0
    few.masks = {name: mask & on_first if name == "train_mask" else mask for name, mask in few.masks.items()}
    multi.y = np.random.default_rng(3).integers(0, 2, (multi.num_nodes, 5)).astype(np.uint8)
    graphs = {"plain": plain, "few": few, "multi-label": multi, "cora": small_graphs.from_npz(cora)}
    found = {}
    for name, arrays in graphs.items():
        path = folder / f"{name}-{world.size}.h5"
        empty = world.size - 1 if world.size >= 3 and name != "cora" else None
        parts = part.get(name, small_graphs.random_parts(arrays.num_nodes, world.size, empty=empty))
        if world.rank == 0:
            small_graphs.write_parts(path, arrays, parts, world.size)
        world.allreduce(np.zeros(1))  # the file is there
        found[name] = arrays, path
    return found


def build(graph: LocalGraph, name: str, precision: str) -> GraphModel:
    dtype, backend = PRECISIONS[precision]
    return hpcgnn.build_model(CONFIGS[name], graph, backend=backend, dtype=dtype, seed=SEED)


def run(graph: LocalGraph, model: GraphModel, draw: str) -> tuple[list[float], dict[str, np.ndarray], np.ndarray]:
    """Losses, first gradients by PyG's names, and all scores in original order (gathered: the graphs are tiny)."""
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=EPOCHS, lr=LR, labels=DRAWS[draw]))
    losses, gradients = [], {}
    for epoch in range(EPOCHS):
        losses.append(trainer.step(epoch)[0])
        if epoch == 0:
            found = {name: p.grad.clone() for name, p in model.named_parameters()}
            gradients = {name: value.numpy() for name, value in pyg_models.to_pyg(model.config, found).items()}
    model.eval()
    with torch.no_grad():
        mine = model(trainer.task.features, trainer.task.label_inputs.evaluation).double().numpy()
    scores = np.zeros((graph.meta.num_nodes, mine.shape[1]))
    scores[graph.original_ids.numpy()] = mine
    return losses, gradients, graph.world.allreduce(scores)


def compare(
    arrays: small_graphs.Arrays, path: Path, name: str, draw: str, precision: str, world: World
) -> dict[str, float]:
    graph = hpcgnn.load(path, world)
    model = build(graph, name, precision)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    losses, gradients, scores = run(graph, model, draw)
    wanted = None
    if world.rank == 0:
        everyone = torch.arange(arrays.num_nodes)
        wanted = pyg_reference.train(
            arrays, CONFIGS[name], state, EPOCHS, LR, PRECISIONS[precision][0],
            lambda epoch: _drawn_nodes(DRAWS[draw], SEED, epoch, everyone),
        )  # fmt: skip
    wanted_losses, wanted_gradients, wanted_scores = world.broadcast(wanted)
    assert "embed_labels.weight" in wanted_gradients
    return {
        "loss_error": max(abs(a - b) / (abs(b) or 1) for a, b in zip(losses, wanted_losses, strict=True)),
        "gradient_error": max(
            float(np.abs(gradients[key] - value).max() / np.abs(value).max()) for key, value in wanted_gradients.items()
        ),
        "score_error": float(np.abs(scores - wanted_scores).max() / np.abs(wanted_scores).max()),
    }


_drawn_nodes = label_propagation.drawn_nodes  # as it was before a sabotage


def sabotages(arrays: small_graphs.Arrays, path: Path, world: World) -> Iterator[tuple[str, float]]:
    """The loss error of what is broken on purpose: it must be large, or the comparison proves nothing."""
    wait, reduce = Exchange.wait, GradientBucket.reduce

    def no_backward(self: Exchange, message: Message) -> None:
        wait(self, message)
        if self.is_backward:
            message.received.zero_()

    def by_position(config: LabelPropagationConfig, seed: int, epoch: int, ids: torch.Tensor) -> torch.Tensor:
        return _drawn_nodes(config, seed, epoch, torch.arange(ids.numel()))

    def by_mean_of_ranks(self: GradientBucket, scalars: list[float], count: int) -> tuple[list[float], int]:
        return reduce(self, [scalars[0] / max(count, 1), *scalars[1:]], 1)

    def error() -> float:
        return compare(arrays, path, "sage", "epoch", "float64", world)["loss_error"]

    Exchange.wait = no_backward
    yield "no-backward", error()
    Exchange.wait = wait
    label_propagation.drawn_nodes = by_position
    yield "drawn by position", error()
    label_propagation.drawn_nodes = _drawn_nodes
    GradientBucket.reduce = by_mean_of_ranks
    yield "mean of the ranks' means", error()
    GradientBucket.reduce = reduce


def prediction_equals_evaluation(path: Path, folder: Path, world: World) -> bool:
    """The scores from a checkpoint, bit for bit those that the trainer evaluates."""
    graph = hpcgnn.load(path, world)
    model = build(graph, "sage-dropout", "float32")
    run_folder = RunFolder(folder / f"run-{path.stem}")
    if world.rank == 0:
        run_folder.prepare(resume=False)
    config = hpcgnn.TrainConfig(epochs=3, lr=LR, labels=DRAWS["epoch"])
    trainer = hpcgnn.Trainer(model, graph, config, run=run_folder)
    trainer.fit()
    model.eval()
    with torch.no_grad():
        wanted = model(trainer.task.features, trainer.task.label_inputs.evaluation)
    content = checkpoint.read(world, checkpoint.folder(run_folder.path) / checkpoint.LAST, None)
    same = torch.equal(predict.predict(graph, content), wanted)
    return bool(world.allreduce(np.array([same], dtype=np.int64), "min")[0])


def main() -> None:
    (report_path, folder, cora), cases = map(Path, sys.argv[1:4]), sys.argv[4:]
    world = MpiWorld(timeout_seconds=120)
    torch.set_num_threads(1)
    graphs = make_graphs(world, folder, cora)
    report: dict[str, object] = {}
    for graph_name, (arrays, path) in graphs.items():
        for case in cases:
            if case.startswith(f"{graph_name}/"):
                report[case] = compare(arrays, path, *case.split("/")[1:], world)
        graph = hpcgnn.load(path, world)
        report[f"{graph_name}/dropout"] = run(graph, build(graph, "sage-dropout", "float64"), "epoch")[0]
        report[f"{graph_name}/prediction"] = prediction_equals_evaluation(path, folder, world)
    if world.size > 1:
        report["sabotage"] = dict(sabotages(*graphs["plain"], world))
    graph = hpcgnn.load(graphs["few"][1], world)
    counts = world.allgather(np.array([int(graph.masks["train_mask"].sum())]))
    report["ranks_with_training_nodes"] = int((counts > 0).sum())
    if world.rank == 0:
        report_path.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
