"""The aggregation of the input that is made once: where ``auto`` keeps it, with the bits of ``on`` and ``off``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import scipy.sparse as sp
import small_graphs
from trainings import trainer_of

import hpcgnn
from hpcgnn.nn.config import AUTO
from hpcgnn.train.run_config import RunConfig
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

SMALL = {"layers": 2, "hidden": 8, "compute": "float32", "bits": "2"}
KEPT: list[dict[str, Any]] = [{"model": "sage"}, {"model": "gcn"}, {"model": "gin"}, {"model": "jknet"}]
CHANGING: list[dict[str, Any]] = [
    {"model": "gat"},
    {"model": "gcnii"},
    {"model": "sage", "input_dropout": 0.5},
    {"model": "sage", "label_propagation": 0.5},
]


def losses(world: World, path: Any, settings: dict[str, Any], place: str = "memory") -> tuple[bool, list[float | None]]:
    """The attribute ``keeps_input`` of the model, and the losses of three epochs."""
    trainer = trainer_of(hpcgnn.load(path, world, features=place), SMALL | settings)
    return trainer.model.keeps_input, [trainer.step(epoch)[0] for epoch in range(3)]


@pytest.mark.parametrize("settings", [*KEPT, *CHANGING], ids=str)
def test_auto_keeps_what_does_not_change_and_nothing_else(tmp_path, settings: dict[str, Any]) -> None:
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 2)
    keeps = settings in KEPT
    given = [settings | {"cache_input_aggregation": each} for each in (AUTO, keeps)]
    by_itself, as_told = (on_threads(2, partial(losses, path=path, settings=each)) for each in given)
    assert by_itself == as_told
    assert {kept for kept, _ in by_itself} == {keeps}
    RunConfig.from_settings(given[0]).check()


def test_auto_leaves_features_on_disk_and_sparse_ones_alone(tmp_path, caplog) -> None:
    caplog.set_level("INFO", "hpcgnn")
    arrays = small_graphs.random_multigraph()
    of_sparse = replace(arrays, x=sp.csr_matrix(arrays.x))
    given = {"model": "sage", "cache_input_aggregation": AUTO}
    for name, graph, place in (("dense", arrays, "disk"), ("sparse", of_sparse, "memory")):
        path = small_graphs.in_parts(tmp_path / f"{name}.h5", graph, 2)
        found, usual = (
            on_threads(2, partial(losses, path=path, settings=each, place=place)) for each in (given, {"model": "sage"})
        )
        assert found == usual
        assert not found[0][0]
    told = [each.message for each in caplog.records if "auto keeps no sums of the features" in each.message]
    assert len(told) == 2  # by rank 0
    assert "on disk" in told[0]
