"""Answers to questions (head, relation, ?): the nodes that a model of links finds most likely, with their names.

All ranks see each question, and each rank scores the nodes that it owns. Of these, its K best travel. Shapes: Q questions, K
answers to each, C questions of a chunk, F columns of embeddings, n owned nodes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.base.host import host_values, index_array
from hpcgnn.data import names
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.decoders import Decoder
from hpcgnn.sources.base import existing_file, reading
from hpcgnn.sources.text import open_text
from hpcgnn.train.gather import id_bounds
from hpcgnn.train.links import found_in, number_below, positions_of, relation_numbers, types_of
from hpcgnn.train.predict import of_links
from hpcgnn.train.ranking import BLOCK, CHUNK, Completions, filled
from hpcgnn.world import raise_on_all_ranks

_NAMES_AT_A_TIME = 1 << 16
# Matches before a name that a spreadsheet runs, also with full-width signs (OWASP, "CSV injection"), which a number is not; and
# before its apostrophes, so that reading finds each name again.
_FORMULA = r"(?='*(?![+-]?[0-9.]+(e[+-]?[0-9]+)?\Z)[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20])"


@dataclass(frozen=True)
class Questions:
    """Q questions, the same on all ranks. texts: the words of each line. heads: (Q,) int64 original ids. relations: (Q,) int64,
    zeros in a graph without types of edges."""

    texts: Sequence[Sequence[str]]
    heads: np.ndarray
    relations: np.ndarray


def read_questions(graph: LocalGraph, path: Path) -> Questions:
    """The questions of a csv file without a header: in each line a head, and in a graph with types of edges also a type. Both are
    names or, where the graph has none, numbers; the apostrophe of :func:`write_answers` is left out. Takes O(Q) memory on each
    rank. Collective. Raises HpcgnnError."""
    columns = 2 if graph.meta.num_edge_types else 1
    with raise_on_all_ranks(graph.world, f"read {path}"):
        with reading(path, "questions"), open_text(existing_file(str(path), "questions")) as lines:
            try:
                read = csv.reader(lines, skipinitialspace=True)
                texts = [[re.sub(rf"\A'{_FORMULA}", "", word.strip()) for word in line] for line in read if line]
            except csv.Error as error:
                raise HpcgnnError(f"{path} cannot be read as questions: {error}") from error
        for line in texts:
            if len(line) != columns:
                what = "a head and a type of edges, with a comma between them" if columns == 2 else "a head"
                raise HpcgnnError(f"{path} must have {what} in each line, not {quoted(','.join(line))}")
        number: dict[str, int] = {}
        for word in {line[1] for line in texts} if columns == 2 else ():
            number[word], *more = relation_numbers(graph, word)
            if more:
                raise HpcgnnError(f"{path}: several types of edges are named {word!r}: write SOURCE__{word}__TARGET")
    heads = _numbers_of_nodes(graph, [line[0] for line in texts], path)
    relations = np.array([number[line[1]] if columns == 2 else 0 for line in texts], np.int64)
    if graph.meta.node_types:
        wrong = graph.meta.node_types_of(heads) != graph.meta.edge_type_ends[0][relations]
        if wrong.any():
            head, kind = texts[int(np.argmax(wrong))]
            raise HpcgnnError(
                f"{path}: edges of type {kind!r} do not begin at nodes of the type of {head!r}", agreed=True
            )
    return Questions(texts, heads, relations)


def _numbers_of_nodes(graph: LocalGraph, words: Sequence[str], path: Path) -> np.ndarray:
    """(Q,) original ids of nodes. Each rank looks through the names of a range of ids, some at a time. Collective."""
    bounds, found = id_bounds(graph.world, graph.meta.num_nodes), np.full(len(words), -1)
    wanted: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        wanted.setdefault(word, []).append(place)
    with raise_on_all_ranks(graph.world, f"read the names in {graph.path}"), PartsFile(graph.path) as parts:
        last = int(bounds[graph.world.rank + 1])
        has_names = bool(names.read(parts, names.NODES, range(1)))
        for first in range(int(bounds[graph.world.rank]), last if has_names else 0, _NAMES_AT_A_TIME):
            for node, name in enumerate(
                names.read(parts, names.NODES, range(first, min(first + _NAMES_AT_A_TIME, last))), first
            ):
                if name in wanted:
                    found[wanted[name]] = node
        if not has_names:
            found[:] = [number_below(word, graph.meta.num_nodes) for word in words]
    found = graph.world.allreduce(found, "max")
    if missing := [word for word, number in zip(words, found, strict=True) if number < 0]:
        known = "names that hpcgnn.names lists" if has_names else f"numbers from 0 to {graph.meta.num_nodes - 1}"
        raise HpcgnnError(f"{path}: {graph.path} has no node {missing[0]!r}: its nodes have {known}", agreed=True)
    return found


class _Candidates:
    """This rank's n owned nodes by ascending original id. ids: (n,) int64. nodes: (n,) int64 local index of each."""

    def __init__(self, graph: LocalGraph, *, new_only: bool) -> None:
        ids, self.first = index_array(graph.original_ids), graph.first
        self.nodes = np.argsort(ids)
        self.ids = ids[self.nodes]
        self.positions = positions_of(graph)[: ids.size][self.nodes]
        self._by_position = np.argsort(self.positions)
        self._kinds, self._kinds_of_targets = graph.meta.node_types_of(self.ids), graph.meta.edge_type_ends[1]
        self._is_typed, self._known = bool(graph.meta.node_types), None
        if new_only:
            sources, targets = graph.indices.astype(np.int64), graph.first + graph.destinations
            self._known = Completions(graph, types_of(graph), sources, targets)

    def known(self, relations: np.ndarray, heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The question and the place among candidates of each edge that a question has. heads: (C,) positions."""
        if self._known is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        counts, positions = self._known.of(relations, heads)
        return np.repeat(np.arange(heads.size), counts), self._by_position[positions - self.first]

    def excluded(self, block: slice, asked: Questions) -> np.ndarray:
        """(C, candidates of the block) bool, true for those that are no answers: the head of the question, and nodes of another
        type than its targets."""
        found = self.ids[block] == asked.heads[:, None]
        if self._is_typed:
            found |= self._kinds[block] != self._kinds_of_targets[asked.relations][:, None]
        return found


@torch.no_grad()
def answer(
    graph: LocalGraph, content: dict[str, Any], asked: Questions, top: int, *, new_only: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The (Q, K) original ids of the best ``top`` = K answers, and their float32 scores, the best first, from the ``content`` of
    a checkpoint; -1 and -inf where there are fewer. Equal scores are in the order of ids. Where nodes have types, answers have
    that of the relation's targets. A head is no answer to its own question. new_only: nor are nodes to which the graph has such
    an edge. The same on all ranks, in O(Q K + C K P) memory beside the embeddings. Collective."""
    top = min(top, graph.meta.num_nodes)
    decoder, embed = of_links(graph, content)
    owned = embed()
    candidates = _Candidates(graph, new_only=new_only)
    all_ids, all_scores = [np.empty((0, top), np.int64)], [np.empty((0, top), np.float32)]
    for first in range(0, asked.heads.size, CHUNK):
        part = slice(first, first + CHUNK)
        chunk = Questions(asked.texts[part], asked.heads[part], asked.relations[part])
        of_ranks = (graph.world.allgather(each) for each in _best(graph, decoder, owned, candidates, chunk, top))
        ids, scores = (each.transpose(1, 0, 2).reshape(chunk.heads.size, -1) for each in of_ranks)
        order = np.lexsort((ids, -scores))[:, :top]
        all_ids.append(np.take_along_axis(ids, order, 1))
        all_scores.append(np.take_along_axis(scores, order, 1))
    found = np.concatenate(all_scores)
    return np.where(np.isfinite(found), np.concatenate(all_ids), -1), found


def _best(
    graph: LocalGraph, decoder: Decoder, owned: torch.Tensor, candidates: _Candidates, asked: Questions, top: int
) -> tuple[np.ndarray, np.ndarray]:
    """(C, K) ids and scores of the best of this rank's nodes. owned: (n, F) embeddings. Collective."""
    count, torch_device = asked.heads.size, owned.device
    place, is_here = found_in(candidates.ids, asked.heads)
    place, here = place[is_here], torch.from_numpy(np.flatnonzero(is_here)).to(torch_device)
    heads, rows = np.full(count, -1), owned.new_zeros(count, owned.shape[1])
    heads[is_here] = candidates.positions[place]
    rows[here] = owned[torch.from_numpy(candidates.nodes[place]).to(torch_device)]
    heads, rows = graph.world.allreduce(heads, "max"), graph.world.allreduce(rows, what="the embeddings of heads")
    queries = decoder.query(rows, torch.from_numpy(asked.relations).to(torch_device), "source")
    question, known = candidates.known(asked.relations, heads)
    scores, ids = torch.full((count, top), -torch.inf), torch.full((count, top), -1)
    for first in range(0, candidates.ids.size, BLOCK):
        block = slice(first, first + BLOCK)
        of_block = decoder.every_score(queries, filled(owned, candidates.nodes[block])).float().cpu()
        of_block = of_block[:, : candidates.ids[block].size]
        of_block[torch.from_numpy(candidates.excluded(block, asked))] = -torch.inf
        inside = (known >= first) & (known < first + BLOCK)
        of_block[question[inside], known[inside] - first] = -torch.inf
        better = (of_block > scores[:, -1:]).any(0)  # equal scores of later ids do not displace earlier ones
        joined = torch.cat((scores, of_block[:, better]), 1)
        numbers = torch.cat((ids, torch.from_numpy(candidates.ids[block])[better].expand(count, -1)), 1)
        order = joined.sort(dim=1, descending=True, stable=True).indices[:, :top]
        scores, ids = joined.gather(1, order), numbers.gather(1, order)
    return index_array(ids), host_values(scores)


def write_answers(
    graph: LocalGraph, asked: Questions, answers: tuple[np.ndarray, np.ndarray], path: Path, *, force: bool = False,
    inputs: Iterable[Path] = (),
) -> None:  # fmt: skip
    """Write a csv file with a line for each answer: the words of the question, the answer's name, or its number where the graph
    has no names, and its score. A name that a spreadsheet would run begins with an apostrophe. Rank 0 writes. Collective."""
    with raise_on_all_ranks(graph.world, f"write {path}"):
        if graph.world.rank:
            return
        there = np.unique(answers[0][answers[0] >= 0])
        with PartsFile(graph.path) as parts:
            told = names.read(parts, names.NODES, there) or list(map(str, there.tolist()))
        as_text = partial(re.compile(rf"\A{_FORMULA}").sub, "'")
        name = dict(zip(there.tolist(), map(as_text, told), strict=True))
        columns = ["head", "relation"][: 1 + (graph.meta.num_edge_types > 0)]
        with (
            whole_file.replacing(path, force=force, inputs=[graph.path, *inputs]) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            lines = csv.writer(file)
            lines.writerow([*columns, "tail", "score"])
            for words, ids, scores in zip(asked.texts, *(each.tolist() for each in answers), strict=True):
                best = zip(ids, scores, strict=True)
                lines.writerows([*map(as_text, words), name[node], f"{score:.6g}"] for node, score in best if node >= 0)
