"""The rows and bytes that the cost model computes are those that ranks send."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rank_pool import ThreadPool
from ranks import cost_model
from small_graphs import even_graph, in_parts, random_multigraph

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.cost_model.rows import Pairs, Wire, read_parts
from hpcgnn.lab.cost_model.setup import bytes_between, setup_of
from hpcgnn.lab.cost_model.workload import Exchange
from hpcgnn.plan import STRATEGIES
from hpcgnn.world.placement import Placement


def parts_file(folder: Any, ranks: int, nodes: int = 0) -> Any:
    """A graph in random parts with all plans."""
    graph = even_graph(nodes, 4 * nodes) if nodes else random_multigraph(edges=500)
    return in_parts(folder / f"parts-{ranks}.h5", graph, ranks, STRATEGIES)


def counted(path: Any, model: dict[str, Any], strategy: str, bits: int, **where: Any) -> np.ndarray:
    """(P, 2) bytes and rows of each rank, computed without training."""
    with PartsFile(path) as file:
        about = {**model, "ranks": file.num_parts, "strategy": strategy, "bits": str(bits), "rate": "1gbit", **where}
        setup = setup_of(about, cores=1)
        workload = setup.workload(read_parts(file, setup.strategy, setup.placement))
    return np.stack((workload.bytes_sent(), workload.rows_sent()), axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "strategy", "bits"),
    [
        ({"model": "sage", "hidden": 16, "layers": 3}, "hybrid", 32),
        ({"model": "sage", "hidden": 3, "layers": 2}, "pre", 1),  # transformed first
        ({"model": "sage", "hidden": 24, "layers": 3}, "post", 2),
        ({"model": "gcn", "hidden": 16, "layers": 2}, "hybrid", 4),
        ({"model": "gin", "hidden": 16, "layers": 3}, "hybrid", 8),
        ({"model": "gat", "hidden": 16, "layers": 2, "heads": 4, "output_heads": 2}, "hybrid", 16),
        ({"model": "gat", "hidden": 16, "layers": 2, "heads": 4, "output_heads": 2}, "hybrid", 2),  # with scores
        ({"model": "gatv2", "hidden": 16, "layers": 2, "heads": 4}, "hybrid", 8),
        ({"model": "gcnii", "hidden": 16, "layers": 3}, "hybrid", 8),
        ({"model": "jknet", "hidden": 16, "layers": 3}, "post", 2),
        ({"model": "sgc"}, "hybrid", 8),
        ({"model": "appnp", "hidden": 16, "hops": 3}, "pre", 8),
        ({"model": "dagnn", "hidden": 16, "hops": 2}, "hybrid", 1),
    ],
)
def test_bytes_and_rows_are_those_of_a_step(tmp_path, model, strategy, bits):
    path = parts_file(tmp_path, 4)
    sent = ThreadPool(4).run(cost_model.sent, str(path), model, strategy, bits)
    assert counted(path, model, strategy, bits).tolist() == sent


@pytest.mark.slow
def test_64_parts(tmp_path):
    path = parts_file(tmp_path, 64, nodes=320)
    model = {"model": "sage", "hidden": 16, "layers": 2}
    sent = ThreadPool(64).run(cost_model.sent, str(path), model, "hybrid", 8)
    assert counted(path, model, "hybrid", 8).tolist() == sent


def test_ranks_that_share_nodes(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", "2")
    path = parts_file(tmp_path, 6)
    model = {"model": "sage", "hidden": 16, "layers": 2}
    for strategy in STRATEGIES:
        sent = ThreadPool(6).run(cost_model.sent, str(path), model, strategy, 8, "on")
        assert counted(path, model, strategy, 8, ranks_per_node=2).tolist() == sent, strategy
    apart = counted(path, model, "hybrid", 8, ranks_per_node=2, node_aware="off")
    assert apart.tolist() == counted(path, model, "hybrid", 8).tolist()


def test_a_backward_exchange_is_the_other_way_round():
    pairs = Pairs(np.array([0, 1, 2]), np.array([1, 2, 0]), np.array([5, 7, 9]), 3)
    there, back = (Wire(((32, 1.0),)).bytes(pairs, 4, is_backward=way) for way in (False, True))
    assert there[0, 1] == 5 * 16
    assert (back.toarray() == there.toarray().T).all()
    to, fro = bytes_between(Exchange(0, 4, False, there), 2)  # ranks 0 and 1 share a node
    assert to.tolist() == [0, 7 * 16, 9 * 16]
    assert fro.tolist() == [9 * 16, 0, 7 * 16]


def test_wrong_files_are_refused(tmp_path):
    path = in_parts(tmp_path / "parts.h5", random_multigraph(), 3)
    with PartsFile(path) as file, pytest.raises(HpcgnnError, match="hpcgnn plan"):
        read_parts(file, "hybrid", None)
    plan_store.store_plans(path, ["hybrid"])
    with PartsFile(path) as file:
        parts = read_parts(file, "hybrid", Placement.in_blocks(3, 1))
        with pytest.raises(HpcgnnError, match="3 parts, not 5"):
            setup_of({"ranks": 5}, cores=1).workload(parts)
