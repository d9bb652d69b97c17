"""``ranks.json``: its bytes between ranks are those that ranks send, and its size is bounded."""

from __future__ import annotations

import json

import made_up
import msgspec
import numpy as np
import pytest
import small_graphs
from rank_pool import ThreadPool
from ranks import rank_reports

from hpcgnn.train.rank_report import MOST_BLOCKS, Ranks, first_ranks
from hpcgnn.typed import read_json

NODES = 60


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "parts.h5"
    small_graphs.write_parts(path, small_graphs.random_multigraph(nodes=NODES), small_graphs.random_parts(NODES, 3), 3)
    return path


@pytest.mark.parametrize(
    ("bits", "policy"),
    [(32, {}), (4, {}), (8, {"bits": "uniform"}), (32, {"staleness": "pipeline"}), (8, {"staleness": "pipeqs"})],
    ids=str,
)
def test_it_has_what_ranks_send(parts, tmp_path, bits, policy):
    moved = ThreadPool(3).run(rank_reports.bytes_of_training, parts, tmp_path / "run", bits, policy)
    ranks = read_json(tmp_path / "run" / "ranks.json", Ranks)
    sent = np.array(ranks.bytes)
    assert sent.sum(axis=1).tolist() == [out for out, _ in moved]
    assert sent.sum(axis=0).tolist() == [into for _, into in moved]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sent.sum() == sum(line["bytes_sent"] for line in lines) > 0
    assert np.diag(sent).tolist() == [0, 0, 0]
    assert (ranks.ranks, ranks.epochs, ranks.first_epoch, ranks.is_whole) == (3, rank_reports.EPOCHS, 0, True)
    assert sum(ranks.mean["nodes"]) == NODES
    assert sum(ranks.mean["edges"]) == 423
    assert 0 < sum(ranks.mean["cut_edges"]) < 423
    assert max(ranks.largest["seconds"]) <= max(line["seconds"] for line in lines)
    assert all(seconds > 0 for seconds in ranks.mean["aggregation_seconds"])
    assert all(peak > 1 << 20 for peak in ranks.mean["peak_memory_bytes"])


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1000, 8192])
def test_blocks_are_of_consecutive_ranks(size):
    firsts = first_ranks(size)
    sizes = np.diff(firsts, append=size)
    assert firsts[0] == 0
    assert firsts.size == min(size, MOST_BLOCKS)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1


def test_its_size_has_a_bound():
    ranks = made_up.ranks(1000)
    ranks.bytes = [[2**62] * MOST_BLOCKS] * MOST_BLOCKS
    ranks.mean = ranks.largest = {name: [1 / 3] * MOST_BLOCKS for name in ranks.mean}
    assert ranks.is_whole
    assert len(json.dumps(msgspec.to_builtins(ranks))) < 150_000
