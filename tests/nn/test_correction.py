"""The correction of stale rows by local changes is exact if all rows move alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_graphs
from rank_pool import ThreadPool
from ranks.corrections import differences

RANKS = 3
CASES = [(kind, strategy) for kind in ("gcn", "mean", "sum") for strategy in ("hybrid", "pre", "post")]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_graphs.in_parts(tmp_path_factory.mktemp("moved") / "parts.h5", small_graphs.random_multigraph(), RANKS)


@pytest.mark.parametrize(("kind", "strategy"), [*CASES, ("halo", "post")])
def test_rows_that_all_move_alike_are_as_good_as_fresh(parts: Path, kind: str, strategy: str) -> None:
    found = ThreadPool(RANKS).run(differences, parts, kind, strategy, True)
    assert max(max(of_rank) for of_rank in found) < 1e-10
    without = ThreadPool(RANKS).run(differences, parts, kind, strategy, False)
    assert min(max(of_rank[direction] for of_rank in without) for direction in (0, 1)) > 0.1
