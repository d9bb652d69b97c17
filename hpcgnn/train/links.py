"""A split of a graph's edges, and the links of its parts. All that is drawn is a function of seeds and original ids.

The edges of a graph with types (relations) are triples of a source, a relation and a target. A *pair* is a relation and a node at
one end of links. Shapes: n owned nodes, h halo nodes, e edges that end at owned nodes, R relations, p pairs.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from hpcgnn.base.arguments import check_type
from hpcgnn.base.errors import WrongValueError
from hpcgnn.base.host import host_values, index_array
from hpcgnn.data import names
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, gather_rows, keyed
from hpcgnn.nn.decoders import Decoder, End
from hpcgnn.nn.halo import edge_ids, edge_matrix
from hpcgnn.plan.relations import RelationRows
from hpcgnn.train.config import LinkConfig
from hpcgnn.world import raise_on_all_ranks

# Stands where a dropout's key has its layer, so that no mask shares its numbers with the split.
_SPLIT = int.from_bytes(b"split", "big")
_TRAIN, _NOWHERE = 2, 3
_SIDES = np.array([_TRAIN, 0, 1, _NOWHERE])  # of hpcgnn.data.schema.LINK_SETS
_TOLD = 20  # the number of types of edges that an error names


@dataclass(frozen=True)
class LinkSplit:
    """A graph whose links are split for link prediction.

    The three graphs have all nodes and some of the edges. Both directions of an edge, and edges of other types between the same
    nodes, are in the same graph. Self-loops are not links: they are all in ``train``, as are edges whose types are not among
    the config's ``target``; but those between the ends of a held-out link are in none, because they would tell of it. A split
    that the graph file has is taken as it is: only its training links are in ``train``.

    Attributes:
        config: the settings of the split.
        graph: this rank's part with all edges.
        train: this rank's part with the edges for training; build the model for it.
        validation: this rank's part with the links held out for validation.
        test: this rank's part with the links held out for testing.
        relations: (R,) bool, the types of edges that are links; None if all are.
    """

    config: LinkConfig
    graph: LocalGraph
    train: LocalGraph
    validation: LocalGraph
    test: LocalGraph
    relations: np.ndarray | None = None


def split_links(graph: LocalGraph, config: LinkConfig | None = None) -> LinkSplit:
    """Hold out links of a graph for validation and testing. Collective.

    A graph that was converted with a split of its links keeps it. Else the set of a link is a function of ``link_seed`` and the
    original ids of its two ends, so the split is the same for any number of ranks, and the shares are met on average.

    Args:
        graph: this rank's part, as ``hpcgnn.load`` returns it.
        config: the shares, the seed and the settings of negative sampling; None: the defaults.

    Returns:
        The split, for ``hpcgnn.Trainer``; build the model for its ``train``. Negatives of training are no edges of ``train``,
        those of evaluations no edges of ``graph``. (Of PyG's ``RandomLinkSplit``, both are no edges of the whole graph.)

    Raises:
        HpcgnnError: on every rank, for settings that are not allowed.
    """
    check_type("graph", graph, LocalGraph)
    config = LinkConfig() if config is None else config
    with raise_on_all_ranks(graph.world, "split the links"):
        check_type("config", config, LinkConfig)
        config.check()
        relations = _relations(graph, config.target)
        if graph.meta.has_link_split and config.link_split != LinkConfig.link_split:
            raise WrongValueError(f"{graph.path} has a split of its links, which is used: leave --link-split out")
    source, target = _original_ends(graph)
    is_link = index_array(source != target)
    if relations is not None:
        is_link &= relations[types_of(graph)]
    if (given := graph.edge_split) is not None:
        side = _SIDES[host_values(given)]
        side = np.where(is_link | (side == _TRAIN), side, _NOWHERE)
    else:
        side = _drawn_sides(graph, config, (source, target), is_link)
    validation, test, train = (graph.with_edges(side == each) for each in range(3))
    return LinkSplit(config, graph, train, validation, test, relations)


def _drawn_sides(
    graph: LocalGraph, config: LinkConfig, ends: tuple[torch.Tensor, torch.Tensor], is_link: np.ndarray
) -> np.ndarray:
    """(e,) the side of each edge by draws: 0 validation, 1 test, _TRAIN or _NOWHERE. ends: (e,) original ids. is_link: (e,) bool.
    Collective."""
    source, target = ends
    pairs = edge_ids(torch.maximum(source, target), torch.minimum(source, target))
    key = keyed.derive_key(config.link_seed, 0, _SPLIT)
    draws = keyed.draws(keyed.row_hashes(key, index_array(pairs)), np.zeros(1, np.uint32))
    held_out = [keyed.threshold(share) for share in np.cumsum(config.link_split)]
    side = np.where(is_link, np.searchsorted(held_out, draws, side="right"), _TRAIN)
    if not config.target:
        return side
    told = ~is_link & _between_ends(graph, index_array(pairs), side != _TRAIN)
    return np.where(told, _NOWHERE, side)


def _relations(graph: LocalGraph, target: str) -> np.ndarray | None:
    """(R,) bool, the types of edges in ``target``; None for all. target: numbers or names, with commas between them; a name with
    a comma is in double quotes. Raises HpcgnnError for types that the graph does not have."""
    if not target:
        return None
    if not graph.meta.num_edge_types:
        raise WrongValueError(f"{graph.path} has no types of edges: leave --target out")
    wanted = np.zeros(graph.meta.num_edge_types, bool)
    for word in next(csv.reader([target], skipinitialspace=True)):
        wanted[relation_numbers(graph, word.strip())] = True
    return wanted


def relation_numbers(graph: LocalGraph, word: str) -> list[int]:
    """The types of edges that ``word`` means: a name, where PyG's ``(source, relation, target)`` is ``source__relation__target``
    or the relation alone, which several types may have; or a number. Raises HpcgnnError if there is none."""
    count, triplets = graph.meta.num_edge_types, graph.meta.edge_type_names
    if triplets:
        known = ["__".join(each) for each in triplets]
    else:
        with PartsFile(graph.path) as parts:
            known = names.read(parts, names.EDGE_TYPES)
    found = [number for number, name in enumerate(known) if name == word]
    found = found or [number for number, (_, relation, _) in enumerate(triplets) if relation == word]
    if not found and (number := number_below(word, count)) >= 0:
        found = [number]
    if not found:
        told = f": {', '.join(known[:_TOLD])}" + f", and {count - _TOLD} more" * (count > _TOLD) if known else ""
        raise WrongValueError(f"{graph.path} has no type of edges {word!r}: it has types 0 to {count - 1}{told}")
    return found


def number_below(word: str, count: int) -> int:
    """The whole number that ``word`` writes, if it is below ``count``; else -1."""
    return int(word) if word.isdecimal() and len(word) < 20 and int(word) < count else -1


def types_of(graph: LocalGraph) -> np.ndarray:
    """(e,) int64 types of the edges; zeros for a graph without types. Collective."""
    types = graph.edge_type
    return np.zeros(graph.indices.size, np.int64) if types is None else host_values(types)


def _between_ends(graph: LocalGraph, pairs: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(e,) bool, the edges between the same nodes as a ``chosen`` (e,) bool edge of any rank, in either direction. pairs: (e,)
    ids of the two nodes. Edges in the other direction belong to the rank of the source, which is told. Collective."""
    order, counts = graph.by_owner(graph.indices[chosen])
    told, _ = graph.world.alltoallv(pairs[chosen][order], counts)
    return np.isin(pairs, np.concatenate((pairs[chosen], told)))


def _original_ends(graph: LocalGraph) -> tuple[torch.Tensor, torch.Tensor]:
    """(e,) int64 original ids of the edges' sources and targets. Collective."""
    original = torch.cat((graph.original_ids, graph.halo_ids))
    source, target = original[graph.local_edge_index()]  # which nobody else may need: 16 bytes an edge
    return source, target


@dataclass(frozen=True)
class Pairs:
    """The p pairs of a relation and a node at one end of links. end: which end. node: (p,) int64 extended rows
    (:mod:`hpcgnn.nn.halo`); None if pair i is node i. relation: (p,) int64. of_link: (links,) int64 pair of each link."""

    end: End
    node: torch.Tensor | None
    relation: torch.Tensor
    of_link: np.ndarray

    def queries(self, decoder: Decoder, rows: torch.Tensor) -> torch.Tensor:
        """(p, F) queries of a decoder, from embeddings of owned nodes, or of extended rows for sources."""
        rows = rows if self.node is None else gather_rows(rows, self.node, decoder.backend)
        return decoder.query(rows, self.relation, self.end)

    def nodes(self) -> np.ndarray:
        """(p,) int64 extended rows of the pairs."""
        return np.arange(self.relation.numel()) if self.node is None else index_array(self.node)


@dataclass(frozen=True)
class Links:
    """The links that end at owned nodes. csr: (p, n + h), from extended rows to the pairs ``targets``, which are owned nodes in a
    graph without types. ids: (links,) int64, made of the original ids of both ends and of the relation. triples: (3, links)
    int64 source, relation and target, nodes by their positions in the file. num_relations: R, 1 without types."""

    csr: Csr
    targets: Pairs
    ids: np.ndarray
    triples: np.ndarray
    num_relations: int

    @cached_property
    def sources(self) -> Pairs:
        """The pairs of the links' sources, made when they are needed."""
        source = index_array(self.csr.indices)
        rows = RelationRows.of(self.triples[1], source, self.csr.num_cols, self.num_relations)
        return _pairs("source", rows, self.csr.indptr.device)


def _pairs(end: End, rows: RelationRows, device: torch.device) -> Pairs:
    node, of_pair = (torch.from_numpy(each).to(device) for each in (rows.node, rows.relation))
    return Pairs(end, node, of_pair, rows.rows.of_edge)


def links_of(graph: LocalGraph, relations: np.ndarray | None = None) -> Links:
    """The edges of ``graph`` but self-loops; with (R,) bool ``relations``, those of them. Collective."""
    (source, target), types, torch_device = _original_ends(graph), types_of(graph), graph.device.torch_device
    is_link = index_array(source != target)
    if relations is not None:
        is_link &= relations[types]
    types, edges = types[is_link], graph.local_edge_index()[:, torch.from_numpy(is_link)]
    sources, ends = map(index_array, edges)
    ids = index_array(edge_ids(target, source))[is_link]
    if count := graph.meta.num_edge_types:
        targets = _pairs("target", RelationRows.of(types, ends, graph.num_nodes, count), torch_device)
        ids = ids ^ keyed.splitmix64(types.astype(np.uint64)).view(np.int64)
    else:
        targets = Pairs("target", None, torch.zeros(graph.num_nodes, dtype=torch.int64, device=torch_device), ends)
    positions, pairs = positions_of(graph), targets.relation.numel()
    edges = torch.from_numpy(np.stack((sources, targets.of_link)))
    csr, in_order = edge_matrix(edges, (pairs, positions.size), check=False)
    order = index_array(in_order)  # numpy takes a tensor of one number for a number
    triples = np.stack((positions[sources], types, positions[ends]))[:, order]
    targets = replace(targets, of_link=targets.of_link[order])
    return Links(csr.to(torch_device), targets, ids[order], triples, count or 1)


def positions_of(graph: LocalGraph) -> np.ndarray:
    """(n + h,) int64 positions in the file of the extended rows."""
    nodes = np.arange(graph.num_nodes) if graph.order.nodes is None else index_array(graph.order.nodes)
    return np.concatenate((graph.first + nodes, graph.halo_positions))


def found_in(values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The place of each of ``wanted`` among ascending ``values``, and whether it is there."""
    place = np.searchsorted(values, wanted)
    is_there = place < values.size
    is_there[is_there] = values[place[is_there]] == wanted[is_there]
    return place, is_there
