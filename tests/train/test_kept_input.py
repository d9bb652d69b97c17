"""The aggregation of the input that is made once: where ``auto`` keeps it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import scipy.sparse as sp
import small_graphs
from trainings import trainer_of

import hpcgnn
from hpcgnn.nn.config import AUTO
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

KEPT: list[dict[str, Any]] = [{"model": "sage"}, {"model": "gcn"}, {"model": "gin"}, {"model": "jknet"}]
CHANGING: list[dict[str, Any]] = [
    {"model": "gat"},
    {"model": "gcnii"},
    {"model": "sage", "input_dropout": 0.5},
    {"model": "sage", "label_propagation": 0.5},
]


def keeps_input(world: World, path: Any, settings: dict[str, Any], place: str = "memory") -> bool:
    """Return whether the model keeps its sums of the features. Those that are kept are tested in test_matrix_of_runs.py."""
    given = {"layers": 2, "hidden": 8, "compute": "float32", "cache_input_aggregation": AUTO} | settings
    return trainer_of(hpcgnn.load(path, world, features=place), given).model.keeps_input


def test_auto_keeps_what_does_not_change_and_nothing_else(graph) -> None:
    found = {str(each): keeps_input(graph.world, graph.path, each) for each in (*KEPT, *CHANGING)}
    assert found == {str(each): each in KEPT for each in (*KEPT, *CHANGING)}


def test_auto_leaves_features_on_disk_and_sparse_ones_alone(tmp_path, caplog) -> None:
    caplog.set_level("INFO", "hpcgnn")
    arrays = small_graphs.random_multigraph()
    of_sparse = replace(arrays, x=sp.csr_matrix(arrays.x))
    for name, graph, place in (("dense", arrays, "disk"), ("sparse", of_sparse, "memory")):
        path = small_graphs.in_parts(tmp_path / f"{name}.h5", graph, 2)
        assert on_threads(2, partial(keeps_input, path=path, settings={"model": "sage"}, place=place)) == [False] * 2
    told = [each.message for each in caplog.records if "auto keeps no sums of the features" in each.message]
    assert len(told) == 2  # by rank 0
    assert "on disk" in told[0]
