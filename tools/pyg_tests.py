"""Runs PyG's own tests of its layers with distributed layers on one rank.

usage: pyg_tests.py FOLDER [PYTEST FLAGS ...]      FOLDER: test/nn of a checkout of pytorch_geometric, or a folder or file in it

While the tests run, each layer or norm that a test calls with edges of one set of nodes is distributed first. It is called
twice, because edges that come again are aggregated by a plan, and the test gets the second result. The plain layer is called as
well, because tests look at the state that it keeps. All other calls (sparse adjacency matrices, two sets of nodes, batches) use
the plain layer; the table has their number. Compare the results with a run with --plain: a version of PyG that is newer than
its tests fails some of them anyway.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.table import Table
from torch_geometric.nn import BatchNorm, GraphNorm, LayerNorm, MessagePassing, PairNorm

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import GraphMeta
from hpcgnn.exchange import Messages
from hpcgnn.exchange.messages import MessageConfig
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.pyg.distribution import on_ranks
from hpcgnn.world.thread_world import ThreadWorld, one_rank

ADAPTED = (MessagePassing, BatchNorm, LayerNorm, GraphNorm, PairNorm)
PLAIN_CALL = torch.nn.Module.__call__


class Distributed:
    """Replaces ``__call__`` of :data:`ADAPTED` while tests run, and counts the calls."""

    def __init__(self) -> None:
        self.judged: Counter[str] = Counter()
        self.plain: Counter[tuple[str, str]] = Counter()
        self._inside = threading.local()

    def call(self, layer: torch.nn.Module, *args: Any, **named: Any) -> Any:
        """The result of the distributed layer, or of the plain one if the call cannot be distributed."""
        if getattr(self._inside, "yes", False):
            return PLAIN_CALL(layer, *args, **named)
        self._inside.yes = True
        try:
            return self._outermost(layer, args, named)
        finally:
            self._inside.yes = False

    def _outermost(self, layer: torch.nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        name, state = type(layer).__name__, torch.get_rng_state()
        plain = PLAIN_CALL(layer, *args, **named)
        after = torch.get_rng_state()
        try:
            twin = on_ranks(layer, graph_of(layer, args, named), Messages(world(), MessageConfig()))
            for _ in range(2):
                torch.set_rng_state(state)  # dropout then draws the same numbers
                found = PLAIN_CALL(twin, *args, **named)
        except (NotOurs, HpcgnnError) as reason:
            self.plain[name, str(reason)] += 1
            found = plain
        else:
            self.judged[name] += 1
        torch.set_rng_state(after)
        return found


class NotOurs(Exception):
    """The call does not concern a single graph whose nodes could be divided among ranks."""


def world() -> ThreadWorld:
    """A world of one rank."""
    return one_rank()


def graph_of(layer: torch.nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> LocalGraph:
    """The graph to which the arguments belong.

    Raises:
        NotOurs: if there is no such graph.
    """
    given = inspect.signature(layer.forward).bind(*args, **named).arguments
    x, edges = given.get("x"), given.get("edge_index")
    if edges is None and not isinstance(layer, MessagePassing):
        edges = torch.zeros(2, 0, dtype=torch.int64)
    if type(edges) is not torch.Tensor or edges.layout != torch.strided:
        raise NotOurs("edges that are not a (2, e) tensor")
    ends = list(x) if isinstance(x, (tuple, list)) else [x]
    if not isinstance(ends[0], torch.Tensor):
        raise NotOurs("no features")
    lengths = {len(end) if isinstance(end, torch.Tensor) else 0 for end in ends} | set(given.get("size") or ())
    if len(lengths) > 1 or given.get("batch") is not None:
        raise NotOurs("several graphs, or two sets of nodes")
    if getattr(layer, "node_dim", 0) not in (-2, 0) or ends[0].dim() > 2:
        raise NotOurs("nodes in another dimension than the first")
    nodes, edges = len(ends[0]), edges.numpy()
    order = np.lexsort(edges)
    return LocalGraph(
        world=world(),
        path=Path("the test's graph"),
        uuid="",
        meta=GraphMeta(num_nodes=nodes, num_edges=edges.shape[1]),
        node_offsets=np.array([0, nodes]),
        features=ends[0],
        y=None,
        masks={},
        original_ids=torch.arange(nodes),
        indptr=np.concatenate(([0], np.cumsum(np.bincount(edges[1], minlength=nodes)))),
        indices=edges[0][order],
        edge_weight=None,
        matches_parts=False,
    )


class Report:
    """A pytest plugin that replaces the call, and prints the table."""

    def __init__(self, distributed: Distributed) -> None:
        self._distributed = distributed

    def pytest_runtest_setup(self) -> None:
        """Replace the call before each test, because a test may have restored the original."""
        distributed = self._distributed
        for kind in ADAPTED:
            kind.__call__ = lambda layer, *args, **named: distributed.call(layer, *args, **named)  # type: ignore

    def pytest_terminal_summary(self) -> None:
        """Print the table."""
        table = Table("layer", "calls that tests judged distributed", "plain calls, by reason")
        plain = self._distributed.plain
        for name in sorted({*self._distributed.judged, *(layer for layer, _ in plain)}):
            why = "; ".join(f"{count} {reason}" for (layer, reason), count in plain.items() if layer == name)
            table.add_row(name, str(self._distributed.judged[name]), why)
        Console(width=160).print(table)


def main() -> int:
    """Run pytest with the plugin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plain", action="store_true", help="run the tests with plain layers only")
    arguments, flags = parser.parse_known_args()
    plugins = [] if arguments.plain else [Report(Distributed())]
    run: Callable[..., int] = pytest.main
    return int(run([str(arguments.folder), "-p", "no:cacheprovider", "-q", "-W", "ignore", *flags], plugins=plugins))


if __name__ == "__main__":
    sys.exit(main())
