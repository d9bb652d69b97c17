"""Small stand-ins for a rank's part of a graph, with the same proportions: nodes, edges, rows sent and received.

The edges between two ranks are stars. A *post* row is the centre of a star of its destinations, and a *pre* row that of a star of
its sources, and the ranks' plan has just these rows. The other ranks are a few peers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_store import PlanCounts, StoredPlan
from hpcgnn.data.schema import MASKS, MULTI_LABEL, NO_TASK, REGRESSION, GraphMeta
from hpcgnn.data.stored import RowsOnDisk
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.node_types import FeaturesByType
from hpcgnn.kernels import Csr
from hpcgnn.plan import AggregationPlan, SparseMatrix
from hpcgnn.plan.relations import ResultRows
from hpcgnn.world import World, raise_on_all_ranks

_EDGES_AT_ONCE = 1 << 20
_MOST_PEERS = 7
_SKEW = 4  # power of the draws of nodes: some nodes have many edges, as in most graphs


@dataclass(frozen=True)
class PartFacts:
    """The sizes of one rank's part, without its data.

    meta: of the graph. ranks: number of ranks. nodes, edges: owned, and ending at owned ones. plan: of the model's strategy.
    features: stored values of sparse features. trained: number of training nodes. relations: (R,) edges of each type.
    """

    meta: GraphMeta
    ranks: int
    nodes: int
    edges: int
    plan: PlanCounts
    features: int
    trained: int
    relations: np.ndarray


def facts_of(world: World, path: Path, strategy: str) -> PartFacts:
    """The sizes of this rank's part. Collective. Memory is O(1), or O(halo) for a file without a plan of the strategy, whose
    rows are then those of ``post``, the most that any strategy sends."""
    with raise_on_all_ranks(world, f"read {path}"), PartsFile(path, advised_parts=world.size) as file:
        is_known = file.num_parts == world.size and plan_store.is_stored(file, strategy)
        facts = part_facts(file, world.rank, strategy) if is_known else None
        own, by_owner = (0, np.zeros(0, np.int64)) if is_known else _halo(file, world.rank, world.size)
    if facts is not None:
        return facts
    sent, _ = world.alltoallv(by_owner, np.ones(world.size, np.int64))
    with raise_on_all_ranks(world, f"read {path}"), PartsFile(path) as file:
        first, last = _bounds(file, world.rank, world.size)
        edges = _edges(file, first, last)
        plan = PlanCounts(
            own, int(sent.sum()), edges[1] - edges[0] - own, (int(sent.sum()), 0), (int(by_owner.sum()), 0)
        )
        return _facts(file, (first, last), world.size, plan)


def part_facts(file: PartsFile, part: int, strategy: str) -> PartFacts:
    """The sizes of one part of an open file that has a plan for the strategy."""
    return _facts(file, file.part(part), file.num_parts, StoredPlan(file, strategy).counts(part))


def _facts(file: PartsFile, nodes: tuple[int, int], ranks: int, plan: PlanCounts) -> PartFacts:
    meta, (first, last) = file.meta, _edges(file, *nodes)
    values = 0
    if meta.x_nnz is not None:
        ends = [file.read("nodes/x_indptr", each, each + 1) for each in nodes]
        values = int(ends[1][0] - ends[0][0])
    mask = file.mask("train_mask", *nodes)
    relations = np.zeros(max(meta.num_edge_types, 1), np.int64)
    for begin in range(first, last if meta.num_edge_types else first, _EDGES_AT_ONCE):
        types = file.of_edges("type", begin, min(begin + _EDGES_AT_ONCE, last))
        relations += np.bincount(types, minlength=relations.size)  # type: ignore[arg-type]
    trained = nodes[1] - nodes[0] if mask is None else int(np.count_nonzero(mask))
    return PartFacts(meta, ranks, nodes[1] - nodes[0], last - first, plan, values, trained, relations)


def _bounds(file: PartsFile, rank: int, ranks: int) -> tuple[int, int]:
    if file.num_parts == ranks:
        return file.part(rank)
    nodes = file.meta.num_nodes
    return rank * nodes // ranks, (rank + 1) * nodes // ranks


def _edges(file: PartsFile, first: int, last: int) -> tuple[int, int]:
    begin, end = (int(file.read("edges/indptr", each, each + 1)[0]) for each in (first, last))
    return begin, end


def _halo(file: PartsFile, rank: int, ranks: int) -> tuple[int, np.ndarray]:
    """The number of a rank's edges inside its part, and (P,) its halo nodes by owner."""
    first, last = _bounds(file, rank, ranks)
    begin, end = _edges(file, first, last)
    own, halo = 0, np.zeros(0, np.int64)
    for some in range(begin, end, _EDGES_AT_ONCE):
        sources = file.read("edges/indices", some, min(some + _EDGES_AT_ONCE, end))
        inside = (sources >= first) & (sources < last)
        own, halo = own + int(np.count_nonzero(inside)), np.union1d(halo, sources[~inside])
    offsets = [_bounds(file, other, ranks)[0] for other in range(ranks)]
    return own, np.bincount(np.searchsorted(offsets, halo, side="right") - 1, minlength=ranks)


@dataclass
class _Part(LocalGraph):
    """A part whose values of edges are made when they are asked for, as those of a file are read."""

    make: dict[str, Callable[[], torch.Tensor]] = field(default_factory=dict)
    is_post: Callable[[], np.ndarray] = lambda: np.zeros(0, bool)

    def built_plan(self, strategy: str | np.ndarray, rows: ResultRows | None = None) -> AggregationPlan[SparseMatrix]:
        return super().built_plan(self.is_post() if strategy == "hybrid" else strategy, rows)

    def with_edges(self, kept: np.ndarray) -> LocalGraph:
        def of_kept(make: Callable[[], Any]) -> Callable[[], Any]:
            return lambda: make()[kept]

        found = super().with_edges(kept)
        assert isinstance(found, _Part)
        makers = {name: of_kept(make) for name, make in self.make.items()}
        return replace(found, is_post=of_kept(self.is_post), make=makers)

    def _read_of_edges(self, name: str) -> torch.Tensor:
        if name not in self._of_edges:
            self._of_edges[name] = self.make[name]()
        return self._of_edges[name]


class _MadeRows(RowsOnDisk):
    """Features that are made when they are read, and in no memory before."""

    def __init__(self, count: int, dtype: str) -> None:
        self.count, self.dtype = count, np.dtype(dtype)

    def read(self, rows: slice, out: np.ndarray, following: slice) -> None:
        out.fill(1)


class StandIn:
    """A graph of ``share`` of the sizes in ``facts`` on rank 0, and of its peers. on_disk: whether features stay on disk."""

    def __init__(self, facts: PartFacts, share: float, *, on_disk: bool = False) -> None:
        self.facts, self.share, self.on_disk, self.rng = facts, share, on_disk, np.random.default_rng(0)
        self.count = lambda number: min(number, max(1, round(share * number)))  # nothing stays nothing
        sent = sum(facts.plan.sent)
        wanted = -(-sent // max(facts.nodes, 1))  # a node has at most one row for each peer
        self.peers = 0 if facts.ranks == 1 else max(1, min(wanted, facts.ranks - 1, _MOST_PEERS))
        self._make_nodes()
        self._make_edges()

    @property
    def ranks(self) -> int:
        """Number of ranks: this one and its peers."""
        return 1 + self.peers

    def _make_nodes(self) -> None:
        facts, meta = self.facts, self.facts.meta
        counts = np.array([each.count for each in meta.node_types] or [1], float)
        own, plan = self.count(facts.nodes), facts.plan
        post, pre = map(self.count, plan.received)
        there = -(-(post + 2 * pre + sum(map(self.count, plan.sent))) // max(self.peers, 1)) + 3
        sizes = [own] + [there] * self.peers
        shares = counts / max(counts.sum(), 1)
        # (ranks, types): nodes
        self.sizes = np.array([np.maximum(np.round(shares * size), counts > 0) for size in sizes], np.int64)
        if len(counts) == 1:
            self.sizes = np.array(sizes, np.int64)[:, None]
        self.offsets = np.concatenate(([0], np.cumsum(self.sizes.sum(1))))  # first position of each rank
        self._first = self.offsets[:-1, None] + np.cumsum(self.sizes, axis=1) - self.sizes

    def _make_edges(self) -> None:
        facts, plan, count, peers = self.facts, self.facts.plan, self.count, max(self.peers, 1)
        found: list[tuple[Any, ...]] = []  # ranks and nodes of the sources, those of the targets, and types
        local = count(plan.local)
        kind = self._relations(local)
        found.append((0, self._draws(local), 0, self._draws(local), kind))
        post, pre = map(count, plan.received)
        in_r = max(count(plan.receive) - pre, post)
        into_s = max(count(facts.edges) - local - in_r, 2 * pre)
        first = post // peers + 1  # no source of a pre row is one of a post row
        star, kind, peer = self._stars(post, in_r)
        found.append((peer, star // peers, 0, self._draws(star.size), kind))
        star, kind, peer = self._stars(pre, into_s)
        alone = first + (star + pre * (np.arange(star.size) // max(pre, 1) % 2)) // peers  # two sources of each
        found.append((peer, alone, 0, star // peers, kind))
        post, pre = map(count, plan.sent)
        star, kind, peer = self._stars(post, 2 * post)
        found.append((0, star // peers, peer, self._draws(star.size), kind))
        star, kind, peer = self._stars(pre, max(count(plan.send) - post, 2 * pre))
        found.append((0, self._draws(star.size), peer, star // peers, kind))
        source, target = (
            np.concatenate([self._node(each[at], of_kinds[each[4]], each[at + 1]) for each in found])
            for at, of_kinds in zip((0, 2), facts.meta.edge_type_ends, strict=True)
        )
        kind = np.concatenate([each[4] for each in found])
        order = np.argsort(target, kind="stable")
        self.is_post = np.repeat([True, True, False, True, False], [each[4].size for each in found])[order]
        self.source, self.target, self.kind = source[order], target[order], kind[order]

    def _relations(self, number: int) -> np.ndarray:
        """(number,) types of edges, as often as in the part."""
        counts = self.facts.relations
        return (
            self.rng.choice(counts.size, number, p=counts / counts.sum())
            if counts.any()
            else np.zeros(number, np.int64)
        )

    def _stars(self, rows: int, edges: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each edge of ``rows`` stars: the number, the type and the peer of its star."""
        if not (rows and self.peers):
            return (np.zeros(0, np.int64),) * 3
        star = np.arange(edges) % rows
        return star, self._relations(rows)[star], 1 + star % self.peers

    def _draws(self, number: int) -> np.ndarray:
        return self.rng.random(number) ** _SKEW

    def _node(self, rank: int | np.ndarray, kind: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Positions of nodes of the type ``kind`` of ranks. which: their numbers, or where they are between 0 and 1."""
        size = np.maximum(self.sizes[rank, kind], 1)
        return self._first[rank, kind] + (which % size if which.dtype.kind == "i" else (which * size).astype(np.int64))

    @property
    def share_of_edges(self) -> float:
        """The share of rank 0 among the edges of all ranks."""
        return float(np.count_nonzero(self.target < self.offsets[1])) / max(self.target.size, 1)

    def part(self, world: World) -> LocalGraph:
        """The part of one rank."""
        rank, facts, old = world.rank, self.facts, self.facts.meta
        first, last = self.offsets[rank : rank + 2].tolist()
        mine = (self.target >= first) & (self.target < last)
        rng, nodes, edges = np.random.default_rng(rank), last - first, int(np.count_nonzero(mine))
        totals, before = self.sizes.sum(0), np.cumsum(self.sizes, axis=0)[rank] - self.sizes[rank]
        begins = np.cumsum(totals) - totals
        ids = np.concatenate([begins[k] + before[k] + np.arange(self.sizes[rank, k]) for k in range(totals.size)])
        types = tuple(replace(each, count=int(total)) for each, total in zip(old.node_types, totals, strict=False))
        meta = replace(
            old,
            num_nodes=int(totals.sum()),
            num_edges=self.source.size,
            has_link_split=False,
            num_asked_links=0,
            provenance={},
            node_types=types,
        )
        lengths = np.bincount(self.target[mine] - first, minlength=nodes)
        begin = int(np.count_nonzero(self.target < first))
        # Each rank has one at least: a stand-in without any would be refused, and few nodes of a part may be trained.
        count = max(1, round(nodes * facts.trained / max(facts.nodes, 1)))
        trained = rng.permutation(nodes) < count
        masks = [trained, *(~trained & (rng.random(nodes) < 0.5) for _ in range(2))]
        kinds, posts, columns = self.kind[mine], self.is_post[mine], old.num_edge_features
        return _Part(
            world=world,
            path=Path("a stand-in"),
            uuid="",
            meta=meta,
            node_offsets=self.offsets,
            features=self._features(rng, nodes, rank),
            y=_labels(rng, meta, nodes),
            masks=dict(zip(MASKS, map(torch.from_numpy, masks), strict=True)) if old.has_masks else {},
            original_ids=torch.from_numpy(ids),
            indptr=begin + np.concatenate(([0], np.cumsum(lengths))),
            indices=self.source[mine],
            edge_weight=torch.ones(edges) if old.weighted else None,
            matches_parts=False,
            stored_edges=range(begin, begin + edges),
            is_post=lambda: posts,
            make={
                "type": lambda: torch.from_numpy(kinds),
                "attr": lambda: torch.from_numpy(rng.random((edges, columns), np.float32)),
            },
        )

    def _features(
        self, rng: np.random.Generator, nodes: int, rank: int
    ) -> torch.Tensor | Csr | FeaturesByType | FeaturesOnDisk | None:
        meta, width = self.facts.meta, self.facts.meta.num_features
        if meta.x_by_type:
            ends = np.cumsum(self.sizes[rank])
            rows = tuple(
                torch.arange(int(end - size), int(end)) for end, size in zip(ends, self.sizes[rank], strict=True)
            )
            blocks = tuple(torch.from_numpy(rng.random((own.numel(), each.columns), np.float32))
                           for own, each in zip(rows, meta.node_types, strict=True))  # fmt: skip
            return FeaturesByType((nodes, width), rows, blocks, tuple(meta.column_offsets[:-1].tolist()))
        if meta.x_nnz is not None:
            values = round(nodes * self.facts.features / max(self.facts.nodes, 1))
            indptr = np.arange(nodes + 1) * values // max(nodes, 1)
            return Csr(indptr, rng.integers(0, width, values).astype(np.int32), width,
                       rng.random(values, np.float32), check=False)  # fmt: skip
        if self.on_disk:  # blocks have the share of the sizes of the run's, and are as many
            return FeaturesOnDisk(_MadeRows(nodes, meta.x_dtype), width, block_share=self.share)
        return torch.from_numpy(rng.random((nodes, width), np.float32)) if width else None


def _labels(rng: np.random.Generator, meta: GraphMeta, nodes: int) -> torch.Tensor | None:
    if meta.task == NO_TASK:
        return None
    if meta.task == REGRESSION:
        shape = (nodes, meta.num_classes) if meta.num_classes > 1 else (nodes,)
        return torch.from_numpy(rng.random(shape, np.float32))
    if meta.task == MULTI_LABEL:
        return torch.from_numpy(rng.integers(0, 2, (nodes, meta.num_classes)).astype(np.uint8))
    return torch.from_numpy(rng.integers(0, max(meta.num_classes, 1), nodes))
