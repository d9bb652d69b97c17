"""Programs of ranks: what policies are told of rows that travel, against the whole graph's matrices."""

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
    """(N,) what the receivers add for 1 in a row that ``sender`` sends and 0 in all others, in original ids."""
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
    """Largest difference between a row's square weight and the squared norm of what it does."""
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
    """Of every row sent: a post row's source, and, for pre rows, the multiset of their destinations."""
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
    # what one side says of a row is what the other says of it
    told, _ = graph.world.alltoallv(sent, aggregator.exchange.send_counts)
    right &= bool((told == received).all() and (back[0] == received).all() and (back[1] == sent).all())
    return bool(graph.world.allreduce(np.array([right], np.int64), "min")[0])


def compare(world: World, path: Path, strategy: str, order: str, kind: str) -> dict[str, object]:
    """The worst errors of weights forward and backward, whether degrees are right, and which bits each class has."""
    arrays = small_graphs.random_multigraph()
    in_degree = np.bincount(arrays.edge_index[1], minlength=arrays.num_nodes)
    graph = hpcgnn.load(path, world).reordered(order)
    aggregator = make_aggregator(graph, kind, strategy, dtype=torch.float64)
    errors = [weights_error(one, world) for one in (aggregator, aggregator.reverse)]
    degrees = degrees_are_right(aggregator, graph, in_degree)
    classes = row_classes(world, aggregator.channels(graph.in_degrees))
    known = [sorted({int(b) for b in np.unique(by_base[1].sent)}) for by_base in classes]
    return {"errors": errors, "degrees": degrees, "classes": known}
