"""One property of all runs: what has been stopped or killed and is resumed has, bit for bit, the records and checkpoints of a
run that was not; on other ranks it goes on; and predictions are the scores that the run had.

A *cell* (tests/matrix.py) has a graph, ranks, settings of ``hpcgnn train`` by their names, and an end. Its changes from the
defaults are taken one after the other, and those that are refused beside the earlier ones are left out.
"""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
from matrix import Cell, cells, seed
from rank_pool import ROOT, ThreadPool
from trainings import by_turns, lines, summary

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import StopRequest
from hpcgnn.exchange import Messages
from hpcgnn.nn.config import MODELS
from hpcgnn.policy.clock import Clock, read_log
from hpcgnn.train import archive, checkpoint
from hpcgnn.train.account import trainer_of
from hpcgnn.train.predict import predict
from hpcgnn.train.run_config import LINK, RunConfig
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.train.trainer import Trainer
from hpcgnn.world import World
from hpcgnn.world.thread_world import one_rank

# Those that are no setting of a run, and all settings; the first value is the default.
OTHERS = {
    "end": ("stopped", "killed"),
    "graph": ("classes", "several labels", "targets", "types of nodes", "links", "relations"),
    "ranks": (2, 1, 3, 4),
}
SETTINGS = {
    "model": ("sage", *(name for name in MODELS if name != "sage")),
    "bits": ("32", "16", "8", "2", "uniform", "adaqp", "sylvie", "pipeqs", "auto"),
    "staleness": ("off", "pipeline", "sylvie", "pipeqs", "sancus", "auto"),
    "smoothing": ("none", "both"),
    "message_coding": ("plain", "delta"),
    "dropout": (0.3, 0.0),
    "input_dropout": (0.0, 0.2),
    "attention_dropout": (0.0, 0.2),
    "embed": ("", "all"),
    "edge_types": ("ignore", "mean"),
    "halo": ("whole", "pieces"),
    "attention": ("halo", "partial"),
    "cache_input_aggregation": (False, True),
    "label_propagation": (0.0, 0.5),
    "label_redraw": ("epoch", "once"),
    "schedule": ("constant", "cosine", "step", "plateau"),
    "warmup": (0, 3),
    "weight_decay": (0.0, 0.05),
    "lr": (0.02, 1e-30),
    "class_weight": ("none", "balanced"),
    "label_smoothing": (0.0, 0.2),
    "loss": ("auto", "huber"),
    "metric": ("auto", "rmse", "hits@10", "mrr"),
    "decoder": ("dot", "mlp", "transe", "complex", "rotate"),
    "compute": ("float32", "bf16-emulated", "int8-always"),
    "activations": ("keep", "recompute", "8bit"),
    "features": ("memory", "disk"),
    "node_order": ("none", "degree"),
    "eval_precision": ("float32", "training"),
    "eval_every": (1, 3),
    "checkpoint_every": (2, 3, 1),
    "patience": (0, 1),
}
AXES = OTHERS | SETTINGS
DEFAULTS = {name: values[0] for name, values in AXES.items()}
# What all runs have, where their model and policies use it.
ALWAYS = {
    "layers": 2, "hidden": 8, "heads": 2, "hops": 2, "checkpoint_every": 2, "bits_period": 2, "decay_every": 1, "loss_window": 1,
    "drift_threshold": 0.02, "int8_most_error": 1.0, "link_costs": str(ROOT / "tests" / "golden" / "link_costs.json"),
}  # fmt: skip
EPOCHS, FIRST_FIXED = 6, 1000
# Tried each time, because a checkpoint has something of its own for each of them.
FIXED: tuple[dict[str, Any], ...] = (
    {"staleness": "pipeline", "bits": "2", "model": "gcn"},
    {"message_coding": "delta", "bits": "2", "dropout": 0.0},
    {"bits": "adaqp", "staleness": "sylvie", "smoothing": "both", "ranks": 3, "checkpoint_every": 3},
    {"bits": "adaqp", "model": "gat"},
    {"bits": "sylvie", "model": "gat", "attention": "partial", "graph": "links"},
    {"bits": "pipeqs", "staleness": "pipeqs", "graph": "types of nodes", "embed": "all"},
    {"schedule": "plateau", "patience": 1, "label_propagation": 0.5, "compute": "int8-always"},
    {"graph": "links", "bits": "8", "compute": "int8-always"},
    {"graph": "relations", "edge_types": "mean", "bits": "adaqp", "activations": "recompute", "input_dropout": 0.0},
)
# What a value needs beside it to show; other axes show beside the defaults.
BESIDE: dict[str, dict[str, Any]] = {
    "smoothing": {"staleness": "pipeline"}, "message_coding": {"bits": "2", "dropout": 0.0},
    "attention_dropout": {"model": "gat"}, "embed": {"graph": "types of nodes"}, "halo": {"model": "gat"},
    "attention": {"model": "gat"},
    "label_redraw": {"label_propagation": 0.5}, "loss": {"graph": "targets"}, "rmse": {"graph": "targets"},
    "hits@10": {"graph": "links"}, "mrr": {"graph": "links"}, "mlp": {"graph": "links"},
    **{name: {"graph": "relations"} for name in ("transe", "complex", "rotate")},
    "eval_precision": {"bits": "2", "graph": "targets"},
}  # fmt: skip
# Which change neither losses nor weights nor bytes in so few epochs; tests/nn/test_matrix.py shows what they do.
SILENT = ("model", "activations", "features", "node_order", "checkpoint_every", "patience")
REPEATED = (
    "epoch loss bits stale stale_epochs policy bytes_sent train_metric val_metric test_metric compute int8_quantized"
)


@functools.cache
def graph_of(name: str) -> small_graphs.Arrays:
    graph, rng = small_graphs.random_multigraph(), np.random.default_rng(3)
    if name == "several labels":
        return replace(graph, y=rng.integers(0, 2, (graph.num_nodes, 3)).astype(np.uint8))
    if name == "targets":
        y = (graph.x[:, :2] + 3 + rng.standard_normal((graph.num_nodes, 2))).astype(np.float32)
        return replace(graph, y=np.where(rng.random(y.shape) < 0.2, np.float32(np.nan), y))
    if name == "types of nodes":
        return small_graphs.with_types()
    return graph if name == "links" else small_graphs.with_typed_edges(graph)


@functools.cache
def in_parts(folder: Path, name: str, ranks: int) -> Path:
    return small_graphs.in_parts(folder / f"{name}-{ranks}.h5", graph_of(name), ranks)


def config_of(cell: Cell) -> RunConfig:
    changed = {name: cell.values[name] for name in cell.changes(SETTINGS)}
    is_link = cell.graph in ("links", "relations")
    given = ALWAYS | {"epochs": EPOCHS, "compute": "float32", "lr": cell.lr, "dropout": cell.dropout, "task": "node"}
    return RunConfig.from_settings(given | ({"task": LINK} if is_link else {}) | changed, lenient=given)


def made(world: World, parts: Path, config: RunConfig, log: Path | None = None, **how: Any) -> Trainer:
    """The trainer that the command would make. Collective."""
    graph = hpcgnn.load(parts, world, features=config.features).reordered(config.node_order, 8)
    clock = Clock(None if log is None or not log.exists() else read_log(world, log))
    return trainer_of(config, graph, Messages(world, config.messages), clock=clock, **how)


def refused(folder: Path, cell: Cell) -> str:
    """The sentence that refuses a cell, if one does."""
    try:
        config = config_of(cell)
        config.check()
        made(one_rank(), in_parts(folder, cell.graph, 1), config, stop=StopRequest())
    except HpcgnnError as error:
        return str(error)
    return ""


def accepted(folder: Path, cell: Cell) -> Cell:
    """The cell with those of its changes that are not refused beside the others, which are tried in a random order, and again."""
    found = cell.changed(**DEFAULTS | {"end": cell.end, "ranks": cell.ranks})
    names = [name for name in cell.changes(AXES) if name not in ("end", "ranks")]
    cell.draws.shuffle(names)
    names.sort(key=lambda name: name != "graph")
    for name in names * 2:
        if found.values[name] == cell.values[name]:
            continue
        changed = found.changed(**{name: cell.values[name]})
        if sentence := refused(folder, changed):
            assert len(sentence) > 20, sentence
            assert "\n" not in sentence, sentence
        else:
            found = changed
    return found


# -- runs -------------------------------------------------------------------------------------------------------------


class Killed(Exception):
    """Stands for a kill of a run: nothing is written after an epoch's record."""


@dataclass
class Ended:
    """scores: of all nodes, of an evaluation after the run, on rank 0. before, after: the weights at its begin and end."""

    scores: torch.Tensor | None
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]


def ran(
    world: World, parts: Path, out: Path, cell: Cell, end: str = "", log: Path | None = None, *, resume: bool = False
) -> Ended | None:
    """Train a cell into a run folder, up to the last epoch or to its end by an epoch that the cell draws. Collective."""
    stop = StopRequest()
    last = EPOCHS // 2 if cell.number >= FIRST_FIXED else cell.draws.randrange(EPOCHS - 1)

    def on_epoch(record: dict[str, Any]) -> None:
        if end and record["epoch"] == last:
            if end == "killed":
                raise Killed
            stop.requested = world.rank == 0  # which all ranks hear of in the next epoch

    trainer = made(world, parts, config_of(cell), log, run=RunFolder(out), stop=stop, on_epoch=on_epoch)
    if resume:
        trainer.resume()
    before = weights_of(trainer.model)
    try:
        trainer.fit()
    except Killed:
        trainer.model.messages.drain()
        return None
    trainer.model.eval()
    labels = {"labels": trainer.task.all_labels} if trainer.model.config.label_inputs else {}
    with torch.no_grad():
        scores = hpcgnn.gather(trainer.model(trainer.task.features, **labels), trainer.graph)
    return Ended(scores, before, weights_of(trainer.model))


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: values.detach().clone() for name, values in model.named_parameters()}


def predicted(world: World, parts: Path, run: Path, name: str) -> torch.Tensor | None:
    """The scores, or embeddings, of all nodes, on rank 0. Collective."""
    content = checkpoint.read(world, run / "checkpoints" / name, None)
    graph = hpcgnn.load(parts, world, any_ranks=True)
    return hpcgnn.gather(predict(graph, content), graph)


def told(run: Path, cell: Cell) -> list[list[Any]]:
    """The figures of each epoch that have to repeat: all but what a resumed run sends again if it keeps sums of its input."""
    names = [name for name in REPEATED.split() if not (cell.cache_input_aggregation and name in ("bytes_sent", "bits"))]
    return [[record.get(name) for name in names] for record in lines(run)]


def kept(run: Path) -> dict[str, str]:
    """The digests of all that the last checkpoint of a run consists of, and of the best weights."""
    folder = run / "checkpoints"
    epoch = archive.read(folder / "last.pt", folder / "last.pt")["next_epoch"]
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*.pt")))
    mine = [name for name in names if name.parent == Path() or str(name.name).startswith(f"{epoch}-")]
    return {str(name): archive.digest_of(archive.read(folder / name, folder / name)) for name in mine}


# -- the property -----------------------------------------------------------------------------------------------------


def is_exact(cell: Cell) -> bool:
    """Return whether only the order of sums depends on the ranks."""
    values = cell.bits, cell.staleness, cell.compute, cell.activations
    return values in (("32", "off", "float32", "keep"), ("32", "off", "float32", "recompute"))


def wrong(folder: Path, cell: Cell) -> list[str]:
    """The sentences about all that is not as it must be."""
    whole, broken, moved = (folder / f"{cell.number}-{name}" for name in ("whole", "broken", "moved"))
    others = cell.ranks % 4 + 1
    parts, other_parts = (in_parts(folder, cell.graph, ranks) for ranks in (cell.ranks, others))
    pool, log = ThreadPool(cell.ranks), whole / "decisions.jsonl"
    ended = pool.run(ran, parts, whole, cell)[0]
    pool.run(ran, parts, broken, cell, cell.end, log)
    shutil.copytree(broken, moved)
    pool.run(functools.partial(ran, resume=True), parts, broken, cell, "", log)
    ThreadPool(others).run(functools.partial(ran, resume=True), other_parts, moved, cell)
    found = {
        "the resumed run has other records": told(broken, cell) != told(whole, cell),
        "the resumed run has another checkpoint": kept(broken) != kept(whole),
        "the resumed run has other decisions": log.exists() and lines(broken, log.name) != lines(whole, log.name),
        "the best epoch is another": summary(broken)["best_epoch"] != summary(whole)["best_epoch"],
        "epochs are missing": [one["epoch"] for one in lines(moved)] != list(range(len(lines(moved)))),
        "nothing is learned": cell.lr > 1e-9 and same(ended.before, ended.after),
        "weights move at a rate of 0": cell.lr < 1e-9 and not same(ended.before, ended.after),
        "the run on other ranks has other losses": is_exact(cell)
        and not cell.patience
        and not close(losses(moved), losses(whole), 2e-3),
    }
    return [sentence for sentence, is_so in found.items() if is_so] + of_predictions(
        cell, other_parts, whole, ended.scores
    )


def of_predictions(cell: Cell, parts: Path, run: Path, scores: torch.Tensor) -> list[str]:
    """The sentences about predictions on other ranks. Links have all edges as messages, and held out none in training."""
    if cell.graph in ("links", "relations") or cell.eval_precision == "training":
        return []
    ranks = cell.ranks % 4 + 1
    last, best = (ThreadPool(ranks).run(predicted, parts, run, name)[0] for name in ("last.pt", "best.pt"))
    bound = 0.2 if cell.compute == "bf16-emulated" else 1e-3  # predictions are in float32
    sentences = [] if close(last, scores, bound) else ["predictions are other scores than those of the run"]
    graph = graph_of(cell.graph)
    if cell.graph == "classes" and cell.compute != "bf16-emulated":
        # One of the nodes may be close to another class.
        right = (best.numpy().argmax(1) == graph.y)[graph.masks["val_mask"]]
        off = abs(right.mean() - summary(run)["best_val_metric"])
        sentences += [] if off < 1.5 / right.size else ["best.pt is not the best model"]
    return sentences


def losses(run: Path) -> list[float]:
    return [record["loss"] or 0.0 for record in lines(run)]


def close(found: Any, wanted: Any, bound: float) -> bool:
    found, wanted = np.asarray(found), np.asarray(wanted)
    return found.shape == wanted.shape and bool(np.abs(found - wanted).max() <= bound * np.abs(wanted).max())


def same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(values, after[name], rtol=0, atol=1e-20) for name, values in before.items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


CELLS = [
    *cells(AXES, 20),
    *(Cell(FIRST_FIXED + number, seed(), DEFAULTS | {"end": "killed"} | given) for number, given in enumerate(FIXED)),
]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"cell{cell.number}")
def test_a_run_repeats_where_it_is_resumed_and_predicts_its_scores(folder, cell):
    taken = accepted(folder, cell) if cell.number < FIRST_FIXED else cell
    found = wrong(folder, taken)
    assert not found, (taken.described(AXES), found)


@pytest.mark.parametrize("axis", by_turns(axis for axis in SETTINGS if axis not in SILENT))
def test_each_value_of_a_setting_changes_the_run(folder, axis):
    for number, value in enumerate(SETTINGS[axis][1:]):
        cell = Cell(0, 1, DEFAULTS | BESIDE.get(axis, {}) | BESIDE.get(value, {}))
        found = []
        for name, each in (("with", cell.changed(**{axis: value})), ("without", cell)):
            run = folder / f"{axis}-{number}-{name}"
            ended = ThreadPool(2).run(ran, in_parts(folder, cell.graph, 2), run, each)[0]
            # Without names, such as that of the arithmetic.
            figures = [[value for value in line if not isinstance(value, str)] for line in told(run, cell)]
            found.append((figures, {name: values.tolist() for name, values in ended.after.items()}))
        assert found[0] != found[1], f"{axis}={value} does nothing"
