"""A run as the equations need it: its settings, the machine that its ranks share, and the network between machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.cost_model.constants import Values
from hpcgnn.lab.cost_model.equations import Machine, Messages
from hpcgnn.lab.cost_model.network import (
    MOST_MESSAGES,
    UNLIMITED,
    Network,
    allreduce_seconds,
    by_rate,
    exchange_seconds,
)
from hpcgnn.lab.cost_model.rows import Parts
from hpcgnn.lab.cost_model.steps import Shape, steps_of
from hpcgnn.lab.cost_model.wire import Wire
from hpcgnn.lab.cost_model.workload import Exchange, Workload, workload_of
from hpcgnn.nn.config import MODELS, ModelConfig
from hpcgnn.policy.config import FIXED, OFF
from hpcgnn.train.run_config import RunConfig, settings_by_name
from hpcgnn.world.placement import Placement

PIPELINE = "pipeline"
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_ARITHMETICS = {"bf16": "bf16", "bf16-emulated": "bf16", "int8": "int8", "int8-always": "int8"}


@dataclass(frozen=True)
class Setup:
    """The setup of a run. ranks_per_node: number of ranks that share memory. rate: speed of a virtual cluster's links, or
    none. network: a real network, whose nodes are machines of their own; None: all ranks share one machine. arithmetic: that
    of dense products."""

    run: RunConfig
    ranks: int
    threads: int = 1
    ranks_per_node: int = 1
    cores: int = 1
    rate: str = ""
    network: Network | None = None
    arithmetic: str = "float32"

    @property
    def model(self) -> ModelConfig:
        """The model's settings."""
        assert isinstance(self.run.model, ModelConfig)
        return self.run.model

    @property
    def strategy(self) -> str:
        """The strategy of the plan that the run uses; attention over the halo uses a plan of its own."""
        return self.run.strategy if MODELS[self.model.model].uses_strategy(self.model) else "post"

    @property
    def machine(self) -> Machine:
        """The machine that ranks share."""
        return Machine(self.cores, self.ranks if self.network is None else self.ranks_per_node, self.threads)

    @property
    def is_pipelined(self) -> bool:
        """Return whether rows of the previous epoch are used."""
        return self.run.policy.staleness == PIPELINE

    @property
    def placement(self) -> Placement | None:
        """The placement of ranks that share the rows for other nodes."""
        placement = Placement.in_blocks(self.ranks, self.ranks_per_node)
        return placement if placement.is_shared and self.run.messages.node_aware != "off" else None

    def check(self) -> None:
        """Raise HpcgnnError for settings that the equations do not cover."""
        policy = self.run.policy
        if policy.bits != FIXED:
            raise HpcgnnError(
                f"the bit-widths of --bits {policy.bits} are decided during training: predict --bits 2, "
                "4 and 8, between which they lie"
            )
        if policy.staleness not in (OFF, PIPELINE):
            raise HpcgnnError(f"the cost model covers --staleness off and pipeline, not {policy.staleness}")
        if self.run.task != "node" or self.run.messages.message_coding != "plain":
            raise HpcgnnError("the cost model covers only --task node with --message-coding plain")

    def workload(self, parts: Parts, wire: Wire | None = None) -> Workload:
        """The workload on these parts, which belong to :attr:`strategy` and :attr:`placement`. wire: the messages, if not all
        rows have the run's bit-width."""
        if parts.num_ranks != self.ranks:
            raise HpcgnnError(
                f"{parts.name} has {parts.num_ranks} parts, not {self.ranks}: partition the graph with --parts {self.ranks}"
            )
        shape = Shape(
            parts.in_width,
            parts.out_width,
            parts.is_sparse,
            learns_input=self.run.train.labels.rate > 0,
            keeps_input=self.run.cache_input_aggregation,
        )
        kind = MODELS[self.model.model]
        steps = steps_of(self.model, shape)
        loops = kind.aggregation == "gcn" and not steps.is_halo
        return workload_of(parts, steps, self.run.messages.bits, compute=self.arithmetic, self_loops=loops, wire=wire)


def setup_of(
    configuration: Mapping[str, Any], *, cores: int, compute: str = "", network: Network | None = None
) -> Setup:
    """The setup from names and values as records and flags have them; other settings have the defaults of training. compute:
    the arithmetic that ``auto`` chose.

    Raises:
        HpcgnnError: for a value that is not allowed, or that the equations do not cover.
    """
    known = settings_by_name()
    given = {name: value for name, value in configuration.items() if name in known and value not in (None, "")}
    run = RunConfig.from_settings(given, lenient=given.keys())
    run.model.check()
    ranks = int(configuration.get("ranks", 1))
    rate = str(configuration.get("rate") or "")
    per_node = int(configuration.get("ranks_per_node") or (1 if rate or network else ranks))
    setup = Setup(
        run=run,
        ranks=ranks,
        threads=int(configuration.get("threads") or 1),
        ranks_per_node=per_node if rate or network else ranks,
        cores=cores,
        rate=rate,
        network=network,
        arithmetic=_ARITHMETICS.get(compute or run.compute, "float32"),
    )
    setup.check()
    return setup


def bits_per_second(rate: str) -> float:
    """The speed of a virtual cluster's links; infinite without a limit.

    Raises:
        HpcgnnError: if it is not a speed.
    """
    by_rate(rate or UNLIMITED)  # refuses what is no speed
    if rate in ("", UNLIMITED):
        return float("inf")
    unit = next(unit for unit in _UNITS if rate.endswith(unit))
    return float(rate.removesuffix(unit)) * _UNITS[unit]


def network_of(setup: Setup, values: Values) -> Network:
    """The network of the setup, or that of virtual links, whose CPU costs are work of ranks."""
    if setup.network is not None:
        return setup.network
    virtual = by_rate(setup.rate or UNLIMITED)
    speed = bits_per_second(setup.rate) / 8 * values["rate_share"]
    return replace(
        virtual,
        latency_seconds=values["latency"],
        node_bandwidth_bytes_per_second=min(speed, by_rate(UNLIMITED).node_bandwidth_bytes_per_second * 10),
        message_seconds=0.0,
        peer_seconds=0.0,
        burst_bytes=0.0,
    )


class NetworkTimes:
    """Seconds of a workload's messages, which are computed once for each network, because a fit changes other constants more
    often."""

    def __init__(self, setup: Setup, workload: Workload, most_messages: int = MOST_MESSAGES) -> None:
        self.setup, self.workload, self.most_messages = setup, workload, most_messages
        self._of_exchanges: dict[tuple[Network, int, bool], np.ndarray] = {}
        self._network_bytes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._peers: dict[int, int] = {}

    def messages(self, values: Values) -> Messages:
        """The messages with these constants."""
        setup, network = self.setup, network_of(self.setup, values)
        is_virtual = setup.network is None and setup.rate not in ("", UNLIMITED)
        burst = values["burst_bytes"] if is_virtual else network.burst_bytes
        link_imbalance = values["link_imbalance"] if is_virtual else 0.0
        # what an idle link lets through at once is counted by the clocks, across exchanges
        network = replace(network, burst_bytes=0.0)

        def exchange(each: Exchange) -> np.ndarray:
            key = network, each.width, each.is_backward  # bits are those of the run
            if key not in self._of_exchanges:
                self._of_exchanges[key] = exchange_seconds(
                    each.sent, setup.ranks_per_node, network, most_messages=self.most_messages
                )
            return self._of_exchanges[key] * (1 + link_imbalance * (1 - 1 / self.peers(each)))

        def reduction(num_bytes: int) -> float:
            return allreduce_seconds(num_bytes, setup.ranks, setup.ranks_per_node, network)

        seconds = burst / network.node_bandwidth_bytes_per_second
        return Messages(exchange, reduction, self.network_bytes, seconds)

    def peers(self, exchange: Exchange) -> int:
        """The largest number of other nodes from which one node receives messages; at least 1."""
        if exchange.number not in self._peers:
            self._peers[exchange.number] = most_peers(exchange.sent, self.setup.ranks_per_node)
        return self._peers[exchange.number]

    def network_bytes(self, exchange: Exchange) -> tuple[np.ndarray, np.ndarray]:
        """(P,) bytes to, and from, other nodes."""
        if exchange.number not in self._network_bytes:
            self._network_bytes[exchange.number] = bytes_between(exchange.sent, self.setup.ranks_per_node)
        return self._network_bytes[exchange.number]


def bytes_between(sent: sparse.csr_array, ranks_per_node: int) -> tuple[np.ndarray, np.ndarray]:
    """(P,) bytes that each rank sends to ranks of other nodes, and (P,) that come from there."""
    ranks = sent.shape[0]
    senders = np.repeat(np.arange(ranks), np.diff(sent.indptr))
    away = senders // ranks_per_node != sent.indices // ranks_per_node
    return (
        np.bincount(senders[away], sent.data[away], ranks),
        np.bincount(sent.indices[away], sent.data[away], ranks),
    )


def most_peers(sent: sparse.csr_array, ranks_per_node: int) -> int:
    """The largest number of other nodes from which the ranks of one node receive messages; at least 1."""
    senders = np.repeat(np.arange(sent.shape[0]), np.diff(sent.indptr)) // ranks_per_node
    receivers = sent.indices // ranks_per_node
    nodes = -(-sent.shape[0] // ranks_per_node)
    pairs = np.unique((receivers * nodes + senders)[(senders != receivers) & (sent.data > 0)])
    return int(np.bincount(pairs // nodes).max()) if pairs.size else 1
