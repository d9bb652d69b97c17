"""The cost model's equations on cases that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange.mailbox import FRESH, STALE
from hpcgnn.lab.cost_model.constants import BY_NAME, COLUMN, WORK, defaults
from hpcgnn.lab.cost_model.equations import (
    Epoch,
    EpochKind,
    Machine,
    Messages,
    epoch_of,
    lag_of,
    memory_of,
    prices,
    reduction_work,
    shared_cores,
)
from hpcgnn.lab.cost_model.rows import Pairs, Parts
from hpcgnn.lab.cost_model.steps import Work, steps_of
from hpcgnn.lab.cost_model.workload import Exchange, Workload, workload_of
from hpcgnn.nn.config import KNOWN, MODELS, ModelConfig

ALONE = Machine(cores=2, ranks=1)
NOTHING = {constant.name: 0.0 for constant in WORK} | {
    "contention": 1.0,
    "crowding": 0.0,
    "rate_share": 1.0,
    "link_imbalance": 0.0,
    "latency": 0.0,
    "turn": 0.0,
    "burst_bytes": 0.0,
}


def two_parts(rows: int = 10) -> Parts:
    """Two parts: rank 0 sends ``rows`` rows, and rank 1 sends twice as many."""
    pairs = Pairs(np.array([1, 0]), np.array([0, 1]), np.array([2 * rows, rows]), 2)
    n = np.array([100, 50])
    counts = dict.fromkeys(("nodes", "edges", "features", "local", "send", "receive", "written", "read"), n)
    return Parts(name="two", pairs=pairs, in_width=8, out_width=4, is_sparse=False, **counts)


def workload(before: list[list[float]], beside: list[list[float]], bytes_each: list[list[int]]) -> Workload:
    """A workload in pieces of ``layer`` work of a core-second. before: of each rank, before each exchange and after the last."""

    def work(seconds: list[float]) -> np.ndarray:
        amounts = np.zeros((len(seconds), len(WORK)))
        amounts[:, COLUMN["layer"]] = seconds
        return amounts

    exchanges = tuple(
        Exchange(k, 4, False, sparse.csr_array(np.array([[0, one], [other, 0]])))
        for k, (one, other) in enumerate(bytes_each)
    )
    ranks = len(before[0])
    return Workload(
        two_parts(), tuple(map(work, before)), tuple(map(work, beside)), exchanges, work([0.0] * ranks), 0,
        np.zeros((ranks, 3)),
    )  # fmt: skip


def messages(wire: float, reduction: float = 0.0, burst: float = 0.0) -> Messages:
    """The messages of exchanges, each of which takes ``wire`` seconds of the links."""
    none = np.zeros(2)
    return Messages(lambda _: np.full(2, wire), lambda _: reduction, lambda _: (none, none), burst)


def epoch(work: Workload, wire: float, **how: object) -> Epoch:
    values = NOTHING | {"layer": 1.0}
    pipelined = bool(how.pop("is_pipelined", False))
    turn = EpochKind(work, messages(wire, **how), STALE if pipelined else FRESH)  # type: ignore[arg-type]
    return epoch_of(turn, values, ALONE)


def test_ranks_wait_for_what_is_not_beside_the_exchange_and_for_the_slowest_sender():
    found = epoch(workload([[1, 1], [0, 0]], [[3, 1]], [[8, 8]]), wire=2.0).seconds
    assert found["communication_wait"].tolist() == [0, 1]
    assert found["wire"].tolist() == [3, 2]  # rank 0 checks when its own work is done
    assert found["synchronisation"].tolist() == [0, 1]
    assert found["seconds"].tolist() == [4, 4]
    for sizes, waits in (([8, 8], [2, 6]), ([0, 8], [2, 2])):  # rank 1 receives nothing
        one_is_late = epoch(workload([[5, 1], [0, 0]], [[0, 0]], [sizes]), wire=2.0).seconds
        assert one_is_late["communication_wait"].tolist() == waits
    found = epoch(workload([[5, 1], [1, 5], [0, 0]], [[0, 0], [0, 0]], [[8, 8], [8, 8]]), wire=0.0)
    assert found.total == 10  # the slowest rank of each stretch: not 6, the time that each rank computes
    assert found.mean()["other"] == 6
    found = epoch(workload([[0, 0], [1, 3]], [[0, 0]], [[8, 8]]), wire=0.0, reduction=0.5).seconds
    assert found["synchronisation"].tolist() == [2.5, 0.5]  # the reduction comes behind the last rank
    assert found["seconds"].tolist() == [3.5, 3.5]


def test_stale_rows_hide_the_wire_behind_the_epoch_and_a_link_passes_a_burst_after_a_pause():
    work = workload([[1, 1], [3, 3]], [[0, 0]], [[8, 8]])
    assert epoch(work, wire=3.0).total == 7
    assert epoch(work, wire=3.0, is_pipelined=True).total == 4
    assert epoch(work, wire=6.0, is_pipelined=True).total == pytest.approx(6)  # the link cannot move more than that
    work = workload([[1, 1], [0, 0]], [[0, 0]], [[8, 8]])
    assert epoch(work, wire=2.0).total == 3
    assert epoch(work, wire=2.0, burst=0.5).total == 2.5
    assert epoch(work, wire=2.0, burst=9.0).total == pytest.approx(2)  # no more than was filled during the pauses


@pytest.mark.parametrize(
    ("work", "machine", "seconds"),
    [
        ([2.0, 2.0], Machine(2, 2), [2, 2]),
        ([4.0, 4.0], Machine(4, 2, 2), [2, 2]),
        ([1.0, 1.0, 1.0, 1.0], Machine(2, 4), [2, 2, 2, 2]),
        # 3 ranks at 2/3 of their speed, then two at full speed, then one
        ([1.0, 2.0, 3.0], Machine(2, 3), [1.5, 2.5, 3.5]),
        ([3.0, 1.0, 5.0, 5.0], Machine(1, 2), [4, 2, 10, 10]),  # two machines
    ],
)
def test_ranks_share_cores_evenly(work, machine, seconds):
    assert shared_cores(np.array(work), machine).tolist() == pytest.approx(seconds)


def test_memory_bound_work_is_slower_on_busy_cores():
    values = defaults() | {"contention": 2.0}
    alone, both = prices(values, Machine(2, 1)), prices(values, Machine(2, 2))
    entry, product = COLUMN["entry"], COLUMN["product_float32"]
    assert both[entry] / alone[entry] == pytest.approx(2)
    assert both[product] == alone[product]


@pytest.mark.parametrize(
    ("work", "ranks", "seconds"), [(0.001, 2, 0), (0.001, 4, 0.0005), (0.1, 4, 0.0015), (0.1, 16, 7 * 0.0015)]
)
def test_ranks_that_share_a_core_take_turns(work, ranks, seconds):
    values = NOTHING | {"crowding": 0.5, "turn": 0.003}
    assert lag_of(np.full(ranks, work), values, Machine(2, ranks)) == pytest.approx(seconds)


def test_turns_come_behind_work_and_not_behind_the_wire():
    values = NOTHING | {"layer": 1.0, "crowding": 1.0, "turn": 0.5}
    work, machine = workload([[1, 1], [0, 0]], [[1, 1]], [[8, 8]]), Machine(1, 2)
    assert epoch_of(EpochKind(work, messages(0.0)), values, machine).total == pytest.approx(4.5)
    assert epoch_of(EpochKind(work, messages(10.0)), values, machine).total == pytest.approx(12)


def test_messages_take_cores_from_what_is_computed():
    work = workload([[0, 0], [0, 0]], [[1, 1]], [[10, 10]])
    values = NOTHING | {"layer": 1.0, "byte": 0.1}
    network = Messages(lambda _: np.zeros(2), lambda _: 0.0, lambda each: each.bytes_of_ranks)
    assert epoch_of(EpochKind(work, network), values, Machine(2, 2)).total == pytest.approx(3)
    assert epoch_of(EpochKind(work, network), values, Machine(1, 2)).total == pytest.approx(6)


@pytest.mark.parametrize(("ranks", "num_bytes", "rounds"), [(2, 1 << 20, 2), (8, 1 << 10, 6), (8, 1 << 20, 14)])
def test_many_bytes_go_round_a_ring(ranks, num_bytes, rounds):
    parts = replace(two_parts(), pairs=Pairs(np.array([0]), np.array([1]), np.array([1]), ranks))
    work = replace(workload([[0, 0]], [], []), parts=parts, reduced_bytes=num_bytes)
    found = reduction_work(work, messages(0.0), NOTHING | {"message": 1.0})
    assert found.tolist() == pytest.approx([2 * rounds] * ranks)
    found = reduction_work(work, messages(0.0), NOTHING | {"byte": 1.0, "shared_byte": 1.0})
    assert found[0] == pytest.approx(4 * num_bytes * (ranks - 1) / ranks)


def test_bytes_of_a_reduction_are_of_the_network_as_those_of_exchanges_are():
    work = replace(workload([[0, 0], [0, 0]], [[0, 0]], [[8, 8]]), reduced_bytes=100)
    within, between = messages(0.0), replace(messages(0.0), network_bytes=lambda each: each.bytes_of_ranks)
    values = NOTHING | {"byte": 1.0, "shared_byte": 0.1}
    assert reduction_work(work, within, values)[0] == pytest.approx(20)
    assert reduction_work(work, between, values)[0] == pytest.approx(200)


def test_work_on_large_matrices_misses_the_cache_and_on_small_ones_not():
    steps, parts = steps_of(ModelConfig("sage", hidden=16), 8, 4), two_parts()
    large = replace(parts, nodes=parts.nodes * 10**6)
    for name in ("element", "entry"):
        of_small, of_large = (
            sum(each.sum(axis=0)[COLUMN[f"{name}_missed"]] for each in workload_of(which, steps, 32).before)
            for which in (parts, large)
        )
        assert of_small == 0
        assert of_large > 0


def test_rows_that_attention_weighs_are_timed_with_its_scores():
    found = workload_of(two_parts(), steps_of(ModelConfig("gat", hidden=16, heads=2), 8, 4), 32)
    total = sum(each.sum(axis=0) for each in (*found.before, *found.beside))
    ways, edges_and_loops = 3, 100 + 100 + 50 + 50  # forward, and twice in backward
    assert total[COLUMN["weighted"]] == ways * edges_and_loops * (16 + 16 + 4)


def test_memory_is_a_sum():
    work = replace(workload([[0, 0]], [], []), memory=np.array([[10.0, 2.0, 3.0], [20.0, 4.0, 6.0]]))
    assert memory_of(work, (100.0, 1.0, 2.0, 3.0)).tolist() == [100 + 2 + 10 + 4 + 9, 100 + 2 + 20 + 8 + 18]


def test_models_have_exchanges_of_both_directions_and_features_need_no_gradient():
    def widths(config: ModelConfig, **shape: bool) -> list[tuple[int, bool]]:
        return [(each.width, each.is_backward) for each in steps_of(config, 9, 4, **shape).exchanges()]

    sage = ModelConfig("sage", layers=3, hidden=16)
    assert widths(sage) == [(9, False), (16, False), (4, False), (4, True), (16, True)]
    assert widths(sage, is_sparse=True)[0] == (16, False)  # transformed first
    assert widths(sage, learns=True)[-1] == (9, True)
    assert widths(sage, keeps=True)[0] == (16, False)
    for name in (name for name in KNOWN if MODELS[name].work):  # others depend on types and features of edges
        steps = steps_of(ModelConfig(name), 9, 4)
        assert {each.is_backward for each in steps.exchanges()} == {False, True}, name
        assert {"layer", "product", "element"} <= {each.name for each in steps.pieces if isinstance(each, Work)}, name
    with pytest.raises(HpcgnnError, match="gat with --attention halo"):
        steps_of(ModelConfig("gat", attention="partial"), 9, 4)


def test_constants_have_bounds_around_their_start():
    for constant in BY_NAME.values():
        assert 0 < constant.low <= constant.start <= constant.high
