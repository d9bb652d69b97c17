"""Trainings that learn nothing say so, and what is spent is counted in all epochs."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import small_graphs
from rank_pool import ThreadPool
from trainings import trainer_of

import hpcgnn
from hpcgnn.train.checks import judge
from hpcgnn.train.run_files import read_run
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.train.summary import summarise

SMALL = {"model": "gcn", "layers": 2, "hidden": 8, "dropout": 0.0}


@pytest.fixture
def said(caplog):
    """The warnings so far, and none afterwards."""
    caplog.set_level(logging.WARNING, "hpcgnn")

    def take() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    return take


def fitted(world, path, settings, run=None):
    """The refusal, or the summary."""
    try:
        return trainer_of(hpcgnn.load(path, world), SMALL | settings, run=RunFolder(run) if run else None).fit()
    except hpcgnn.HpcgnnError as error:
        return str(error) if error.agreed else "a refusal of one rank"


def written(folder, change=lambda graph: None, parts=2):
    graph = small_graphs.random_multigraph()
    change(graph)
    return small_graphs.in_parts(folder / "parts.h5", graph, parts)


def one_training_node(graph):
    graph.masks["train_mask"] = np.arange(graph.num_nodes) == 3


@pytest.mark.parametrize(
    ("rate", "sentence"),
    [
        (0.99, "to learn from, as --label-propagation 0.99 makes all of their labels inputs and --label-redraw once keeps them"),
        (1e-9, "whose labels are inputs, as --label-propagation 1e-09 makes none"),
    ],
)  # fmt: skip
def test_a_run_in_which_all_labels_or_none_are_inputs_is_refused_before_it_starts(tmp_path, rate, sentence):
    """The first made epochs with a loss of 0.0; evaluations of the second would use what was never trained."""
    path = written(tmp_path, one_training_node)
    settings = {"label_propagation": rate, "label_redraw": "once", "epochs": 4}
    found = ThreadPool(2).run(fitted, path, settings, tmp_path / "run")
    assert found[0] == found[1]
    assert f"{path} has no training nodes {sentence}" in found[0]
    assert not list((tmp_path / "run").glob("metrics*"))


def test_a_run_without_any_loss_is_an_error_at_its_end(tmp_path, said):
    path = written(tmp_path, one_training_node)
    found = ThreadPool(2).run(fitted, path, {"label_propagation": 0.999, "epochs": 3}, tmp_path / "run")
    assert found[0] == found[1]
    assert found[0].startswith(
        "no epoch had a loss, and nothing was learned, because every training label was a model input"
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [None] * 3
    run = read_run(tmp_path / "run")
    assert run.values("loss") == ((), ())
    assert run.summary["epochs_without_loss"] == 3


def test_epochs_without_a_loss_are_counted_in_one_line(tmp_path, said):
    path = written(tmp_path, one_training_node, parts=1)
    (found,) = ThreadPool(1).run(fitted, path, {"label_propagation": 0.8, "epochs": 12})
    assert 0 < found["epochs_without_loss"] < 12
    (line,) = [line for line in said() if "had no loss" in line]
    assert line.startswith(f"{found['epochs_without_loss']} of 12 epochs had no loss, and changed no weight, because")


def test_a_loss_that_hardly_moves_is_told_and_features_that_no_norm_can_square(tmp_path, said):
    """They trained at the logarithm of the number of classes, with exit code 0."""

    def too_large(graph):
        graph.x = (1e30 * graph.x).astype(np.float32)

    settings = {"norm": "layer", "epochs": 10, "lr": 1e-5}
    found = ThreadPool(2).run(fitted, written(tmp_path, too_large), settings)
    assert found[0]["loss_decrease"] < 0.001
    first, last = said()
    assert first.startswith(f"{tmp_path}/parts.h5 has features of up to")
    assert last.startswith("the loss has hardly fallen: in 10 epochs it has fallen by 0.0 %")
    judge(found[0] | {"loss_decrease": 0.0}, 0)
    (rose,) = said()
    assert rose.startswith("the loss has hardly fallen: in 10 epochs it was never below that of the first one (look")
    judge(found[0] | {"epochs": 9}, 0)
    judge(found[0] | {"loss_decrease": 0.03}, 0)
    judge(found[0] | {"loss_decrease": None}, 0)
    judge(found[0], 1)
    assert said() == []


def test_a_run_that_learns_says_nothing(tmp_path, said):
    (found,) = ThreadPool(1).run(fitted, written(tmp_path, parts=1), {"epochs": 20})
    assert found["loss_decrease"] > 0.1
    assert found["epochs_without_loss"] == 0
    assert said() == []


def test_settings_without_an_effect_are_told_at_the_start(tmp_path, said):
    def nothing_for_validation(graph):
        graph.masks["val_mask"][:] = False

    path = written(tmp_path, nothing_for_validation)
    ThreadPool(2).run(fitted, path, {"patience": 3, "schedule": "plateau", "warmup": 9, "epochs": 5})
    assert said() == [
        f"--patience has no effect, because {path} has nothing for validation",
        f"--schedule plateau has no effect, because {path} has nothing for validation",
        "the learning rate does not reach --lr, because --warmup 9 is longer than the run of 5 epochs",
    ]


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (
            {"patience": 2, "eval_every": 5},
            ["--patience has no effect, because the run has 5 epochs and --eval-every 5 evaluates the last one only"],
        ),
        (
            {"schedule": "step", "decay_every": 5},
            ["--schedule step has no effect, because the run has 5 epochs and --decay-every is 5"],
        ),
        ({"schedule": "step", "decay_every": 4, "patience": 2, "eval_every": 4, "warmup": 5}, []),
    ],
)
def test_intervals_that_are_longer_than_the_run_are_told(graph, said, settings, lines):
    trainer_of(graph, SMALL | {"epochs": 5} | settings)
    assert said() == lines


def test_what_few_epochs_spend_is_in_the_means(graph):
    """A run that sends in one of four epochs sends a quarter of it per epoch, and no median tells this."""
    trainer = trainer_of(graph, SMALL | {"epochs": 1})
    record = trainer.run_epoch()
    names = ("bytes_sent", "policy_seconds", "policy_seconds_mean", "seconds")
    epochs = [
        record | dict(zip(names, (float(sent), policy, policy / 2, 1.0 + policy), strict=True))
        for sent, policy in ((0, 5.0), (0, 0.0), (4000, 0.3), (0, 0.0))
    ]
    facts = dict.fromkeys(("stop_reason", "epochs")) | {"startup_seconds": 1.0}
    found = summarise(graph, trainer.best, epochs, facts)
    assert found["bytes_sent_per_epoch"] == 1000
    assert found["epoch_seconds_mean"] == pytest.approx(1.1)  # without the first epoch
    assert found["breakdown_seconds_per_epoch"]["policy_seconds"] == pytest.approx(0.1)
    assert found["breakdown_seconds_mean_per_epoch"]["policy_seconds"] == pytest.approx(0.05)
    assert found["breakdown_seconds_median"]["policy_seconds"] == pytest.approx(0.15)
