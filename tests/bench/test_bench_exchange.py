"""``hpcgnn bench exchange``: it runs, and computes the hidden share of communication correctly."""

from __future__ import annotations

import json

import pytest
import small_graphs

from hpcgnn.bench.exchange import CALLS, summary


def test_hidden_is_what_overlap_saves_of_what_it_could():
    seconds = {"aggregate": 0.2, "exchange": 1.0, "both": 1.0, "in_turn": 1.25}
    found = summary({name: [value, value, 9.0] for name, value in seconds.items()})
    assert found["hidden_of_shorter"] == pytest.approx(1)
    nothing = summary({name: [value] for name, value in (seconds | {"both": 1.2}).items()})
    assert nothing["hidden_of_shorter"] == pytest.approx(0)


@pytest.mark.mpi
def test_the_command_measures_both_directions_and_refuses_a_single_rank(mpi_ranks, tmp_path):
    graph = small_graphs.random_multigraph(nodes=300, edges=3000)
    small_graphs.write_parts(tmp_path / "parts.h5", graph, small_graphs.random_parts(300, 2), 2)
    command = ["bench", "exchange", tmp_path / "parts.h5", "--bits", "2", "--rounds", "2", "--json"]
    found = json.loads(mpi_ranks(2).command(*command).stdout)
    for direction in ("forward", "backward"):
        line = found["directions"][direction]
        assert all(line[f"{name}_seconds"] > 0 and len(line["rounds"][name]) == 2 for name in CALLS)
        assert 0 < line["largest_bytes_of_a_rank"] < line["bytes"]
    told = {(line["axes"]["direction"], line["axes"]["step"]): line["figures"] for line in found["lines"]}
    assert told["backward", "both"]["hidden_share"] == found["directions"]["backward"]["hidden_of_shorter"]
    assert told["forward", "exchange"]["bytes"] == found["directions"]["forward"]["bytes"]
    table = mpi_ranks(2).command(*command[:-1]).stdout
    assert "2 ranks, CPU, " in table
    refused = mpi_ranks(1).command(*command, check=False)
    assert refused.returncode == 1
    assert "a single rank sends no messages" in refused.stderr
