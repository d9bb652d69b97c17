"""The cost of a message on the wire: ``gamma + theta * bytes`` seconds, by the class of its link (AdaQP's Eq. 10).

The costs are fitted by least squares to the times of messages of many sizes, which all ranks send at the same time, as in an
exchange. There are two classes of links, within a node and between nodes, and each rank has one partner in each class, so the
fit takes O(P) messages, and no rank needs data of all pairs.
"""

from __future__ import annotations

import json
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
_SIZES = tuple(1 << k for k in range(10, 23, 2))  # bytes
_ROUNDS, _LARGE_ROUNDS = 7, 3  # rounds of small messages, and of large ones (_LARGE bytes and more)
_LARGE = 1 << 18


class LinkCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The costs of messages by class of link, for existing classes, and the content of a file of them."""

    seconds_per_byte: dict[_Class, NotNegative]  # theta
    seconds_per_message: dict[_Class, NotNegative]  # gamma

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


def measure_links(world: World, sizes: tuple[int, ...] = _SIZES) -> LinkCosts | None:
    """Time messages between ranks and fit their costs; None if no costs fit for a class of links. Collective."""
    nodes = world.hosts()
    samples = []
    for partners in rings(nodes).values():
        partner = partners[world.rank]
        for size in sizes:
            rounds = _ROUNDS if size < _LARGE else _LARGE_ROUNDS
            seconds = np.median([_timed(world, partners, size) for _ in range(rounds)])
            if partner != world.rank:
                samples.append((nodes[partner] != nodes[world.rank], size, seconds))  # the index into CLASSES
    return fit(world, np.array(samples, dtype=np.float64).reshape(-1, 3))


def kept_costs(world: World, path: Path, *, refit: bool = False) -> LinkCosts | None:
    """The costs in the file ``path``. With ``refit``, or without a file, they are measured and written to it. Collective."""
    known: LinkCosts | None = None
    with raise_on_all_ranks(world, f"read the costs of links in {path}"):
        if world.rank == 0 and path.exists() and not refit:
            known = LinkCosts.load(path)
    known = world.broadcast(known, what="the costs of links")
    if known is not None:
        return known
    costs = measure_links(world)
    with raise_on_all_ranks(world, f"write the costs of links to {path}"):
        if world.rank == 0 and costs is not None:
            costs.save(path)
    return costs


def fit(world: World, samples: np.ndarray) -> LinkCosts | None:
    """The costs from this rank's (n, 3) samples of class, bytes and seconds; the same on every rank. Collective.

    Absolute errors are minimised, not relative ones: the messages of an exchange are large, and small ones often take less time
    than a line predicts, because networks let bursts pass. Returns None if seconds do not grow with bytes in a class.
    """
    equations = np.zeros((len(CLASSES), 5))
    for kind, sums in enumerate(equations):
        _, size, seconds = samples[samples[:, 0] == kind].T
        sums[:] = size.size, size.sum(), (size**2).sum(), seconds.sum(), (size * seconds).sum()
    # Rank 0's sums for all ranks: MPI does not guarantee the same last bits on all ranks, and these bits decide on None.
    equations = world.broadcast(world.allreduce(equations, what="costs of links"), what="costs of links")
    costs = LinkCosts({}, {})
    for name, (one, size, square, seconds, product) in zip(CLASSES, equations, strict=True):
        if one == 0:
            continue  # no link of this class
        determinant = one * square - size**2
        theta = (one * product - size * seconds) / determinant if determinant > 0 else -1.0
        gamma = (seconds - theta * size) / one
        if gamma < 0:  # among lines without negative costs, one through the origin fits best
            theta, gamma = product / square, 0.0
        if not theta > 0:
            return None
        costs.seconds_per_byte[name], costs.seconds_per_message[name] = float(theta), float(gamma)
    return costs


def rings(nodes: np.ndarray) -> dict[_Class, np.ndarray]:
    """For each existing class of links, the (P,) partner to which each rank sends, which is the rank itself if it is alone.
    nodes: (P,) node of each rank.

    Within a node, each rank sends to the next rank of its node. Between nodes, ranks are ordered by their place within their
    node, and each sends to the next one, which is on another node unless one node has more ranks than all others.
    """
    by_node = np.argsort(nodes, kind="stable")
    lengths = np.unique(nodes, return_counts=True)[1]
    place = np.empty_like(by_node)
    place[by_node] = np.arange(nodes.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found: dict[_Class, np.ndarray] = {}
    if lengths.max() > 1:
        found["node"] = _in_rings(by_node, lengths)
    if lengths.size > 1:
        found["network"] = _in_rings(np.lexsort((nodes, place)), np.array([nodes.size]))
    return found


def _in_rings(order: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(P,) the next of each rank in ``order``, and the first one of its run for the last one of each run of ``lengths``."""
    following, ends = np.arange(1, order.size + 1), np.cumsum(lengths)
    following[ends - 1] = ends - lengths
    partners = np.empty_like(order)
    partners[order] = order[following]
    return partners


def _timed(world: World, partners: np.ndarray, size: int) -> float:
    """Seconds of a message of ``size`` bytes from each rank to its partner. Collective."""
    to, others = partners[world.rank], np.arange(world.size) != world.rank
    sent, received = ((others & at).astype(np.int64) for at in (np.arange(world.size) == to, partners == world.rank))
    rows = torch.zeros(2, size, dtype=torch.uint8)
    mine, theirs = rows[: sent.sum()], rows[1 : 1 + received.sum()]
    segments = Segments(Buffer.of(mine), sent), Segments(Buffer.of(theirs), received)
    world.allreduce(np.zeros(1))  # all start at once
    pending = world.start_alltoallv(*segments, "a timed message")
    world.wait(pending)
    return pending.seconds
