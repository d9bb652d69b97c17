"""Ranks of the true ends of links among candidates, as for FB15k and OGB, without a gather on one rank.

Each link asks two questions: which source has this relation to this target, and which target has it from this source. Where nodes
have types, those of the true end's type are candidates. Candidates that would make a known triple (one of all edges of the graph)
do not count, nor does the known end in a graph without types of edges. With b candidates that score better than the true end and
q that score the same, its rank is 1 + b + q / 2, the mean of the best and the worst order of ties ("realistic" rank). OGB's
evaluator computes the same of the candidates that come with ogbl-citation2, ogbl-wikikg2 and ogbl-biokg, which all count.

All ranks see the questions of all ranks in chunks, and each rank scores the candidates that it owns: this takes
O(questions x N F / P) time, and O(chunk x block) memory beside the embeddings, for N candidates of F columns on P ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from hpcgnn.base.host import host_values, index_array
from hpcgnn.data.schema import link_rules
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr
from hpcgnn.nn.decoders import Decoder, End
from hpcgnn.plan.plan import offsets_of, ranges
from hpcgnn.train.gather import dealt, id_bounds
from hpcgnn.train.links import Links, Pairs, found_in, positions_of, types_of
from hpcgnn.world import World, raise_on_all_ranks

# Questions of a chunk of all ranks together, and candidates of a block. Blocks are filled up with zeros: products of one shape
# add up in one order, so that nodes with equal embeddings have equal scores.
CHUNK, BLOCK = 256, 4096
_WORST = 10  # the largest K of hits@K


class Completions:
    """For a known end of a triple and its relation, the owned nodes that make known triples with them."""

    def __init__(self, graph: LocalGraph, relation: np.ndarray, known: np.ndarray, node: np.ndarray) -> None:
        """relation, known, node: (m,) relation, position of the known end, and position of the owned node of each triple."""
        keys, self._num_nodes = relation * graph.meta.num_nodes + known, graph.meta.num_nodes
        order = np.argsort(keys, kind="stable")
        self._keys, counts = np.unique(keys, return_counts=True)
        self._offsets, self._nodes = offsets_of(counts), node[order]

    def of(self, relation: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of each question's completions, and their positions."""
        place, is_there = found_in(self._keys, relation * self._num_nodes + known)
        place[~is_there] = 0
        begins = self._offsets[place]
        counts = np.where(is_there, self._offsets[np.minimum(place + 1, self._keys.size)] - begins, 0)
        return counts, self._nodes[ranges(begins, counts)]


@dataclass(frozen=True)
class _Questions:
    """One of the two questions of this rank's links, for true ends of one type of nodes. pairs: of the known ends. facts: (links,
    3) int64 relation, position of the known end, position of the true one. completions: those of this rank's nodes, for the
    questions of all ranks. kind: the type of the true ends, 0 in a graph whose nodes have no types."""

    pairs: Pairs
    facts: np.ndarray
    completions: Completions
    kind: int


class Ranker:
    """Ranks the true ends of ``links`` among nodes of ``graph``, whose edges are the known triples. Making one is collective."""

    def __init__(self, graph: LocalGraph, links: Links) -> None:
        self._graph = graph
        relation, source = types_of(graph), graph.indices.astype(np.int64)
        target = graph.first + graph.destinations
        of_sources = Completions(graph, relation, source, target)
        # A question about sources asks the owners of sources, who do not have the edges: the targets' owners tell them.
        asked = np.isin(
            relation * graph.meta.num_nodes + target, links.triples[1] * graph.meta.num_nodes + links.triples[2]
        )
        edges = np.stack((relation, target, source), axis=1)[asked]
        order, counts = graph.by_owner(edges[:, 2])
        told, _ = graph.world.alltoallv(edges[order], counts)
        source, relation, target = links.triples
        of_source, of_target = graph.meta.edge_type_ends
        self._questions = (
            *_by_kind(links.targets, (relation, target, source), Completions(graph, *told.T), of_source),
            *_by_kind(links.sources, (relation, source, target), of_sources, of_target),
        )
        self._local = np.argsort(positions_of(graph)[: graph.num_nodes])  # by position from the first

    def metrics(
        self, decoder: Decoder, owned: torch.Tensor, extended: torch.Tensor, candidates: np.ndarray | None = None
    ) -> dict[str, float] | None:
        """Filtered ``mrr``, ``hits@1``, ``hits@3`` and ``hits@10``, each the mean over both questions of all ranks' links; None
        without links. The same on every rank. Collective.

        owned: (n, F) embeddings. extended: (n + h, F) embeddings of the extended rows of the links' graph. candidates: distinct
        owned nodes among which to rank; None: all.
        """
        candidates = np.arange(self._graph.num_nodes) if candidates is None else np.sort(candidates)
        kinds = index_array(self._graph.node_type)[candidates]
        found = _sums_of_ranks(*np.zeros((2, 0)))
        for questions in self._questions:
            found += self._sums(questions, decoder, owned, extended, candidates[kinds == questions.kind])
        return _means_of_ranks(found)

    def _sums(
        self, asked: _Questions, decoder: Decoder, owned: torch.Tensor, extended: torch.Tensor, candidates: np.ndarray
    ) -> np.ndarray:
        world, mine, found = self._graph.world, len(asked.facts), _sums_of_ranks(*np.zeros((2, 0)))
        share = max(1, CHUNK // world.size)
        ends = asked.pairs.nodes()[asked.pairs.of_link]
        for first in range(0, int(world.allreduce(np.array([mine]), "max")[0]), share):
            links = slice(first, first + share)
            here = torch.from_numpy(ends[links]).to(extended.device)
            relation = torch.from_numpy(asked.facts[links, 0]).to(extended.device)
            queries = decoder.query(extended[here], relation, asked.pairs.end)
            queries, facts = _of_all_ranks(world, queries, asked.facts[links], share)
            is_asked = facts[:, 0] >= 0
            counts = self._counts(asked, decoder, owned, queries, facts, candidates)
            found += _sums_of_ranks(*world.allreduce(counts, what="the numbers of better candidates")[:, is_asked])
        return found

    def _counts(
        self,
        asked: _Questions,
        decoder: Decoder,
        owned: torch.Tensor,
        queries: torch.Tensor,
        facts: np.ndarray,
        candidates: np.ndarray,
    ) -> np.ndarray:
        """(2, chunk) int64 number of this rank's candidates with a better score, and with the same one. Collective."""
        true_scores = self._true_scores(decoder, owned, queries, facts)[:, None]
        per_question, known = asked.completions.of(facts[:, 0], facts[:, 1])
        question, first_of_rank = np.repeat(np.arange(len(facts)), per_question), self._graph.first
        if not self._graph.meta.num_edge_types:  # a node itself often has the highest score, and is no end of its links
            mine = (facts[:, 1] >= first_of_rank) & (facts[:, 1] < first_of_rank + self._graph.num_nodes)
            question, known = np.append(question, np.flatnonzero(mine)), np.append(known, facts[mine, 1])
        place, is_candidate = found_in(candidates, self._local[known - first_of_rank])
        question, place = question[is_candidate], place[is_candidate]
        counts = torch.zeros(2, len(facts), dtype=torch.int64, device=owned.device)
        for first in range(0, candidates.size, BLOCK):
            block = candidates[first : first + BLOCK]
            scores = decoder.every_score(queries, filled(owned, block))
            counts_here = torch.ones(scores.shape, dtype=torch.bool, device=owned.device)
            counts_here[:, block.size :] = False
            inside = (place >= first) & (place < first + BLOCK)
            counts_here[torch.from_numpy(question[inside]), torch.from_numpy(place[inside] - first)] = False
            counts[0] += ((scores > true_scores) & counts_here).sum(1)
            counts[1] += ((scores == true_scores) & counts_here).sum(1)
        return host_values(counts)

    def _true_scores(
        self, decoder: Decoder, owned: torch.Tensor, queries: torch.Tensor, facts: np.ndarray
    ) -> torch.Tensor:
        """(chunk,) scores of the true ends, from their owners. Collective."""
        place = facts[:, 2] - self._graph.first
        question = np.flatnonzero((facts[:, 0] >= 0) & (place >= 0) & (place < self._graph.num_nodes))
        scores = queries.new_zeros(len(facts))
        if question.size:
            every = decoder.every_score(queries, filled(owned, self._local[place[question]]))
            scores[torch.from_numpy(question)] = every[torch.from_numpy(question), torch.arange(question.size)]
        return self._graph.world.allreduce(scores, what="the scores of true ends")


class FixedCandidates:
    """Ranks the true ends of the links that have candidates in the file of ``graph``, each end that has some. relations: (R,)
    bool, the types of edges of these links; None for all. Making it is collective, and raises HpcgnnError, on every rank, for a
    damaged file.

    Each rank reads some of its share of the links at a time. All ranks see the queries, and a candidate's owner scores it: this
    takes O(questions x K F / P) time, and O(chunk x K) memory beside the embeddings, for K candidates of a question.
    """

    def __init__(self, graph: LocalGraph, relations: np.ndarray | None) -> None:
        world = graph.world
        first, last = id_bounds(world, graph.meta.num_asked_links)[world.rank : world.rank + 2].tolist()
        self._graph, rules = graph, link_rules(graph.meta)
        with graph.reopened() as parts:
            part = world.rank if graph.matches_parts else None  # a whole part has checksums
            on_disk = [name for name in rules if name.endswith("_candidates")]
            self._on_disk = {name: parts.on_disk(name, first, last, part) for name in on_disk}
            self._columns = {name: parts.read(name, first, last, part) for name in rules if name not in on_disk}
            for _ in parts.links(first, last) if graph.meta.node_types else ():
                pass
        self._types = self._columns.get("links/type", np.zeros(last - first, np.int32)).astype(np.int64)
        self._is_asked = np.full(last - first, True) if relations is None else relations[self._types]
        positions, ids = positions_of(graph)[: graph.num_nodes], index_array(graph.original_ids)
        self._bounds, self._positions = dealt(world, ids, graph.meta.num_nodes, positions)  # by original id
        self._local = np.argsort(positions)  # by position from the first

    def metrics(self, its_set: int, decoder: Decoder, owned: torch.Tensor) -> dict[str, float] | None:
        """``mrr``, ``hits@1``, ``hits@3`` and ``hits@10``, each the mean over all questions of the links of a set, a number of
        :data:`hpcgnn.data.schema.LINK_SETS`; None without such links. The same on every rank. Collective. owned: (n, F)
        embeddings."""
        found, world = _sums_of_ranks(*np.zeros((2, 0))), self._graph.world
        rows = np.flatnonzero(self._is_asked & (self._columns["links/set"] == its_set))
        in_order = host_values(owned)[self._local]  # of positions, as other ranks ask for them
        share, most = max(1, CHUNK // world.size), int(world.allreduce(np.array([rows.size]), "max")[0])
        ends: tuple[tuple[End, End], ...] = (("target", "source"), ("source", "target"))
        for known, asked in ends:
            for first in range(0, most if f"links/{asked}_candidates" in self._on_disk else 0, share):
                chunk = rows[first : first + share]
                with raise_on_all_ranks(world, f"read {self._graph.path}"):
                    ids = self._candidates(asked, chunk)
                wanted = np.append(self._columns[f"links/{known}"][chunk], ids)
                wanted = world.rows_of(self._bounds, self._positions, wanted)
                given, candidates = wanted[: chunk.size], wanted[chunk.size :].reshape(ids.shape)
                embedded = torch.from_numpy(world.rows_of(self._graph.node_offsets, in_order, given)).to(owned.device)
                queries = decoder.query(embedded, torch.from_numpy(self._types[chunk]).to(owned.device), known)
                queries, facts = _of_all_ranks(world, queries, np.zeros((chunk.size, 3), np.int64), share)
                found += _sums_of_ranks(*self._counts(decoder, owned, queries, candidates, share)[:, facts[:, 0] >= 0])
        return _means_of_ranks(found)

    def _candidates(self, end: str, rows: np.ndarray) -> np.ndarray:
        """(q, 1 + K) int64 original ids of the true ends of some links, each before its candidates."""
        found = np.empty((rows.size, 1 + getattr(self._graph.meta, f"num_{end}_candidates")), np.int64)
        found[:, 0] = self._columns[f"links/{end}"][rows]
        for ids, row in zip(found, rows.tolist(), strict=True):
            self._on_disk[f"links/{end}_candidates"].read(slice(row, row + 1), ids[1:], slice(0, 0))
        return found

    def _counts(
        self, decoder: Decoder, owned: torch.Tensor, queries: torch.Tensor, candidates: np.ndarray, share: int
    ) -> np.ndarray:
        """(2, P * share) int64 number of candidates with a better score than the true end, and with the same one. candidates: (q,
        1 + K) positions of those of this rank's questions, true ends first. Collective."""
        graph, width = self._graph, candidates.shape[1]
        positions = candidates.ravel()
        entries = graph.world.rank * share * width + np.arange(positions.size)
        order, counts = graph.by_owner(positions)
        told, _ = graph.world.alltoallv(np.stack((entries, positions), axis=1)[order], counts)
        question, column = np.divmod(told[:, 0], width)  # ascending, as the ranks' questions follow each other
        nodes = np.zeros(-(-question.size // BLOCK) * BLOCK, np.int32)  # in whole blocks, as those of Ranker
        nodes[: question.size], scores = self._local[told[:, 1] - graph.first], np.empty(nodes.size)
        for first in range(0, nodes.size, BLOCK):
            block = slice(first, first + BLOCK)
            indptr = np.searchsorted(question[block], np.arange(len(queries) + 1))
            indptr[-1] = BLOCK
            links = Csr(indptr, nodes[block], len(owned), check=False).to(owned.device)
            scores[block] = host_values(decoder(links, queries, owned))
        scores = scores[: question.size]
        is_true, true_scores = column == 0, np.zeros(len(queries))
        true_scores[question[is_true]] = scores[is_true]
        true_scores = graph.world.allreduce(true_scores, what="the scores of true ends")[question]
        found = [question[~is_true & judged] for judged in (scores > true_scores, scores == true_scores)]
        counts = np.stack([np.bincount(each, minlength=len(queries)) for each in found])
        return graph.world.allreduce(counts, what="the numbers of better candidates")


def _by_kind(
    pairs: Pairs, facts: tuple[np.ndarray, ...], completions: Completions, kinds: np.ndarray
) -> Iterator[_Questions]:
    """The questions for each type of nodes that the true ends of relations have, (R,) ``kinds``; the same types on all ranks."""
    for kind in np.unique(kinds).tolist():
        here = kinds[facts[0]] == kind
        asked = replace(pairs, of_link=pairs.of_link[here])
        yield _Questions(asked, np.stack(facts, axis=1)[here], completions, kind)


def filled(rows: torch.Tensor, nodes: np.ndarray) -> torch.Tensor:
    """(BLOCK, F) rows of these nodes, then zeros; more if there are more nodes."""
    block = rows.new_zeros(max(BLOCK, nodes.size), rows.shape[1])
    block[: nodes.size] = rows[torch.from_numpy(nodes).to(rows.device)]
    return block


def _sums_of_ranks(better: np.ndarray, same: np.ndarray) -> np.ndarray:
    """The number of questions, the sum of reciprocal ranks, and the hits of each K from 1 to 10. better, same: (q,) number of
    candidates with a better score than the true end, and with the same one."""
    ranks = 1 + better + same / 2
    return np.array([ranks.size, (1 / ranks).sum(), *((ranks <= k).sum() for k in range(1, _WORST + 1))])


def _means_of_ranks(sums: np.ndarray) -> dict[str, float] | None:
    """``mrr``, ``hits@1``, ``hits@3`` and ``hits@10`` of the sums of :func:`_sums_of_ranks`; None without questions."""
    if not sums[0]:
        return None
    mrr, *hits = (sums[1:] / sums[0]).tolist()
    return {"mrr": mrr} | {f"hits@{k}": hits[k - 1] for k in (1, 3, 10)}


def _of_all_ranks(
    world: World, queries: torch.Tensor, facts: np.ndarray, share: int
) -> tuple[torch.Tensor, np.ndarray]:
    """(P * share, F) queries and (P * share, 3) facts of all ranks, with relation -1 where a rank has fewer. Collective."""
    mine, about = queries.new_zeros(share, queries.shape[1]), np.full((share, 3), -1)
    mine[: len(queries)], about[: len(facts)] = queries, facts
    return world.allgather(mine).flatten(0, 1), world.allgather(about).reshape(-1, 3)
