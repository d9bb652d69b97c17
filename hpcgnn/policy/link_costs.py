"""The cost of a message on the wire: ``gamma + theta * bytes`` seconds (AdaQP's Eq. 10), by the class of its link, and by rank.

A small and a large message are timed several times between pairs of ranks, in both directions at once, as in an exchange. The
medians give gamma and theta in any case: a busy host makes them less exact, and nothing makes them fail. There are two classes of
links, within a node and between nodes. Between nodes, each rank has up to three partners, and takes the theta of the middle one,
or of the faster one of two: so a host with a slow link is told from its neighbours by O(P) messages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch

from hpcgnn.base import typed, whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import NotNegative
from hpcgnn.world import Buffer, Segments, World, raise_on_all_ranks

_Class = Literal["node", "network"]
CLASSES: tuple[_Class, ...] = ("node", "network")
SMALL, LEAST_LARGE, MOST_LARGE = 1 << 10, 1 << 14, 1 << 20  # bytes of the two messages
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 9
_PARTNERS = {"node": 1, "network": 3}  # of each rank, by class
_LEAST_THETA = 1e-12  # seconds per byte, below any link


class LinkCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The costs of messages by class of link, for existing classes, and the content of a file of them."""

    seconds_per_byte: dict[_Class, NotNegative]  # theta
    seconds_per_message: dict[_Class, NotNegative]  # gamma
    # (P,) theta of what each rank sends to other nodes, and of what it receives from them, if they were measured
    seconds_per_byte_sent: list[NotNegative] = []
    seconds_per_byte_received: list[NotNegative] = []

    def to_ranks(self, nodes: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """(P,) seconds per byte and (P,) seconds per message from ``rank`` to each rank; 0 to itself. The slower end of a link
        between nodes decides. nodes: (P,) node of each rank."""
        kinds = [CLASSES[int(node != nodes[rank])] for node in nodes]
        theta, gamma = (
            np.array([0.0 if other == rank else costs.get(kind, 0.0) for other, kind in enumerate(kinds)])
            for costs in (self.seconds_per_byte, self.seconds_per_message)
        )
        if len(self.seconds_per_byte_sent) == len(self.seconds_per_byte_received) == nodes.size:
            ends = np.maximum(self.seconds_per_byte_sent[rank], self.seconds_per_byte_received)
            theta = np.where(nodes != nodes[rank], ends, theta)
        return theta, gamma

    def save(self, path: Path) -> None:
        """Write the costs to a JSON file. Only one rank calls this."""
        with whole_file.replacing(path) as temporary:
            temporary.write_text(json.dumps(msgspec.to_builtins(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> LinkCosts:
        """The costs in a file of :meth:`save`. Raises HpcgnnError if it holds none."""
        try:
            found = typed.read_json(path, cls)
            if found.seconds_per_byte.keys() != found.seconds_per_message.keys() or not found.seconds_per_byte:
                raise HpcgnnError(
                    f"{path}: seconds_per_byte and seconds_per_message must have the same classes of links"
                )
        except HpcgnnError as error:
            raise HpcgnnError(
                f"{error}: the file holds no costs of links; give --refit-links to measure them and overwrite it"
            ) from error
        return found


def read_costs(world: World, path: Path) -> LinkCosts | None:
    """The costs in the file ``path``; None if there is no file. Rank 0 reads for all. Collective."""
    known: LinkCosts | None = None
    with raise_on_all_ranks(world, f"read the costs of links in {path}"):
        if world.rank == 0 and path.exists():
            known = LinkCosts.load(path)
    return world.broadcast(known, what="the costs of links")


def write_costs(world: World, path: Path, costs: LinkCosts) -> None:
    """Write the costs to the file ``path``, on rank 0. Collective."""
    with raise_on_all_ranks(world, f"write the costs of links to {path}"):
        if world.rank == 0 and costs.seconds_per_byte:
            costs.save(path)


# -- measurement -------------------------------------------------------------------------------------------------------


def measure_links(world: World, size: int = 1 << 18, seconds: float = np.inf) -> LinkCosts:
    """The costs of messages, from times of messages of 1 KiB and of ``size`` bytes; the same on every rank. Collective.

    Large messages follow each other, because a network may let bytes pass at once after a pause: the medians are of later ones.

    seconds: time after which no other round of messages begins; five rounds of each size are made in any case.
    """
    nodes = world.hosts()
    pairs = pairings(nodes)
    medians = np.stack([_medians(world, pairs, each, seconds / 2) for each in (SMALL, size)], axis=1)
    return costs_of(pairs, world.allgather(medians), size)


def _medians(world: World, pairs: list[tuple[_Class, np.ndarray]], size: int, seconds: float) -> np.ndarray:
    """(n,) medians of the seconds of messages of ``size`` bytes, over rounds that begin within ``seconds``. Collective."""
    rounds: list[list[float]] = []
    started, spent = time.perf_counter(), 0.0
    while len(rounds) < _LEAST_ROUNDS or (spent < seconds and len(rounds) < _MOST_ROUNDS):
        rounds.append([_timed(world, partners, size) for _, partners in pairs])
        spent = float(world.allreduce(np.array([time.perf_counter() - started]), "max", "costs of links")[0])
    return np.median(rounds, axis=0)


def costs_of(pairs: list[tuple[_Class, np.ndarray]], seconds: np.ndarray, size: int) -> LinkCosts:
    """The costs by (P, n, 2) seconds that each rank waited for the message of its partner in each of the n ``pairs``: for a small
    one of 1 KiB, and for one of ``size`` bytes."""
    small, large = seconds[..., 0], seconds[..., 1]
    theta = (large - small) / (size - SMALL)
    theta = np.maximum(np.where(theta > 0, theta, large / size), _LEAST_THETA)
    ranks, costs = np.arange(seconds.shape[0]), LinkCosts({}, {})
    met = np.stack([partners != ranks for _, partners in pairs], axis=1) if pairs else np.zeros((ranks.size, 0), bool)
    for kind in CLASSES:
        of_kind = met & np.array([each == kind for each, _ in pairs], bool)
        if of_kind.any():
            costs.seconds_per_byte[kind] = float(np.median(theta[of_kind]))
            costs.seconds_per_message[kind] = float(np.median(np.maximum(small - SMALL * theta, 0)[of_kind]))
    if "network" not in costs.seconds_per_byte:
        return costs
    took = [
        (np.where(met[:, number], theta[:, number], np.inf), partners)
        for number, (kind, partners) in enumerate(pairs)
        if kind == "network"
    ]
    received, sent = np.stack([each for each, _ in took]), np.stack([each[partners] for each, partners in took])
    typical = costs.seconds_per_byte["network"]
    ends = [np.where(np.isfinite(each), each, typical).tolist() for each in map(_middle, (sent, received))]
    return LinkCosts(costs.seconds_per_byte, costs.seconds_per_message, *ends)


def _middle(seconds: np.ndarray) -> np.ndarray:
    """(P,) the middle one, or the smaller one of both in the middle, of the finite values in each column of (n, P)."""
    counts = np.isfinite(seconds).sum(axis=0)
    return np.sort(seconds, axis=0)[np.maximum(counts - 1, 0) // 2, np.arange(seconds.shape[1])]


def median_costs(recent: Sequence[LinkCosts]) -> LinkCosts:
    """The medians of costs that were measured one after the other; not empty. Those of other links than the last are left out."""
    last = recent[-1]

    def of_class(name: str) -> dict[_Class, float]:
        tables = [getattr(each, name) for each in recent]
        return {kind: float(np.median([table[kind] for table in tables if kind in table])) for kind in tables[-1]}

    def of_ranks(name: str) -> list[float]:
        alike = [mine for each in recent if len(mine := getattr(each, name)) == len(getattr(last, name))]
        return np.median(alike, axis=0).tolist()

    lists = [of_ranks(f"seconds_per_byte_{way}") for way in ("sent", "received")]
    return LinkCosts(of_class("seconds_per_byte"), of_class("seconds_per_message"), *lists)


def pairings(nodes: np.ndarray) -> list[tuple[_Class, np.ndarray]]:
    """Classes of links, each with the (P,) partner of each rank, which is the rank itself if it has none.

    nodes: (P,) node of each rank.

    Within a node, ranks meet each other, one partner each. Between nodes, nodes meet each other in up to three turns, and the
    ranks of two nodes that meet are partners by their place within their node.
    """
    by_node = np.argsort(nodes, kind="stable")
    lengths = np.unique(nodes, return_counts=True)[1]
    starts = np.cumsum(lengths) - lengths
    found: list[tuple[_Class, np.ndarray]] = []
    for turn in range(_PARTNERS["node"] if lengths.max() > 1 else 0):
        partners = np.arange(nodes.size)
        for start, length in zip(starts, lengths, strict=True):
            own = by_node[start : start + length]
            partners[own] = own[_met(length, turn)]
        found.append(("node", partners))
    for turn in range(min(_PARTNERS["network"], _turns(lengths.size))):
        partners = np.arange(nodes.size)
        for one, other in enumerate(_met(lengths.size, turn)):
            both = min(lengths[one], lengths[other]) if one != other else 0
            partners[by_node[starts[one] :][:both]] = by_node[starts[other] :][:both]
        found.append(("network", partners))
    return found


def _turns(size: int) -> int:
    """The number of turns after which each of ``size`` has met each other one."""
    return 0 if size < 2 else size - 1 + size % 2


def _met(size: int, turn: int) -> np.ndarray:
    """(size,) the one that each meets in this turn, by the circle method of tournaments: itself if it has to pause."""
    circle = max(_turns(size), 1)
    others = (turn - np.arange(size)) % circle
    if size > circle:  # an even number: the last one stands in the middle, and meets the one that has no other
        others[-1] = next(one for one in range(circle) if (2 * one - turn) % circle == 0)
        others[others[-1]] = size - 1
    return others


def _timed(world: World, partners: np.ndarray, size: int) -> float:
    """Seconds until this rank and its partner have swapped a message of ``size`` bytes. Collective."""
    to, ranks = partners[world.rank], np.arange(world.size)
    counts = ((ranks == to) & (ranks != world.rank)).astype(np.int64)
    rows = torch.zeros(2, size, dtype=torch.uint8)
    mine, theirs = rows[: counts.sum()], rows[1 : 1 + counts.sum()]
    segments = Segments(Buffer.of(mine), counts), Segments(Buffer.of(theirs), counts)
    world.allreduce(np.zeros(1))  # all start at once
    pending = world.start_alltoallv(*segments, "a timed message")
    world.wait(pending)
    return pending.seconds
