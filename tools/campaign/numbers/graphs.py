"""Extreme graphs and features, by name: structures of edges, values of features, labels and masks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from small_graphs import Arrays

from hpcgnn.data.schema import MASKS

LARGEST = float(np.finfo(np.float32).max)
_NODES, _FEATURES, _CLASSES = 24, 5, 3


def _random(rng: np.random.Generator) -> tuple[int, np.ndarray]:
    edges = rng.integers(0, _NODES - 3, (2, 90))  # the last three nodes are isolated
    return _NODES, np.concatenate((edges, edges[::-1, :40], edges[:, :5], [[2, 7], [2, 7]]), axis=1)


def _star(_: np.random.Generator) -> tuple[int, np.ndarray]:
    others = np.arange(1, _NODES)
    hub = np.zeros_like(others)
    return _NODES, np.concatenate(([hub, others], [others, hub]), axis=1)


def _star_inwards(rng: np.random.Generator) -> tuple[int, np.ndarray]:
    nodes, edges = _star(rng)
    return nodes, edges[:, edges[1] == 0]


def _star_outwards(rng: np.random.Generator) -> tuple[int, np.ndarray]:
    nodes, edges = _star(rng)
    return nodes, edges[:, edges[0] == 0]


EDGES: dict[str, Callable[[np.random.Generator], tuple[int, np.ndarray]]] = {
    "random edges": _random,
    "isolated nodes only": lambda rng: (_NODES, np.zeros((2, 0), np.int64)),
    "star": _star,
    "star inwards": _star_inwards,
    "star outwards": _star_outwards,
    "1 node": lambda rng: (1, np.zeros((2, 0), np.int64)),
    "1 node with a loop": lambda rng: (1, np.zeros((2, 1), np.int64)),
    "2 nodes and an edge": lambda rng: (2, np.array([[0], [1]])),
    "ring": lambda rng: (_NODES, np.stack((np.arange(_NODES), (np.arange(_NODES) + 1) % _NODES))),
}
"""Number of nodes and (2, E) edges, sources first. With the small ones, some ranks have no node."""
# Graphs without links to be learned.
WITHOUT_LINKS = ("isolated nodes only", "1 node", "1 node with a loop", "2 nodes and an edge")


def _one_huge(x: np.ndarray) -> np.ndarray:
    x = 1e-3 * x
    x[0, 0] = 1e30
    return x


def _mixed(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * 10.0 ** (np.abs(x) * 20 % 60 - 40)


FEATURES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "usual": lambda x: x,
    "1e30": lambda x: 1e30 * x,
    "1e-30": lambda x: 1e-30 * x,
    "denormals": lambda x: 1e-40 * x,
    "the smallest denormal": lambda x: np.sign(x) * 1.4e-45,
    "constant rows": lambda x: np.repeat(x[:, :1], x.shape[1], 1),
    "all equal": lambda x: np.full_like(x, 0.7),
    "all equal, 1e30": lambda x: np.full_like(x, 1e30),
    "zeros": np.zeros_like,
    "negative zeros": lambda x: -np.zeros_like(x),
    "one huge value": _one_huge,
    "from 1e-40 to 1e20": _mixed,
    "whole numbers beyond 2**24": lambda x: np.round(x * 2**24) * 2 + 2**25,
    "2**31 and its neighbours": lambda x: 2.0**31 + np.round(x) * 128,
    "the largest numbers": lambda x: np.sign(x) * LARGEST,
    "1e38": lambda x: np.sign(x) * 1e38,
}
"""Features (N, F), made from standard normal ones."""
# Whether float32 sums of these are finite depends on the order of summation.
SUMS_OVERFLOW = ("the largest numbers", "1e38")


def _usual(rng: np.random.Generator, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(0, _CLASSES, nodes), rng.integers(0, 3, nodes)


def _one_training_node(rng: np.random.Generator, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    group = np.full(nodes, 2)
    group[rng.integers(0, nodes)] = 0
    return rng.integers(0, _CLASSES, nodes), group


LABELS: dict[str, Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]] = {
    "usual": _usual,
    "one class": lambda rng, nodes: (np.zeros(nodes, np.int64), rng.integers(0, 3, nodes)),
    "one training node": _one_training_node,
    "no validation nodes": lambda rng, nodes: (rng.integers(0, _CLASSES, nodes), 2 * rng.integers(0, 2, nodes)),
    "no training nodes": lambda rng, nodes: (rng.integers(0, _CLASSES, nodes), np.full(nodes, 1)),
    "all of them training nodes": lambda rng, nodes: (rng.integers(0, _CLASSES, nodes), np.zeros(nodes, np.int64)),
    "many labels a node": lambda rng, nodes: (rng.integers(0, 2, (nodes, _CLASSES)), rng.integers(0, 3, nodes)),
}
"""Labels, and the mask to which each node belongs."""


def make(edges: str, features: str, labels: str, rng: np.random.Generator) -> Arrays:
    """The graph with these three names."""
    nodes, edge_index = EDGES[edges](rng)
    x = FEATURES[features](rng.standard_normal((nodes, _FEATURES))).astype(np.float32)
    y, group = LABELS[labels](rng, nodes)
    if labels not in ("no training nodes", "many labels a node"):
        group[0] = 0
    if y.ndim == 2:
        group[0], y = 0, y.astype(np.uint8)
    masks = {name: group == number for number, name in enumerate(MASKS)}
    return Arrays(edge_index.astype(np.int64), x, y, masks)
