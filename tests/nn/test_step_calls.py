"""An aggregation decides nothing again that was decided in an earlier epoch: its Python calls are counted."""

from __future__ import annotations

import pytest
import small_graphs
from ranks import step_calls

MOST_CALLS, MOST_FILES = 80, 15  # between the features of a layer and the wire, and back


@pytest.mark.mpi
@pytest.mark.parametrize("bits", [2, 32])
def test_an_aggregation_makes_few_calls(mpi_ranks, tmp_path, bits):
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.even_graph(nodes=400, edges=2000), 2)
    for calls in mpi_ranks(2).run(step_calls.of_layer_2, path, bits)[0]:
        files = {file for file, _ in calls if not file.startswith("<")}
        words = "\n".join(f"{file}: {name}" for file, name in calls)
        assert 20 < len(calls) <= MOST_CALLS, words
        assert len(files) <= MOST_FILES, words
