"""Runs of models with types of edges: few bits, stale rows, resumed, and predictions on other numbers of ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_graphs
import torch
from trainings import lines, losses, trainer_of

import hpcgnn
from hpcgnn.policy.clock import Clock, read_log
from hpcgnn.train import checkpoint
from hpcgnn.train.predict import predict
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

TYPED = small_graphs.with_typed_edges(small_graphs.random_multigraph())
HETERO = small_graphs.with_types()
CASES = {
    "rgcn": (TYPED, {"model": "rgcn", "bases": 2}),
    "rgat": (TYPED, {"model": "rgat", "bases": 2, "heads": 4}),
    "rgat, types of nodes": (HETERO, {"model": "rgat", "heads": 2, "embed": "venue,term"}),
    "hgt": (TYPED, {"model": "hgt", "heads": 4}),
    "sage": (HETERO, {"model": "sage", "edge_types": "mean", "embed": "venue,term"}),
    "gcn": (TYPED, {"model": "gcn", "edge_types": "sum"}),
    "gat": (HETERO, {"model": "gat", "edge_types": "max", "heads": 2, "attention_dropout": 0.2}),
    "hgt, types of nodes": (HETERO, {"model": "hgt", "heads": 2, "attention_dropout": 0.2}),
}
POLICIES = {
    "few bits, stale": {"bits": "2", "staleness": "pipeline"},
    "differences": {"bits": "4", "message_coding": "delta", "dropout": 0.0},
    "policies": {"bits": "sylvie", "staleness": "sylvie", "loss_window": 1},
    "costs": {"bits": "adaqp", "bits_period": 2},
}
SMALL = {"layers": 2, "hidden": 8, "dropout": 0.1, "lr": 0.01, "checkpoint_every": 2}


def train(
    world: World, parts: Path, out: Path, settings: dict, epochs: int, *, resume: bool = False, log: Path | None = None
):
    graph = hpcgnn.load(parts, world)
    clock = Clock(None if log is None else read_log(world, log))
    trainer = trainer_of(graph, SMALL | settings | {"epochs": epochs}, run=RunFolder(out), clock=clock)
    if resume:
        trainer.resume()
    trainer.fit()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_a_run_learns_and_repeats_where_it_is_resumed(tmp_path, name, policy):
    arrays, settings = CASES[name]
    settings, whole, broken = settings | POLICIES[policy], tmp_path / "whole", tmp_path / "broken"
    parts = small_graphs.in_parts(tmp_path / "parts.h5", arrays, 3)
    on_threads(3, lambda world: train(world, parts, whole, settings, 8))
    log = whole / "decisions.jsonl" if (whole / "decisions.jsonl").exists() else None
    on_threads(3, lambda world: train(world, parts, broken, settings, 4, log=log))
    on_threads(3, lambda world: train(world, parts, broken, settings, 8, resume=True, log=log))
    assert losses(broken) == losses(whole)
    assert losses(whole)[-1] < losses(whole)[0]
    if "staleness" in settings:
        assert any(record["stale"] for record in lines(whole))


def scores(world: World, parts: Path, run: Path) -> np.ndarray:
    """(N, C) predictions by original id."""
    graph = hpcgnn.load(parts, world, any_ranks=True)
    content = checkpoint.read(world, run / "checkpoints" / "last.pt", None)
    found = predict(graph, content)
    return hpcgnn.gather(found, graph).numpy() if world.rank == 0 else hpcgnn.gather(found, graph)


@pytest.mark.parametrize("name", CASES)
def test_predictions_on_other_numbers_of_ranks(tmp_path, name):
    arrays, settings = CASES[name]
    parts = small_graphs.in_parts(tmp_path / "parts.h5", arrays, 2)
    on_threads(2, lambda world: train(world, parts, tmp_path / "run", settings, 2))
    one, *others = (on_threads(ranks, lambda world: scores(world, parts, tmp_path / "run"))[0] for ranks in (1, 2, 4))
    assert np.abs(one).max() > 0
    for other in others:
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
