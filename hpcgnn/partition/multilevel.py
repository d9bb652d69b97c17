"""Multilevel partitioning of a bounded piece of a graph beside parts that are partly filled, as in HeiStream.

In Faraj and Schulz, "Buffered streaming graph partitioning" (2022), a model of the piece has a node for each of its nodes, and a
fixed one for each part. The model is coarsened by clusters, partitioned by Fennel's objective, and improved at each level while
it is refined again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.partition import multilevel_loops as loops

_FEWEST_A_PART = 24
_FEWEST = 1 << 10
_CLUSTER_ROUNDS = 4
_LEAST_SHRINKING = 0.9
CLUSTERS_A_PART = 12


@dataclass(frozen=True)
class Model:
    """A graph with fixed parts beside it; :mod:`hpcgnn.partition.multilevel_loops` describes the arrays. shares: (n,) float32."""

    indptr: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    amounts: np.ndarray
    shares: np.ndarray

    @property
    def num_nodes(self) -> int:
        """Number of nodes that can move, so without the fixed ones."""
        return self.indptr.size - 1

    def contracted(self, labels: np.ndarray, count: int, num_parts: int) -> Model:
        """The model whose nodes are clusters. labels: (n,) int32 cluster of each node, from 0 to ``count - 1``."""
        indptr = np.zeros(count + 1, dtype=np.int64)
        columns, weights = np.empty(self.columns.size, np.int32), np.empty(self.columns.size, np.int32)
        loops.contract(self.indptr, self.columns, self.weights, labels, count, num_parts, indptr, columns, weights)
        used = int(indptr[-1])
        amounts = np.stack([np.bincount(labels, column, count) for column in self.amounts.T], axis=1)
        shares = np.bincount(labels, self.shares, count).astype(np.float32)
        return Model(indptr, columns[:used].copy(), weights[:used].copy(), amounts.astype(np.int64), shares)


@dataclass(frozen=True)
class Parts:
    """The contents of the parts. load: (P, C) int64 quantities in each part. mean: (C,) float64 mean load of a part once all
    nodes are placed. capacity: (C,) float64 largest load of a part."""

    load: np.ndarray
    mean: np.ndarray
    capacity: np.ndarray


@dataclass(frozen=True)
class Search:
    """Settings of the search. price: the price of fullness in Fennel's objective, in units of an average node's edges. rounds: of
    local search at each level."""

    price: float
    rounds: int


def partition_model(model: Model, parts: np.ndarray, filled: Parts, search: Search, rng: np.random.Generator) -> None:
    """Place the nodes of ``model`` whose ``parts`` (n,) int32 is -1, and move others if that helps. Modifies ``parts`` and
    ``filled.load``, which has the quantities of nodes with a part already.
    """
    num_parts = filled.load.shape[0]
    fewest = max(_FEWEST, _FEWEST_A_PART * num_parts)
    limit = filled.mean / CLUSTERS_A_PART
    levels: list[tuple[Model, np.ndarray, np.ndarray]] = []
    while model.num_nodes > fewest:
        labels = np.empty(model.num_nodes, dtype=np.int32)
        order = _order(model, rng)
        loops.cluster(
            model.indptr, model.columns, model.weights, model.amounts, limit, order, parts, labels, _CLUSTER_ROUNDS
        )
        count = loops.number_clusters(labels)
        if count > _LEAST_SHRINKING * model.num_nodes:
            break
        levels.append((model, parts, labels))
        coarse_parts = np.full(count, -1, dtype=np.int32)
        coarse_parts[labels] = parts  # all nodes of a cluster have the same part
        model, parts = model.contracted(labels, count, num_parts), coarse_parts
    _improve(model, parts, filled, search, rng)
    while levels:
        fine, fine_parts, labels = levels.pop()
        fine_parts[:] = parts[labels]
        model, parts = fine, fine_parts
        _improve(model, parts, filled, search, rng)


def _improve(model: Model, parts: np.ndarray, filled: Parts, search: Search, rng: np.random.Generator) -> None:
    loops.improve(
        model.indptr, model.columns, model.weights, model.amounts, model.shares, _order(model, rng),
        filled.mean, filled.capacity, parts, filled.load, search.price, search.rounds,
    )  # fmt: skip


def _order(model: Model, rng: np.random.Generator) -> np.ndarray:
    """(n,) int32 all nodes in random order."""
    return rng.permutation(model.num_nodes).astype(np.int32)
