"""Regression of nodes: any number of ranks equals PyG, metrics are scikit-learn's, and files keep targets."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyg_models
import pytest
import small_graphs
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from ranks.equivalence import gradient_error, loss_error
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from torch_geometric.nn import SAGEConv
from trainings import trainer_of

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli.convert import convert
from hpcgnn.cli.train_job import _result_rows
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.lab.report.run_pages import comparison_page, run_page
from hpcgnn.train import objective
from hpcgnn.train.config import LossConfig
from hpcgnn.train.run_files import read_run
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

METRICS = {"r2": r2_score, "mae": mean_absolute_error, "rmse": root_mean_squared_error}
LOSSES = {"auto": F.mse_loss, "mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}
CONFIG = hpcgnn.ModelConfig("sage", layers=2, hidden=8, dropout=0.0, norm="layer")


def with_targets(targets: int, ranks: int = 1) -> small_graphs.Arrays:
    """A graph whose nodes have several targets or one, a fifth of which are not known. Only one of several ranks has training
    nodes with a target."""
    graph, rng = small_graphs.random_multigraph(seed=4), np.random.default_rng(targets)
    y = (3 * rng.standard_normal((graph.num_nodes, targets)) + 20 + graph.x[:, :1]).astype(np.float32)
    y[rng.random(y.shape) < 0.2] = np.nan
    if ranks > 1:
        y[graph.masks["train_mask"] & (small_graphs.random_parts(graph.num_nodes, ranks) > 0)] = np.nan
    return replace(graph, y=y if targets > 1 else y[:, 0])


def gathered(graph: Any, rows: torch.Tensor) -> np.ndarray:
    found = np.zeros((graph.meta.num_nodes, rows.shape[1]))
    found[graph.original_ids.numpy()] = rows.detach().double().numpy()
    return graph.world.allreduce(found)


def scored(metric: str, predicted: np.ndarray, y: np.ndarray, masks: dict[str, np.ndarray]) -> list[float]:
    """scikit-learn's metric of each target, and its mean over targets."""
    y, found = y.reshape(len(y), -1), []
    for mask in masks.values():
        known = [mask & ~np.isnan(column) for column in y.T]
        values = [METRICS[metric](y[each, k], predicted[each, k]) for k, each in enumerate(known)]
        found.append(float(np.mean(values)))
    return found


@pytest.mark.parametrize(
    ("ranks", "loss", "metric", "targets"),
    [
        (1, "auto", "auto", 3), (2, "mse", "rmse", 1), (3, "mae", "mae", 3), (4, "huber", "r2", 1), (3, "huber", "r2", 3),
        (2, "mae", "mae", 1), (4, "auto", "auto", 3),
    ],
)  # fmt: skip
def test_ranks_equal_pytorch(tmp_path: Path, ranks: int, loss: str, metric: str, targets: int) -> None:
    graph, epochs = with_targets(targets, ranks), 4
    config = hpcgnn.TrainConfig(epochs=epochs, lr=0.05, metric=metric, loss=LossConfig(loss=loss))

    def program(world: World) -> tuple[Any, ...]:
        mine = small_graphs.on_ranks(world, graph, tmp_path / "parts.h5")
        model = hpcgnn.build_model(CONFIG, mine, backend="reference", dtype=torch.float64, seed=1)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        trainer, found = hpcgnn.Trainer(model, mine, config), []
        for epoch in range(epochs):
            found.append(trainer.step(epoch)[0])
            if epoch == 0:
                gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        metrics = trainer.evaluate()
        with torch.no_grad():
            predicted = gathered(mine, model(trainer.task.features))
        learned = int((mine.masks["train_mask"] & ~mine.y.reshape(len(mine.y), targets).isnan().all(1)).sum())
        return state, found, pyg_models.to_pyg(CONFIG, gradients), predicted, metrics, learned

    results = on_threads(ranks, program)
    state, found, gradients, predicted, metrics, _ = results[0]
    assert ranks == 1 or 0 in [each[-1] for each in results]
    reference = pyg_models.reference(CONFIG, 9, targets, state)
    x, edges = torch.from_numpy(graph.x).double(), torch.from_numpy(graph.edge_index)
    y, train = torch.from_numpy(graph.y).double().reshape(-1, targets), torch.from_numpy(graph.masks["train_mask"])
    known, optimiser = ~y.isnan() & train[:, None], torch.optim.Adam(reference.parameters(), lr=0.05)
    wanted = []
    for epoch in range(epochs):
        optimiser.zero_grad()
        value = LOSSES[loss](reference(x, edges, None)[known], y[known])
        value.backward()
        wanted.append(value.item())
        if epoch == 0:
            of_pytorch = {name: p.grad.numpy().copy() for name, p in reference.named_parameters()}
            ours = {name: value.numpy() for name, value in gradients.items()}
            assert gradient_error(ours, of_pytorch) < 1e-10
        optimiser.step()
    assert loss_error(found, wanted) < 1e-10
    assert np.abs(predicted - reference.eval()(x, edges, None).detach().numpy()).max() < 1e-9
    name = "r2" if metric == "auto" else metric
    assert metrics == pytest.approx(scored(name, predicted, graph.y, graph.masks), rel=1e-10)
    assert all(each[4] == metrics for each in results)


@pytest.mark.parametrize("ranks", [1, 3])
def test_metrics_of_large_targets_and_of_constant_ones(ranks: int) -> None:
    """A million above zero, sums of squares that are not around the mean would lose all digits of R2."""
    rng, nodes = np.random.default_rng(0), 400
    y = np.stack((1e6 + rng.standard_normal(nodes), np.full(nodes, np.float32(0.1)), np.full(nodes, np.nan)), axis=1)
    scores, mask = y + rng.standard_normal(y.shape) / 3, rng.random(nodes) < 0.5
    scores[:, 2] = 7.0
    masks = [mask, ~mask, np.zeros(nodes, bool)]

    def program(world: World) -> dict[str, list[float | None]]:
        here = [torch.from_numpy(array[world.rank :: world.size]) for array in (y, scores, *masks)]
        spread = objective.target_spread(world, here[0], here[2:])
        return {name: objective.evaluate_targets(world, name, here[1], here[0], here[2:], spread) for name in METRICS}

    found = on_threads(ranks, program)[0]
    for name, columns in {"r2": [0], "mae": [0, 1], "rmse": [0, 1]}.items():
        wanted = [METRICS[name](y[each][:, columns], scores[each][:, columns]) for each in masks[:2]]
        assert found[name] == [*(pytest.approx(each, rel=1e-9) for each in wanted), None]


def test_predictions_that_are_not_finite_are_no_result() -> None:
    y, mask = torch.ones(3, 1, dtype=torch.float64), torch.ones(3, dtype=torch.bool)

    def program(world: World) -> None:
        spread = objective.target_spread(world, y, [mask])
        scores = torch.full((3, 1), float("nan") if world.rank else 1.0)
        objective.evaluate_targets(world, "mae", scores, y, [mask], spread)

    with pytest.raises(HpcgnnError, match="predictions became NaN or infinite: lower --lr"):
        on_threads(2, program)


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"class_weight": "balanced"}, "--class-weight"),
        ({"label_smoothing": 0.1}, "--label-smoothing"),
        ({"label_propagation": 0.5}, "--label-propagation"),
        ({"metric": "accuracy"}, "--metric accuracy"),
        ({"loss": "mse"}, "--loss mse"),
        ({"metric": "rmse"}, "--metric rmse"),
    ],
)
def test_settings_for_other_labels_are_refused_on_all_ranks(tmp_path: Path, settings: dict, flag: str) -> None:
    is_for_real = flag in ("--loss mse", "--metric rmse")
    graph = small_graphs.random_multigraph() if is_for_real else with_targets(2)
    wants, has = ("real numbers", "classes") if is_for_real else ("classes", "real numbers")

    def program(world: World) -> str:
        mine = small_graphs.on_ranks(world, graph, tmp_path / "parts.h5")
        with pytest.raises(HpcgnnError) as error:
            trainer_of(mine, settings)
        return str(error.value)

    path = tmp_path / "parts.h5"
    sentence = f"{flag} is for labels that are {wants}, but those of {path} are {has}: leave it out"
    assert all(sentence in each for each in on_threads(2, program))


def test_a_graph_without_known_targets_and_a_model_of_other_width(tmp_path: Path) -> None:
    graph = with_targets(2)

    def program(world: World, y: np.ndarray) -> None:
        mine = small_graphs.on_ranks(world, replace(graph, y=y), tmp_path / "parts.h5")
        model = hpcgnn.build_model(CONFIG, replace(mine, meta=replace(mine.meta, num_classes=3)))
        hpcgnn.Trainer(model, mine).fit()

    with pytest.raises(HpcgnnError, match="has no training nodes with a target"):
        on_threads(2, lambda world: program(world, np.where(graph.masks["train_mask"][:, None], np.nan, graph.y)))
    with pytest.raises(HpcgnnError, match=r"gives each node an output of shape \[3\], but .* has 2 targets"):
        on_threads(3, lambda world: program(world, graph.y))


class OfPyG(torch.nn.Module):
    """A user's model whose output is (n,)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = SAGEConv(9, 1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.layer(x, edge_index).squeeze(-1)


def test_a_model_of_pyg_with_one_number_a_node(tmp_path: Path) -> None:
    plain = OfPyG().double()

    def program(world: World) -> list[float]:
        mine = small_graphs.on_ranks(world, with_targets(1), tmp_path / f"parts-{world.size}.h5")
        model = hpcgnn.distribute(copy.deepcopy(plain), mine)
        trainer = hpcgnn.Trainer(model, mine, hpcgnn.TrainConfig(epochs=3))
        trainer.fit()
        return [record[name] for record in trainer.records for name in ("loss", "val_metric")]

    assert on_threads(3, program)[0] == pytest.approx(on_threads(1, program)[0], rel=1e-10)


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["rmse", "r2"])
def test_a_run_keeps_and_shows_the_best_values_of_its_metric(tmp_path: Path, metric: str) -> None:
    settings = {"layers": 2, "hidden": 8, "dropout": 0.1, "lr": 0.05, "epochs": 8, "metric": metric, "loss": "huber"}

    def program(world: World) -> dict[str, Any]:
        graph = small_graphs.on_ranks(world, with_targets(2), tmp_path / "parts.h5")
        return trainer_of(graph, settings, run=RunFolder(tmp_path / "run")).fit()

    summary = on_threads(3, program)[0]
    best, run = summary["best_val_metric"], read_run(tmp_path / "run")
    assert best == (min if metric == "rmse" else max)(run.values("val_metric")[1])
    assert run.best()["epoch"] == summary["best_epoch"]
    told = f"{best:.4g} in epoch {summary['best_epoch']}"
    assert _result_rows(summary)[f"best validation {metric}"] == told
    assert (f"best validation {metric}", told) in run_page(tmp_path / "run").sections[0].tables[0].rows
    assert comparison_page([tmp_path / "run", tmp_path / "run"])


# -- files -------------------------------------------------------------------------------------------------------------


def test_whole_numbers_are_classes_unless_one_says_otherwise(tmp_path: Path) -> None:
    graph = small_graphs.random_multigraph()
    arrays = {"num_nodes": graph.num_nodes, "edge_index": graph.edge_index, "x": graph.x, **graph.masks}

    def converted(y: np.ndarray, *flags: str) -> tuple[str, str]:
        np.savez(tmp_path / "g.npz", y=y, **arrays)
        done = CliRunner().invoke(convert, [f"npz:{tmp_path / 'g.npz'}", str(tmp_path / "g.h5"), "--force", *flags])
        if done.exception:
            return "", str(done.exception)
        with GraphFile(tmp_path / "g.h5") as file:
            return file.meta.task, done.output

    assert converted(graph.y.astype(np.float32))[0] == "single-label"
    task, output = converted(graph.y, "--labels", "real")
    assert task == "regression"
    assert "regression, 1 target" in output
    with GraphFile(tmp_path / "g.h5") as file:
        assert np.array_equal(file.labels(0, graph.num_nodes), graph.y.astype(np.float32))
    large, columns = 5000 + graph.y, np.stack((graph.y, graph.y), axis=1)
    for whole in (large, large + 0.0, -2.0 - graph.y, columns + 0.0, columns):  # classes with marks, or targets
        assert "say --labels real" in converted(whole)[1]
        assert converted(whole, "--labels", "real")[0] == "regression"
    assert "say --labels real" in converted(2.0 * graph.y)[1]
    assert (
        "this graph has targets of regression; use random:" in converted(graph.y + 0.5, "--split", "per-class:2,2")[1]
    )
    assert "y of node 7 is infinite as float32" in converted(np.where(np.arange(60) == 7, 1e39, 0.5))[1]
    del arrays["train_mask"], arrays["val_mask"], arrays["test_mask"]
    some = np.where(np.arange(60) < 40, graph.y + 0.5, np.nan)
    assert "24 / 8 / 8" in converted(some, "--split", "random:0.6,0.2,0.2")[1]


def test_a_damaged_target_is_named(tmp_path: Path) -> None:
    graph = with_targets(3)
    graph.y[5, 1] = math.inf
    small_graphs.write_graph(tmp_path / "g.h5", graph)
    with GraphFile(tmp_path / "g.h5") as file, pytest.raises(HpcgnnError, match="y holds inf in row 5, column 1"):
        file.labels(0, graph.num_nodes)
