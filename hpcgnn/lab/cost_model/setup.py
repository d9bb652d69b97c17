"""A run as the equations need it: its settings, the machine that its ranks share, and the network between machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.exchange.mailbox import FRESH, STALE
from hpcgnn.graph import DISK
from hpcgnn.lab.cost_model import network as networks
from hpcgnn.lab.cost_model.constants import Values
from hpcgnn.lab.cost_model.equations import Epoch, EpochKind, Machine, Messages, epoch_of
from hpcgnn.lab.cost_model.network import UNLIMITED, Network
from hpcgnn.lab.cost_model.rows import Parts, Wire, read_parts
from hpcgnn.lab.cost_model.steps import steps_of
from hpcgnn.lab.cost_model.workload import Exchange, Workload, workload_of
from hpcgnn.nn.config import AUTO, MODELS, ModelConfig, why_input_changes
from hpcgnn.policy.config import FIXED, OFF
from hpcgnn.train.run_config import RunConfig, settings_by_name
from hpcgnn.world.placement import Placement

PIPELINE = "pipeline"
_MOST_BYTES_PER_SECOND = 2e10  # of virtual links without a limit
_ARITHMETICS = {"bf16": "bf16", "bf16-emulated": "bf16", "int8": "int8", "int8-always": "int8"}


@dataclass(frozen=True)
class Setup:
    """The setup of a run. ranks_per_node: number of ranks that share memory. rate: speed of a virtual cluster's links, or none.
    network: a real network, whose nodes are machines; None: all ranks share one machine. arithmetic: that of dense products."""

    run: RunConfig
    ranks: int
    threads: int
    ranks_per_node: int
    cores: int
    rate: str
    network: Network | None
    arithmetic: str

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
    def is_virtual(self) -> bool:
        """Return whether ranks send over the limited links of a virtual cluster."""
        return self.network is None and self.rate not in ("", UNLIMITED)

    @property
    def placement(self) -> Placement | None:
        """The placement of ranks that share the rows for other nodes."""
        placement = Placement.in_blocks(self.ranks, self.ranks_per_node)
        return placement if placement.is_shared and self.run.messages.node_aware != "off" else None

    def read(self, file: PartsFile, known: dict[Any, Any]) -> Parts:
        """The parts in an open file with the plan of :attr:`strategy`, which are kept in ``known``."""
        key = str(file.path), self.strategy, 0 if self.placement is None else self.ranks_per_node
        if key not in known:
            known[key] = read_parts(file, self.strategy, self.placement)
        return known[key]

    def workload(self, parts: Parts, wire: Wire | None = None) -> Workload:
        """The workload on these parts, which belong to :attr:`strategy` and :attr:`placement`. wire: the messages, if not all
        rows have the run's bit-width."""
        if parts.num_ranks != self.ranks:
            raise HpcgnnError(
                f"{parts.name} has {parts.num_ranks} parts, not {self.ranks}: partition the graph with --parts {self.ranks}"
            )
        learns, keeps = self.run.train.labels.rate > 0, self.run.cache_input_aggregation is True
        if self.run.cache_input_aggregation == AUTO:
            keeps = not (parts.is_sparse or self.run.features == DISK or why_input_changes(self.model))
        repeats = self.model.input_dropout > 0 or (self.run.policy.is_off and (wire is None or wire.repeats_input))
        steps = steps_of(self.model, parts.in_width, parts.out_width, parts.is_sparse, learns, keeps, repeats)
        loops = MODELS[self.model.model].aggregation == "gcn" and not steps.is_halo
        return workload_of(parts, steps, self.run.messages.bits, compute=self.arithmetic, self_loops=loops, wire=wire)

    def epoch(self, workload: Workload, messages: Messages, values: Values) -> Epoch:
        """The prediction of the equations for equal epochs."""
        freshness = STALE if self.run.policy.staleness == PIPELINE else FRESH
        return epoch_of(EpochKind(workload, messages, freshness), values, self.machine)


def run_of(configuration: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> RunConfig:
    """The settings of training among names and values as records and flags have them; those without a value are ``usual``, or
    the defaults of training."""
    known = settings_by_name()
    given = {name: value for name, value in configuration.items() if name in known and value not in (None, "")}
    given = {**(usual or {}), **given}
    return RunConfig.from_settings(given, lenient=given.keys())


def setup_of(
    configuration: Mapping[str, Any], *, cores: int, compute: str = "", network: Network | None = None
) -> Setup:
    """The setup from names and values as records and flags have them. compute: the arithmetic that ``auto`` chose. Raises
    HpcgnnError for a value that is not allowed, or that the equations do not cover."""
    run = run_of(configuration)
    run.model.check()
    bits, staleness = run.policy.bits, run.policy.staleness
    if bits != FIXED:
        raise HpcgnnError(
            f"the bit-widths of --bits {bits} are decided during training: predict --bits 2, 4 and 8, between which they lie"
        )
    if staleness not in (OFF, PIPELINE):
        raise HpcgnnError(f"the cost model covers --staleness off and pipeline, not {staleness}")
    if run.task != "node" or run.messages.message_coding != "plain":
        raise HpcgnnError("the cost model covers only --task node with --message-coding plain")
    ranks, rate = int(configuration.get("ranks", 1)), str(configuration.get("rate") or "")
    per_node = int(configuration.get("ranks_per_node") or 1) if rate or network else ranks
    arithmetic = _ARITHMETICS.get(compute or run.compute, "float32")
    return Setup(run, ranks, int(configuration.get("threads") or 1), per_node, cores, rate, network, arithmetic)


def network_of(setup: Setup, values: Values) -> Network:
    """The network of the setup, or that of virtual links, whose CPU costs are work of ranks."""
    if setup.network is not None:
        return setup.network
    rate = setup.rate or UNLIMITED
    speed = networks.bits_per_second(rate) / 8 * values["rate_share"]
    return Network(
        name=rate,
        latency_seconds=values["latency"],
        node_bandwidth_bytes_per_second=min(speed, _MOST_BYTES_PER_SECOND),
        memory_latency_seconds=2e-6,
        memory_bandwidth_bytes_per_second=3e9,
        burst_bytes=values["burst_bytes"] if setup.is_virtual else 0.0,
    )


class NetworkTimes:
    """Seconds of a workload's messages, which are computed once for each network, because a fit changes other constants more
    often."""

    def __init__(self, setup: Setup, most_messages: int = networks.MOST_MESSAGES) -> None:
        self._setup, self._most_messages = setup, most_messages
        self._seconds: dict[tuple[Network, int, bool, int], np.ndarray] = {}
        self._peers = cache(partial(_most_peers, ranks_per_node=setup.ranks_per_node))
        self._bytes = cache(partial(bytes_between, ranks_per_node=setup.ranks_per_node))

    def messages(self, values: Values) -> Messages:
        """The messages with these constants."""
        setup, own = self._setup, network_of(self._setup, values)
        link_imbalance = values["link_imbalance"] if setup.is_virtual else 0.0
        # what an idle link lets through at once is counted by the clocks, across exchanges
        burst_seconds = own.burst_bytes / own.node_bandwidth_bytes_per_second
        key_network = replace(own, burst_bytes=0.0)

        def exchange(each: Exchange) -> np.ndarray:
            key = key_network, each.width, each.is_backward, each.sent.nnz  # bits are those of the run
            if key not in self._seconds:
                seconds = networks.exchange_seconds(each.sent, setup.ranks_per_node, own, self._most_messages)
                self._seconds[key] = seconds
            return self._seconds[key] * (1 + link_imbalance * (1 - 1 / self._peers(each)))

        def reduction(num_bytes: int) -> float:
            return networks.allreduce_seconds(num_bytes, setup.ranks, setup.ranks_per_node, own)

        return Messages(exchange, reduction, self._bytes, burst_seconds)


def bytes_between(exchange: Exchange, ranks_per_node: int) -> tuple[np.ndarray, np.ndarray]:
    """(P,) bytes that each rank sends to ranks of other nodes, and (P,) that come from there."""
    sent, ends = exchange.sent, (exchange.senders, exchange.sent.indices)
    away = ends[0] // ranks_per_node != ends[1] // ranks_per_node
    to, fro = (np.bincount(each[away], sent.data[away], sent.shape[0]) for each in ends)
    return to, fro


def _most_peers(exchange: Exchange, ranks_per_node: int) -> int:
    """The largest number of other nodes from which the ranks of one node receive messages; at least 1."""
    senders, receivers = exchange.senders // ranks_per_node, exchange.sent.indices // ranks_per_node
    nodes = -(-exchange.sent.shape[0] // ranks_per_node)
    pairs = np.unique((receivers * nodes + senders)[(senders != receivers) & (exchange.sent.data > 0)])
    return int(np.bincount(pairs // nodes).max()) if pairs.size else 1
