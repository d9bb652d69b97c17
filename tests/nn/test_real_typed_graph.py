"""The models with types of edges on a part of a real graph: on any number of ranks, and with any plan, they equal PyG's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_graphs
from ranks import typed_models

from hpcgnn.world.thread_world import on_threads

CASES = {
    "rgcn, pre": ("rgcn", "pre", {}),
    "rgcn, post": ("rgcn", "post", {}),
    "rgcn, hybrid": ("rgcn", "hybrid", {"bases": 2}),
    "rgat": ("rgat", "hybrid", {"bases": 2}),
    "hgt": ("hgt", "hybrid", {}),
}


@pytest.fixture(scope="module")
def arrays(shared_data: Callable[[str], Path]) -> small_graphs.Arrays:
    return small_graphs.by_label(shared_data("debian-sections.npz"))


def worst(folder: Path, arrays: small_graphs.Arrays, case: str, ranks: int, **how: Any) -> float:
    """The largest error of scores and gradients; of three or more ranks, the last one has no nodes."""
    name, strategy, changes = CASES[case]
    found = on_threads(
        ranks, lambda world: typed_models.compare(world, folder, name, "", strategy, arrays=arrays, **changes, **how)
    )
    return max(error for each in found for error in each.values())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_equal_pyg(tmp_path: Path, arrays: small_graphs.Arrays, ranks: int, case: str) -> None:
    assert worst(tmp_path, arrays, case, ranks) < 1e-10


@pytest.mark.parametrize("change", [small_graphs.swapped, small_graphs.dropped])
@pytest.mark.parametrize("case", CASES)
def test_swapped_and_dropped_relations_are_noticed(
    tmp_path: Path, arrays: small_graphs.Arrays, case: str, change: Callable[..., small_graphs.Arrays]
) -> None:
    assert worst(tmp_path, arrays, case, 2, change=change) > 1e-6
