"""Plans of very many parts: no array is as large as the square of the number of parts."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import small_graphs

from hpcgnn.data import plan_pieces, plan_store
from hpcgnn.data.graph_file import PartsFile

PARTS = 1024
PAIRS = 2 * PARTS
MOST_BYTES = PARTS * PARTS  # less than a byte for each pair of parts


@pytest.mark.slow
def test_tables_are_as_long_as_there_are_pairs(tmp_path):
    """Each part has one node, with an edge from each of its two neighbours in a ring."""
    path, node = tmp_path / "parts.h5", np.arange(PARTS)
    edges = np.stack((np.concatenate(((node + 1) % PARTS, (node - 1) % PARTS)), np.tile(node, 2)))
    small_graphs.write_parts(path, replace(small_graphs.even_graph(PARTS, 1), edge_index=edges), node, PARTS)
    with PartsFile(path) as parts:
        for part in range(PARTS):
            plan_pieces.make(parts, "hybrid", tmp_path, part)
    tracemalloc.start()
    try:
        plan_store.add_plan(path, "hybrid", tmp_path)
        added = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with PartsFile(path) as parts:
            sender, receiver, post, pre = plan_store.StoredPlan(parts, "hybrid").pairs()
            stored = {name: array.size for name, array in parts.file["plan/hybrid"].items() if name != "checksums"}
        read = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sender.size == PAIRS
    assert set(zip(sender.tolist(), receiver.tolist(), strict=True)) == {
        (part, (part + step) % PARTS) for part in range(PARTS) for step in (-1, 1)
    }
    assert (post + pre == 1).all()
    assert max(stored.values()) <= PAIRS + PARTS + 2
    assert max(added, read) < MOST_BYTES
