"""Attention over a halo in pieces: equal to that over the whole halo, with few rows in memory."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from typing import Any

import pytest
import torch
from ranks import models, pieces

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.exchange.changes import RowChanges
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.halo import attention_edges
from hpcgnn.nn.pieces import make_pieces
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads


def test_gradients_of_parts_of_a_graph_import_no_symbolic_modules():
    """torch.autograd.grad with gradients imports them, and they take 30 MB of each rank."""
    program = """
import sys, torch
from hpcgnn.kernels.autograd import gradients_of
x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
found = gradients_of((x * 2, x * 3), (x, y), (torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])))
assert [each.tolist() for each in found] == [[32, 64], [0, 0]], found
assert "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


class Received:
    """The sizes and the values of the rows that aggregators return, by exchange and rank."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[Any, list[torch.Tensor]] = defaultdict(list)
        finish = Aggregator.finish_step

        def noted(aggregator: Aggregator, *under_way: Any) -> torch.Tensor:
            rows = finish(aggregator, *under_way)
            exchange = aggregator.exchange
            self.rows[exchange.messages.world.rank, exchange.id].append(rows.clone())
            return rows

        monkeypatch.setattr(Aggregator, "finish_step", noted)


def test_a_rank_holds_no_more_rows_of_others_than_a_piece_has(tmp_path, monkeypatch):
    received = Received(monkeypatch)

    def run(world: World) -> int:
        graph = pieces.graph_on(world, tmp_path)
        pieces.trained(graph, pieces.model_of(graph, "gat", halo="pieces"))
        return graph.halo_ids.numel()

    halos = on_threads(3, run)
    bound = 60 // 3 // 4
    forward = [rows.shape[0] for (_, of), each in received.rows.items() if not of.is_backward for rows in each]
    assert max(forward) <= bound + 2
    assert sum(forward) == 2 * 3 * sum(halos)  # forward and backward, in three layers
    assert max(halos) > 4 * bound


@pytest.mark.parametrize("bits", [2, 8])
def test_rows_that_are_sent_again_are_the_same_bits(tmp_path, monkeypatch, bits):
    """Of two forward passes, each has noise of its own. Bytes are counted each time."""
    received = Received(monkeypatch)

    def run(world: World) -> None:
        graph = pieces.graph_on(world, tmp_path)
        model = pieces.model_of(graph, "gat", bits, halo="pieces", layers=1)
        (model(graph.features.double()).sum() + model(graph.features.double()).sum()).backward()
        for each in model.aggregators:
            rows = received.rows[world.rank, each.exchange.id][0]
            sent = int(each.exchange.step(rows.shape[1], rows.dtype).codec.send_counts.sum()) * 64
            assert model.messages.traffic.bytes_sent[each.exchange.id] == 4 * sent

    on_threads(3, run)
    seen = [each for (_, of), each in received.rows.items() if not of.is_backward and each[0].numel()]
    assert not all(torch.equal(each[0], each[1]) for each in seen)  # small pieces may be rounded alike by chance
    for each in seen:
        assert torch.equal(each[0], each[3])  # autograd goes backward through the second pass first
        assert torch.equal(each[1], each[2])


def test_policies_see_rows_once(tmp_path, monkeypatch):
    """Not a second time when they are sent again."""
    seen: list[RowChanges] = []
    monkeypatch.setattr(RowChanges, "note", lambda changes, *given: seen.append(changes))

    def run(world: World) -> None:
        graph = pieces.graph_on(world, tmp_path)
        model = pieces.model_of(graph, "gat", 2, halo="pieces")
        for each in model.aggregators:
            each.exchange.trace_changes()
        pieces.trained(graph, model)

    on_threads(2, run)
    assert seen
    assert len(seen) == len({*map(id, seen)})


@pytest.mark.parametrize(("how", "sentence"), [
    ({"bits": 2, "message_coding": "delta"}, "--halo pieces keeps no row for a later epoch"),
    ({"node_aware": "on"}, "leave --node-aware at auto"),
])  # fmt: skip
def test_messages_that_keep_rows_are_refused(tmp_path, how, sentence):
    def run(world: World) -> None:
        graph = pieces.graph_on(world, tmp_path)
        with pytest.raises(HpcgnnError, match=sentence):
            hpcgnn.build_model(
                models.small("gat", halo="pieces"), graph, messages=Messages(world, MessageConfig(**how))
            )

    on_threads(3, run)


def test_backward_after_another_pass_has_begun_is_refused(tmp_path):
    def run(world: World) -> str:
        graph = pieces.graph_on(world, tmp_path)
        model = pieces.model_of(graph, "gat", halo="pieces")
        scores = model(graph.features.double())
        model.begin_epoch(4)
        with pytest.raises(HpcgnnError) as error:
            scores.sum().backward()
        return str(error.value)

    assert all("call backward before it" in sentence for sentence in on_threads(2, run))


def test_the_number_of_rows_of_a_piece_can_be_chosen(tmp_path):
    def run(world: World) -> tuple[int, int]:
        graph = pieces.graph_on(world, tmp_path)
        made = make_pieces(graph, attention_edges(graph), messages=Messages(world), rows=3)
        sizes = [piece.block.csr.num_cols for piece in made.pieces]
        return max(sizes), sum(sizes) - graph.halo_ids.numel()

    assert on_threads(2, run) == [(3, 0), (3, 0)]
