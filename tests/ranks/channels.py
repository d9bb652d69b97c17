"""Programs for ranks: the information that policies get about rows, compared with matrices of the whole graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import small_graphs
import torch

import hpcgnn
from hpcgnn.comm import World
from hpcgnn.nn import make_aggregator
from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.policy.sylvie import row_classes


def effect(aggregator: Aggregator, row: int, sender: int, world: World) -> torch.Tensor:
    """(N,) sum at the receivers if a row that ``sender`` sends is 1 and all others are 0, by original id."""
    exchange = aggregator.exchange
    rows = torch.zeros(int(exchange.send_counts.sum()), 1, dtype=torch.float64)
    if world.rank == sender:
        rows[row] = 1
    sent = exchange.rows_to_send(1, torch.float64)
    sent.copy_(rows)
    message = exchange.start(sent)
    exchange.wait(message)
    z = torch.zeros(aggregator.plan.receive.num_rows, 1, dtype=torch.float64)
    exchange.add_received(message, aggregator.plan.receive, z)
    return z if aggregator.left is None else z * aggregator.left


def weights_error(aggregator: Aggregator, world: World) -> float:
    """The largest difference between a row's square weight and the squared norm of its effect."""
    told, worst = aggregator.square_weights(), 0.0
    counts = world.allgather(np.array([told.size]))[:, 0]
    for sender in range(world.size):
        for row in range(counts[sender]):
            squares = np.array([float((effect(aggregator, row, sender, world) ** 2).sum())])
            wanted = float(world.allreduce(squares)[0])
            if world.rank == sender:
                worst = max(worst, abs(told[row] - wanted))
    return float(world.allreduce(np.array([worst]), "max")[0])


def degrees_are_right(aggregator: Aggregator, graph: hpcgnn.LocalGraph, in_degree: np.ndarray) -> bool:
    """Return whether the degrees of every sent row are right: of a post row's source, and, for pre rows, of the multiset of
    their destinations.
    """
    forward, backward = aggregator.channels(graph.in_degrees)
    sent, received = forward.degrees()
    back = backward.degrees()
    plan, ids, right = aggregator.plan, graph.original_ids.numpy(), True
    post = plan.send_to.is_post()
    sources = plan.send.indices.numpy()[plan.send.indptr.numpy()[:-1]]
    right &= bool((sent[post] == in_degree[ids[sources[post]]]).all())
    pre = ~plan.receive_from.is_post()
    columns, rows = plan.receive.indices.numpy(), plan.receive.entry_rows().numpy()
    for column, row in zip(columns, rows, strict=True):
        right &= bool(not pre[column] or received[column] == in_degree[ids[row]])
    # Sender and receiver must say the same about a row.
    told, _ = graph.world.alltoallv(sent, aggregator.exchange.send_counts)
    right &= bool((told == received).all() and (back[0] == received).all() and (back[1] == sent).all())
    return bool(graph.world.allreduce(np.array([right], np.int64), "min")[0])


def compare(world: World, path: Path, strategy: str, order: str, kind: str) -> dict[str, object]:
    """The largest errors of weights forward and backward, whether degrees are right, and the bits of each class."""
    arrays = small_graphs.random_multigraph()
    in_degree = np.bincount(arrays.edge_index[1], minlength=arrays.num_nodes)
    graph = hpcgnn.load(path, world).reordered(order)
    aggregator = make_aggregator(graph, kind, strategy, dtype=torch.float64)
    errors = [weights_error(one, world) for one in (aggregator, aggregator.reverse)]
    degrees = degrees_are_right(aggregator, graph, in_degree)
    classes = row_classes(world, aggregator.channels(graph.in_degrees))
    known = [sorted({int(b) for b in np.unique(by_base[1].sent)}) for by_base in classes]
    return {"errors": errors, "degrees": degrees, "classes": known}
