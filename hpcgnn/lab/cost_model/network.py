"""Seconds of messages: an exchange between all ranks, whose bytes are a sparse matrix, and a reduction of all ranks' values.

    rank ─ memory ─ node ─ link ─ switch ═ uplinks ═ upper switches ═ downlinks ═ switch ─ link ─ node ─ memory ─ rank

Between nodes, messages share links max-min fairly: each gets an equal share of the fullest link on its way. Memory is O(pairs of
ranks that send).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from scipy import sparse

from hpcgnn.base.compiled import njit
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import MOST_FLOAT, Count, NotNegative

MOST_MESSAGES = 1 << 20
UNLIMITED = "unlimited"
_UNITS_BITS_PER_SECOND = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# Of sizes that are told apart, in all; fewer a pair of nodes where there are many pairs.
_MOST_FLOWS, _MOST_SIZES, _LEAST_SIZES = 1 << 19, 64, 2
_MOST_CELLS = 1 << 20
# A time step ends when so much of what moves has come to its end; what that leaves free is shared anew in the next one only.
# Steps are coarser where flows are many and each matters less.
_LEAST_SHARE, _MOST_SHARE, _FLOWS_OF_MOST = 0.02, 0.1, 200_000
# Links that are as full as this, compared with others, count as equally full. Rates stay below what links take.
_ALIKE, _TIE = 1.02, 1 + 1e-9
Positive = Annotated[float, Meta(gt=0, le=MOST_FLOAT)]


@dataclass(frozen=True)
class Network:
    """A network: a fat tree with one level of switches above those of the nodes, or one switch for all nodes.

    latency_seconds: of a message between nodes of one switch; switch_latency_seconds: additional, between two switches.
    node_bandwidth_bytes_per_second: of a node's link, in each direction. memory_bandwidth_bytes_per_second: of all messages that
    one rank sends, and of all that it receives. message_seconds, peer_seconds: time of a rank for each message, and for each rank
    of the job, because ``Ialltoallv`` reads all counts. nodes_per_switch: 0 for one switch. uplinks_per_switch: each as fast as a
    node's link. is_adaptive: whether messages may take any uplink; otherwise they take that of their receiver's node (d-mod-k).
    burst_bytes: bytes that pass a node's link at once after a pause, which :mod:`hpcgnn.lab.cost_model.equations` counts.
    """

    name: str
    latency_seconds: NotNegative
    node_bandwidth_bytes_per_second: Positive
    memory_latency_seconds: NotNegative
    memory_bandwidth_bytes_per_second: Positive
    message_seconds: NotNegative = 0.0
    peer_seconds: NotNegative = 0.0
    switch_latency_seconds: NotNegative = 0.0
    nodes_per_switch: Count = 0
    uplinks_per_switch: Count = 0
    is_adaptive: bool = True
    burst_bytes: NotNegative = 0.0


def bits_per_second(rate: str) -> float:
    """The speed of a virtual cluster's links, such as ``100mbit``; infinite if ``unlimited``. Raises HpcgnnError for others."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if rate != UNLIMITED and (found is None or float(found[1]) <= 0):
        raise HpcgnnError(f"{rate!r} is not the speed of a network: give one such as 100mbit or 1gbit, or unlimited")
    return float(found[1]) * _UNITS_BITS_PER_SECOND[found[2]] if found else math.inf


def exchange_seconds(
    sent: sparse.csr_array, ranks_per_node: int, network: Network, most_messages: int = MOST_MESSAGES
) -> np.ndarray:
    """(P,) float64 seconds until each rank has sent and received all of an ``Ialltoallv`` that all ranks begin together.

    sent: (P, P) bytes from rank to rank; the diagonal does not count. Ranks 0 to K - 1 are on node 0, and so on.
    most_messages: above this number, messages between the same nodes are merged by size, and memory and links do not delay each
    other.
    """
    num_ranks = sent.shape[0]
    senders = np.repeat(np.arange(num_ranks, dtype=np.int32), np.diff(sent.indptr))
    is_sent = (sent.data > 0) & (senders != sent.indices)
    senders, receivers, sizes = senders[is_sent], sent.indices[is_sent], sent.data[is_sent].astype(np.float64)
    if not len(sizes):
        return np.full(num_ranks, network.peer_seconds * num_ranks)
    nodes = senders // ranks_per_node, receivers // ranks_per_node
    memory = np.stack([senders, receivers + num_ranks], axis=1).astype(np.int64)
    bandwidths = np.full(2 * num_ranks, network.memory_bandwidth_bytes_per_second)
    within = nodes[0] == nodes[1]
    if len(sizes) <= most_messages:
        wires, wire_bandwidths = _links(*nodes, network)
        wires[within] = len(wire_bandwidths) - 1
        ways = np.concatenate([memory, wires + 2 * num_ranks], axis=1)
        ended = _ends(sizes, ways, np.concatenate([bandwidths, wire_bandwidths])) + _latencies(*nodes, network)
    else:
        ended = np.empty(len(sizes))
        ended[~within] = _between_nodes(nodes[0][~within], nodes[1][~within], sizes[~within], network)
        ended[within] = network.memory_latency_seconds + _ends(sizes[within], memory[within], bandwidths)
    posted, taken = (np.bincount(ranks, minlength=num_ranks) for ranks in (senders, receivers))
    looked = network.peer_seconds * num_ranks
    posting = looked + posted * network.message_seconds
    bytes_each = (np.bincount(ranks, sizes, minlength=num_ranks) for ranks in (senders, receivers))
    copying = np.maximum(*bytes_each) / network.memory_bandwidth_bytes_per_second
    seconds = np.maximum(posting + taken * network.message_seconds, copying)
    np.maximum.at(seconds, senders, looked + network.message_seconds + ended)
    # a message is at most as late as its sender is with posting
    np.maximum.at(seconds, receivers, np.maximum(posting[senders], looked + ended) + network.message_seconds)
    return seconds


def _latencies(from_node: np.ndarray, to_node: np.ndarray, network: Network) -> np.ndarray:
    """The latency of each message, within a node or between nodes."""
    latencies = np.where(from_node == to_node, network.memory_latency_seconds, network.latency_seconds)
    if network.nodes_per_switch:
        is_far = from_node // network.nodes_per_switch != to_node // network.nodes_per_switch
        latencies[is_far] += network.switch_latency_seconds
    return latencies


def _between_nodes(from_node: np.ndarray, to_node: np.ndarray, sizes: np.ndarray, network: Network) -> np.ndarray:
    """(messages,) seconds until each message between nodes has arrived, with messages of similar size between the same nodes
    merged into flows of their mean size."""
    if not len(sizes):
        return sizes
    num_nodes = int(max(from_node.max(), to_node.max())) + 1
    groups, pairs = _grouped(from_node.astype(np.int64) * num_nodes + to_node, num_nodes * num_nodes)
    largest = np.zeros(len(pairs))
    np.maximum.at(largest, groups, sizes)
    classes = int(np.clip(_MOST_FLOWS // len(pairs), _LEAST_SIZES, _MOST_SIZES))
    share = sizes / largest[groups]
    kind, names = _grouped(groups * classes + np.ceil(share * classes).astype(np.int64) - 1, len(pairs) * classes)
    counts, of_pairs = np.bincount(kind).astype(np.float64), divmod(pairs, num_nodes)
    ended = _ends(np.bincount(kind, sizes) / counts, *_links(*of_pairs, network), names // classes, counts)
    return (ended + _latencies(*of_pairs, network)[names // classes])[kind]


def _grouped(keys: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """For each key its place among the sorted distinct keys, and these keys. keys: int64 below ``most``."""
    if most > max(len(keys), _MOST_CELLS):
        found, groups = np.unique(keys, return_inverse=True)
        return groups, found
    is_there = np.zeros(most, bool)
    is_there[keys] = True
    return (np.cumsum(is_there) - 1)[keys], np.flatnonzero(is_there)


def _links(from_node: np.ndarray, to_node: np.ndarray, network: Network) -> tuple[np.ndarray, np.ndarray]:
    """The ways of pairs of nodes, and the bandwidths of links: out of and into nodes, up from and down to switches, and a
    last link without a limit."""
    speed, num_nodes = network.node_bandwidth_bytes_per_second, int(max(from_node.max(), to_node.max())) + 1
    ends = np.stack([from_node.astype(np.int64), to_node + num_nodes])
    if not network.nodes_per_switch:
        return np.ascontiguousarray(ends.T), np.append(np.full(2 * num_nodes, speed), np.inf)
    above, below = from_node // network.nodes_per_switch, to_node // network.nodes_per_switch
    lanes = 1 if network.is_adaptive else network.uplinks_per_switch
    num_upper = lanes * (int(max(above.max(), below.max())) + 1)
    up = 2 * num_nodes + above * lanes + to_node % lanes
    down = 2 * num_nodes + num_upper + below * lanes + to_node % lanes
    free = 2 * num_nodes + 2 * num_upper  # a way within a switch ends there
    upper = np.where(above == below, free, np.stack([up, down]))
    bandwidths = np.full(free + 1, speed)
    bandwidths[2 * num_nodes : free] = speed * network.uplinks_per_switch / lanes
    bandwidths[free] = np.inf
    return np.ascontiguousarray(np.concatenate([ends, upper]).T), bandwidths


def _ends(
    sizes: np.ndarray, ways: np.ndarray, bandwidths: np.ndarray, groups: np.ndarray | None = None, counts: Any = None
) -> np.ndarray:
    """(flows,) float64 seconds until each flow has ended, of flows that all begin at 0.

    sizes: (flows,) float64 bytes, above 0. ways, bandwidths: as for :func:`_fair_rates`. groups: (flows,) int64 place of each
    flow's way; flows with the same way have the same rate, so the state of a group is the bytes that each of its flows has moved.
    counts: (flows,) float64 number of flows for which a row stands.
    """
    groups = np.arange(len(sizes)) if groups is None else groups
    counts = np.ones(len(sizes)) if counts is None else counts
    ended, moved, now = np.zeros(len(sizes)), np.zeros(len(ways)), 0.0
    active = np.arange(len(sizes))
    while len(active):
        of_active, names = _grouped(groups[active], len(ways))
        some = counts[active]
        rate = _fair_rates(ways[names], np.bincount(of_active, some), bandwidths)
        left = (sizes[active] - moved[names][of_active]) / rate[of_active]
        step = _step(left, rate[of_active] * some)
        over = left <= step
        ended[active[over]] = now + np.maximum(left[over], 0)
        moved[names] += rate * step
        now += step
        active = active[~over]
    return ended


def _step(left: np.ndarray, moving: np.ndarray) -> float:
    """Seconds until a certain share of the moving flows, and at least the first one, has ended."""
    order = np.argsort(left, kind="stable")
    gone = np.cumsum(moving[order])
    share = min(max(_LEAST_SHARE, _MOST_SHARE * len(left) / _FLOWS_OF_MOST), _MOST_SHARE)
    which = int(np.searchsorted(gone, share * gone[-1]))
    return float(left[order[min(which, len(order) - 1)]]) * _TIE


@njit(cache=True, nogil=True)
def _fair_rates(
    ways: np.ndarray, counts: np.ndarray, bandwidths: np.ndarray
) -> np.ndarray:  # pragma: no cover - compiled
    """(groups,) float64 bytes/s of each flow of a group, max-min fair.

    ways: (groups, links of a way) int64; a link with infinite bandwidth fills a shorter way. counts: (groups,) float64 flows.
    bandwidths: (links,) float64 bytes/s; each group needs one that is finite.
    """
    groups, length = ways.shape
    rates, best = np.zeros(groups), np.zeros(groups)
    left, load = bandwidths.copy(), np.zeros(len(bandwidths))
    waiting, num_waiting = np.arange(groups), groups
    for g in range(groups):
        for k in range(length):
            load[ways[g, k]] += counts[g]
    while num_waiting:
        least = np.full(len(left), np.inf)
        share = np.full(len(left), np.inf)
        for link in range(len(left)):
            if load[link] > 0.5:  # of whole flows: what rounding leaves of a load is none
                share[link] = max(left[link], 0.0) / load[link]
        for w in range(num_waiting):
            g = waiting[w]
            best[g] = np.inf
            for k in range(length):
                best[g] = min(best[g], share[ways[g, k]])
            for k in range(length):
                least[ways[g, k]] = min(least[ways[g, k]], best[g])
        kept = 0
        for w in range(num_waiting):
            g, is_held = waiting[w], False
            for k in range(length):
                link = ways[g, k]
                # a link is full where none of its flows is held up elsewhere: those of its flows have their rates
                is_held |= share[link] < np.inf and least[link] * _ALIKE >= share[link]
            if is_held:
                rates[g] = best[g]
                for k in range(length):
                    left[ways[g, k]] -= counts[g] * best[g]
                    load[ways[g, k]] -= counts[g]
            else:
                waiting[kept] = g
                kept += 1
        num_waiting = kept
    return rates


def allreduce_seconds(num_bytes: int, ranks: int, ranks_per_node: int, network: Network) -> float:
    """Seconds of a sum of ``num_bytes`` over all ranks, by the fastest of three algorithms, among which libraries choose by size.

    Recursive doubling sends all bytes in each of log2(P) rounds. Rabenseifner's algorithm halves the bytes in each of as many
    rounds, and then doubles them again. A ring sends 1/P of the bytes to the next rank 2 (P - 1) times. The time of additions
    is not counted.
    """
    if ranks <= 1:
        return 0.0
    rounds = range(math.ceil(math.log2(ranks)))
    doubling = sum(_round(num_bytes, 1 << k, ranks_per_node, network) for k in rounds)
    halving = 2 * sum(_round(num_bytes / (2 << k), 1 << k, ranks_per_node, network) for k in rounds)
    return min(doubling, halving, _ring(num_bytes, ranks, ranks_per_node, network))


def _round(num_bytes: float, distance: int, ranks_per_node: int, network: Network) -> float:
    """Seconds of a round in which each rank sends one message to a rank ``distance`` away, within a node or to another node."""
    overhead = 2 * network.message_seconds
    memory = num_bytes / network.memory_bandwidth_bytes_per_second
    if distance < ranks_per_node:
        return overhead + network.memory_latency_seconds + memory
    wire = num_bytes * ranks_per_node / network.node_bandwidth_bytes_per_second
    latency = network.latency_seconds
    if network.nodes_per_switch and distance >= ranks_per_node * network.nodes_per_switch:
        latency += network.switch_latency_seconds
        wire *= max(1.0, network.nodes_per_switch / network.uplinks_per_switch)
    return overhead + latency + max(wire, memory)


def _ring(num_bytes: int, ranks: int, ranks_per_node: int, network: Network) -> float:
    piece = num_bytes / ranks
    within = _round(piece, 1, max(ranks_per_node, 2), network)
    if ranks <= ranks_per_node:
        return 2 * (ranks - 1) * within
    # one rank of a node sends to the next node, and all wait for it
    far = network.switch_latency_seconds if network.nodes_per_switch else 0.0
    wire = piece / min(network.node_bandwidth_bytes_per_second, network.memory_bandwidth_bytes_per_second)
    across = 2 * network.message_seconds + network.latency_seconds + far + wire
    return 2 * (ranks - 1) * max(across, within)
