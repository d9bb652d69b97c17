"""Numbers of rows of plans from their definition: maximum matchings, by networkx."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from requires import require_module


def rows_by_matching(sources: np.ndarray, targets: np.ndarray, owner: np.ndarray) -> dict[tuple[int, int], int]:
    """{(sender, receiver): rows of a hybrid plan}, the size of a minimum vertex cover of the edges from the nodes of one owner to
    those of another. owner: (N,) of each node.
    """
    nx = require_module("networkx")
    cut: defaultdict[tuple[int, int], Any] = defaultdict(nx.Graph)
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        if owner[source] != owner[target]:
            cut[int(owner[source]), int(owner[target])].add_edge(("source", source), ("target", target))
    found = {}
    for pair, edges in cut.items():
        top = {node for node in edges if node[0] == "source"}
        found[pair] = len(nx.bipartite.hopcroft_karp_matching(edges, top)) // 2
    return found
