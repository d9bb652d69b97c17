"""Seconds of messages: an exchange between all ranks, whose bytes are a sparse matrix, and a reduction of all ranks' values.

    rank ─ memory ─ node ─ link ─ switch ═ uplinks ═ upper switches ═ downlinks ═ switch ─ link ─ node ─ memory ─ rank

Between nodes, messages share links fairly (:mod:`hpcgnn.lab.cost_model.fair_shares`). Memory is O(pairs of ranks that send).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.cost_model import fair_shares

MOST_MESSAGES = 1 << 20
# Of sizes that are told apart, in all; fewer a pair of nodes where there are many pairs.
_MOST_FLOWS, _MOST_SIZES, _LEAST_SIZES = 1 << 19, 64, 2
_MOST_CELLS = 1 << 20

_UNITS_BITS_PER_SECOND = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
UNLIMITED = "unlimited"


@dataclass(frozen=True)
class Network:
    """A network: a fat tree with one level of switches above those of the nodes, or one switch for all nodes.

    latency_seconds: of a message between nodes of one switch. switch_latency_seconds: additional latency between two
    switches. node_bandwidth_bytes_per_second: of a node's link, in each direction. memory_latency_seconds: of a message
    within a node. memory_bandwidth_bytes_per_second: of all messages that one rank sends, and of all that it receives.
    message_seconds: time of a rank for each message that it sends or receives. peer_seconds: time of a rank for each rank of
    the job, because ``Ialltoallv`` reads all counts; it posts no empty messages. nodes_per_switch: 0 for one switch.
    uplinks_per_switch: number of uplinks, each as fast as a node's link. is_adaptive: whether messages may take any uplink;
    otherwise they take the one of their receiver's node (d-mod-k). burst_bytes: bytes that pass a node's link at once after a
    pause, as through a token bucket.
    """

    name: str
    latency_seconds: float
    node_bandwidth_bytes_per_second: float
    memory_latency_seconds: float
    memory_bandwidth_bytes_per_second: float
    message_seconds: float = 0.0
    peer_seconds: float = 0.0
    switch_latency_seconds: float = 0.0
    nodes_per_switch: int = 0
    uplinks_per_switch: int = 0
    is_adaptive: bool = True
    burst_bytes: float = 0.0

    @property
    def oversubscription(self) -> float:
        """The bandwidth of the nodes of a switch, divided by that of its uplinks; 0 if there is one switch."""
        return self.nodes_per_switch / self.uplinks_per_switch if self.nodes_per_switch else 0.0


# Of a virtual cluster's links: payload over rate (docs/virtual_cluster.md), and what was measured there of latencies and of links
# without a limit. A fit replaces them.
_PAYLOAD_SHARE = 0.945
_VIRTUAL_LATENCY_SECONDS, _VIRTUAL_MEMORY_LATENCY_SECONDS = 20e-6, 2e-6
_VIRTUAL_MEMORY_BYTES_PER_SECOND, _UNLIMITED_BYTES_PER_SECOND = 3e9, 2e9
_VIRTUAL_MESSAGE_SECONDS, _BUCKET_BYTES = 5e-6, float(512 * 1000)


def by_rate(rate: str) -> Network:
    """The network of a virtual cluster with links of the given speed: ``100mbit``, ``1gbit``, ``unlimited``.

    Raises:
        HpcgnnError: if it is not a speed.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if rate != UNLIMITED and (found is None or float(found[1]) <= 0):
        raise HpcgnnError(f"{rate!r} is not the speed of a network: give one such as 100mbit or 1gbit, or unlimited")
    speed = float(found[1]) * _UNITS_BITS_PER_SECOND[found[2]] / 8 * _PAYLOAD_SHARE if found else math.inf
    return Network(
        name=rate,
        latency_seconds=_VIRTUAL_LATENCY_SECONDS,
        node_bandwidth_bytes_per_second=min(speed, _UNLIMITED_BYTES_PER_SECOND),
        memory_latency_seconds=_VIRTUAL_MEMORY_LATENCY_SECONDS,
        memory_bandwidth_bytes_per_second=_VIRTUAL_MEMORY_BYTES_PER_SECOND,
        message_seconds=_VIRTUAL_MESSAGE_SECONDS,
        burst_bytes=_BUCKET_BYTES if found else 0.0,
    )


def exchange_seconds(
    sent: sparse.csr_array,
    ranks_per_node: int,
    network: Network,
    idle_seconds: float = 0.0,
    most_messages: int = MOST_MESSAGES,
) -> np.ndarray:
    """(P,) float64 seconds until each rank has sent and received all of an ``Ialltoallv`` that all ranks begin at the same
    time.

    sent: (P, P) bytes from rank to rank; the diagonal does not count. Ranks 0 to K - 1 are on node 0, and so on.
    idle_seconds: seconds without messages on the links before, in which token buckets filled. most_messages: above this
    number, messages between the same nodes are merged by size, and memory and links do not delay each other.
    """
    num_ranks = sent.shape[0]
    senders, receivers, sizes = _messages(sent)
    if not len(sizes):
        return np.full(num_ranks, network.peer_seconds * num_ranks)
    saved = min(network.burst_bytes / network.node_bandwidth_bytes_per_second, idle_seconds)
    nodes = senders // ranks_per_node, receivers // ranks_per_node
    if len(sizes) <= most_messages:
        ended = _one_by_one(senders, receivers, sizes, nodes, network, saved)
    else:
        ended, between = np.empty(len(sizes)), nodes[0] != nodes[1]
        from_node, to_node = (each[between] for each in nodes)
        ended[between] = _between_nodes(from_node, to_node, sizes[between], network, saved)
        ended[~between] = _within_nodes(senders[~between], receivers[~between], sizes[~between], num_ranks, network)
    return _of_ranks(senders, receivers, sizes, ended, num_ranks, network)


def _messages(sent: sparse.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sender, receiver and bytes of each message that is not empty and not to the sender itself."""
    senders = np.repeat(np.arange(sent.shape[0], dtype=np.int32), np.diff(sent.indptr))
    is_sent = (sent.data > 0) & (senders != sent.indices)
    if is_sent.all():
        return senders, sent.indices, sent.data.astype(np.float64)
    return senders[is_sent], sent.indices[is_sent], sent.data[is_sent].astype(np.float64)


def _one_by_one(
    senders: np.ndarray,
    receivers: np.ndarray,
    sizes: np.ndarray,
    nodes: tuple[np.ndarray, np.ndarray],
    network: Network,
    saved: float,
) -> np.ndarray:
    """(messages,) seconds until each message has arrived, through the memory of ranks and the links between nodes."""
    num_ranks = int(max(senders.max(), receivers.max())) + 1
    wires, wire_bandwidths = _links(*nodes, int(max(nodes[0].max(), nodes[1].max())) + 1, network)
    wires[nodes[0] == nodes[1]] = len(wire_bandwidths) - 1
    memory = np.stack([senders, receivers.astype(np.int64) + num_ranks], axis=1)
    ways = np.concatenate([memory, wires + 2 * num_ranks], axis=1)
    bandwidths = np.concatenate([np.full(2 * num_ranks, network.memory_bandwidth_bytes_per_second), wire_bandwidths])
    ended = fair_shares.ends(fair_shares.Flows(np.arange(len(sizes)), sizes, np.ones(len(sizes))), ways, bandwidths)
    ended[nodes[0] != nodes[1]] -= saved
    return np.maximum(ended, 0) + _latencies(*nodes, network)


def _latencies(from_node: np.ndarray, to_node: np.ndarray, network: Network) -> np.ndarray:
    """The latency of each message, within a node or between nodes."""
    latencies = np.where(from_node == to_node, network.memory_latency_seconds, network.latency_seconds)
    if network.nodes_per_switch:
        is_far = from_node // network.nodes_per_switch != to_node // network.nodes_per_switch
        latencies[is_far] += network.switch_latency_seconds
    return latencies


def _of_ranks(
    senders: np.ndarray, receivers: np.ndarray, sizes: np.ndarray, ended: np.ndarray, num_ranks: int, network: Network
) -> np.ndarray:
    """(P,) seconds, from those of messages: a rank posts its messages one by one, and all its bytes pass its memory."""
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


def _within_nodes(
    senders: np.ndarray, receivers: np.ndarray, sizes: np.ndarray, num_ranks: int, network: Network
) -> np.ndarray:
    """(messages,) seconds until each message within a node has arrived through its memory."""
    ways = np.stack([senders, receivers + num_ranks], axis=1).astype(np.int64)
    bandwidths = np.full(2 * num_ranks, network.memory_bandwidth_bytes_per_second)
    flows = fair_shares.Flows(np.arange(len(sizes)), sizes, np.ones(len(sizes)))
    return network.memory_latency_seconds + fair_shares.ends(flows, ways, bandwidths)


def _between_nodes(
    from_node: np.ndarray, to_node: np.ndarray, sizes: np.ndarray, network: Network, saved: float
) -> np.ndarray:
    """(messages,) seconds until each message between nodes has arrived through the links of nodes and switches."""
    if not len(sizes):
        return sizes
    num_nodes = int(max(from_node.max(), to_node.max())) + 1
    groups, pairs = _grouped(from_node.astype(np.int64) * num_nodes + to_node, num_nodes * num_nodes)
    kind, flows = _merged(groups, sizes, len(pairs))
    of_pairs = pairs // num_nodes, pairs % num_nodes
    ended = np.maximum(fair_shares.ends(flows, *_links(*of_pairs, num_nodes, network)) - saved, 0)
    return (ended + _latencies(*of_pairs, network)[flows.groups])[kind]


def _grouped(keys: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """For each key its place among the sorted distinct keys, and these keys. keys: int64 below ``most``."""
    if most > max(len(keys), _MOST_CELLS):
        found, groups = np.unique(keys, return_inverse=True)
        return groups, found
    is_there = np.zeros(most, bool)
    is_there[keys] = True
    return (np.cumsum(is_there) - 1)[keys], np.flatnonzero(is_there)


def _merged(groups: np.ndarray, sizes: np.ndarray, num_groups: int) -> tuple[np.ndarray, fair_shares.Flows]:
    """Messages of similar size between the same nodes, merged into flows of their mean size; and the row of each message."""
    largest = np.zeros(num_groups)
    np.maximum.at(largest, groups, sizes)
    classes = int(np.clip(_MOST_FLOWS // num_groups, _LEAST_SIZES, _MOST_SIZES))
    share = sizes / largest[groups]
    kind, names = _grouped(groups * classes + np.ceil(share * classes).astype(np.int64) - 1, num_groups * classes)
    counts = np.bincount(kind).astype(np.float64)
    return kind, fair_shares.Flows(names // classes, np.bincount(kind, sizes) / counts, counts)


def _links(
    from_node: np.ndarray, to_node: np.ndarray, num_nodes: int, network: Network
) -> tuple[np.ndarray, np.ndarray]:
    """The ways of pairs of nodes, and the bandwidths of links: out of and into nodes, up from and down to switches, and a
    last link without a limit."""
    speed = network.node_bandwidth_bytes_per_second
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


def allreduce_seconds(num_bytes: int, ranks: int, ranks_per_node: int, network: Network) -> float:
    """Seconds of a sum of ``num_bytes`` over all ranks, by the fastest of three algorithms, among which libraries choose by
    size.

    Recursive doubling sends all bytes in each of log2(P) rounds. Rabenseifner's algorithm halves the bytes in each of as many
    rounds, and then doubles them again. A ring sends 1/P of the bytes to the next rank 2 (P - 1) times. The time of additions
    is not counted.
    """
    if ranks <= 1:
        return 0.0
    return min(
        _doubling(num_bytes, ranks, ranks_per_node, network),
        _halving(num_bytes, ranks, ranks_per_node, network),
        _ring(num_bytes, ranks, ranks_per_node, network),
    )


def _round(num_bytes: float, distance: int, ranks_per_node: int, network: Network) -> float:
    """Seconds of a round in which each rank sends one message to a rank ``distance`` away, within a node or to another node."""
    overhead = 2 * network.message_seconds
    memory = num_bytes / network.memory_bandwidth_bytes_per_second
    if distance < ranks_per_node:
        return overhead + network.memory_latency_seconds + memory
    wire = num_bytes * ranks_per_node / network.node_bandwidth_bytes_per_second
    latency = network.latency_seconds
    is_far = network.nodes_per_switch and distance >= ranks_per_node * network.nodes_per_switch
    if is_far:
        latency += network.switch_latency_seconds
        wire *= max(1.0, network.oversubscription)
    return overhead + latency + max(wire, memory)


def _doubling(num_bytes: int, ranks: int, ranks_per_node: int, network: Network) -> float:
    rounds = math.ceil(math.log2(ranks))
    return sum(_round(num_bytes, 1 << k, ranks_per_node, network) for k in range(rounds))


def _halving(num_bytes: int, ranks: int, ranks_per_node: int, network: Network) -> float:
    rounds = math.ceil(math.log2(ranks))
    return 2 * sum(_round(num_bytes / (2 << k), 1 << k, ranks_per_node, network) for k in range(rounds))


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
