"""The state that all exchanges of one model share."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from hpcgnn.base.arguments import check_device, check_type, check_world
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU, Device
from hpcgnn.exchange.codecs import CodecTools
from hpcgnn.exchange.mailbox import Message, StaleRows
from hpcgnn.exchange.message_config import MessageConfig
from hpcgnn.exchange.passes import Pass, Scratch
from hpcgnn.exchange.traffic import IMBALANCE, Timings, Traffic
from hpcgnn.world.buffer import Pending
from hpcgnn.world.placement import Placement
from hpcgnn.world.transport import Transport, make_transport
from hpcgnn.world.world import World

_LOG = logging.getLogger("hpcgnn")


class Messages:
    """Settings, memory and counters that all exchanges of a model share.

    A model from ``hpcgnn.build_model`` or ``hpcgnn.distribute`` has one as ``model.messages``, or takes one as ``messages=``.
    A training loop calls ``begin_epoch`` before each step, and ``begin_pass`` whenever training and evaluation alternate; a
    native model makes the second call itself.

    Args:
        world: the ranks that exchange rows.
        config: settings of messages; None: float32.
        seed: seed of the rounding noise.
        timings: seconds of each phase; None makes new ones.
        device: device whose memory holds rows and messages, that of the graph.
        transport: a transport of the same world and device to share with other messages; None: it is made when needed.

    Attributes:
        current_pass: the pass under way.
        scratch: the memory that exchanges use by turns.
        kept: the rows that are kept between epochs.
        traffic: the counts of bytes.
    """

    def __init__(
        self,
        world: World,
        config: MessageConfig | None = None,
        *,
        seed: int = 0,
        timings: Timings | None = None,
        device: Device = CPU,
        transport: Transport | None = None,
    ) -> None:
        check_world(world)
        check_device(device, may_be_name=False)
        check_type("config", config, MessageConfig, type(None))
        check_type("timings", timings, Timings, type(None))
        self.world, self.config = world, config or MessageConfig()
        self.config.check()
        self.device, self.timings = device, timings or Timings(device)
        self.current_pass = Pass(seed)
        self.scratch, self.kept, self.traffic = Scratch(device.torch_device), StaleRows(), Traffic(world.size)
        self._waiting, self._late = map(self.timings.measure, ("communication_wait_seconds", IMBALANCE))
        self._under_way: str | None = None
        self._transport = transport
        self._placement: Placement | None = None
        self._is_node_aware: bool | None = None
        self.warned_of_placement = False

    @property
    def placement(self) -> Placement:
        """The node of each rank. The first access is collective."""
        if self._placement is None:
            self._placement = self.world.placement()
        return self._placement

    @property
    def is_node_aware(self) -> bool:
        """Return whether the ranks of a node share the rows that they exchange with other nodes. They do so unless the settings
        say ``off``, if some ranks share a node, there are several nodes, and all ranks compute on the host. The first access is
        collective.

        Raises:
            HpcgnnError: on every rank, where the settings say ``on`` and a rank computes on a GPU.
        """
        if self._is_node_aware is None:
            elsewhere = np.array([self.device is not CPU])
            is_on_host = not self.world.allreduce(elsewhere.astype(np.int64), "max")[0]
            if self.config.node_aware == "on" and not is_on_host:
                raise HpcgnnError(
                    "--node-aware on needs rows in memory of the host, but ranks compute on GPUs: use --node-aware auto",
                    agreed=True,
                )
            self._is_node_aware = self.config.node_aware != "off" and is_on_host and self.placement.is_shared
            if self.config.node_aware == "on" and not self._is_node_aware and self.world.rank == 0:
                _LOG.warning("--node-aware on has no effect, because no ranks share a node, or all ranks share one")
        return self._is_node_aware

    def send_by_rank(self) -> None:
        """Send rows from rank to rank, also where ranks share a node, from now on."""
        self._is_node_aware = False

    @property
    def transport(self) -> Transport:
        """The transport that carries bytes from the device's memory to other ranks. The first access is collective."""
        if self._transport is None:
            self._transport = make_transport(self.world, self.device, self.config.gpu_mpi)
        return self._transport

    def tools(self, backend: str) -> CodecTools:
        """Timings, backend of kernels and memory for codecs."""
        return CodecTools(self.timings, backend, self.scratch)

    # -- passes -------------------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Begin the training step of ``epoch``."""
        self.current_pass = replace(self.current_pass, epoch=epoch)
        self.traffic.begin_step()
        self.world.wait_for_latest = self._meet if self.config.measure_imbalance else None

    def begin_pass(self, *, is_training: bool) -> None:
        """Messages from now on belong to a training step, or to an evaluation."""
        if is_training != self.current_pass.is_training:
            self.current_pass = replace(self.current_pass, is_training=is_training)

    def reseed(self, seed: int) -> None:
        """Draw rounding noise from ``seed`` from now on."""
        self.current_pass = replace(self.current_pass, seed=seed)

    @property
    def is_rounded(self) -> bool:
        """Return whether the present pass rounds its messages to the bit-widths of training."""
        return self.current_pass.is_training or self.config.eval_precision == "training"

    @property
    def is_delta(self) -> bool:
        """Return whether the present pass sends differences. Evaluations do not, because delta coding's rows must not change in
        them.
        """
        return self.current_pass.is_training and self.config.message_coding == "delta"

    @property
    def keeps_rows(self) -> bool:
        """Return whether training keeps rows between epochs, which belong to one call of an exchange in a pass."""
        return self.kept.rules is not None or self.config.message_coding == "delta"

    # -- messages under way -------------------------------------------------------------------------------------------

    def make_progress(self, pending: Pending) -> None:
        """Let a thread make progress with ``pending``, which has started, while this rank computes. Without overlap, wait."""
        if self.config.overlap:
            self.world.watch(pending)
        else:
            with self._waiting:
                self.world.wait(pending)
                if self.config.measure_imbalance:
                    self._wait_for_ranks()  # so that no rank is late for what comes next because its rows were

    def _meet(self) -> None:
        """Wait for the ranks that still compute. Collective."""
        self.device.synchronize()
        with self._late:
            self._wait_for_ranks()

    def _wait_for_ranks(self) -> None:
        self.world.allreduce(np.zeros(1), what="the latest rank")

    def wait(self, message: Message) -> None:
        """Wait until ``message``, which is under way, has arrived."""
        pending, message.pending = message.pending, None
        assert pending is not None
        with self._waiting:
            self.world.wait(pending)
            if pending.arrive is not None:
                pending.seconds = pending.arrive()
        self.timings.add("wire_seconds", pending.seconds)

    def drain(self) -> None:
        """Wait for all messages in flight; each exchange still uses their rows in the epoch in which they are due. Collective."""
        with self._waiting:
            for box in self.kept.mailboxes.values():
                pending = None if box.in_flight is None else box.in_flight.pending
                if pending is not None:
                    self.world.wait(pending)
                    if pending.arrive is not None:
                        pending.seconds = pending.arrive()

    def claim_memory(self, name: str) -> None:
        """Note that the exchange ``name`` begins to use the memory that all exchanges share.

        Raises:
            RuntimeError: where another exchange has not been waited for, because its rows would be overwritten.
        """
        if self._under_way is not None:
            raise RuntimeError(
                f"{name} cannot be sent while {self._under_way} are on their way: finish the earlier aggregation first"
            )
        self._under_way = name

    def release_memory(self) -> None:
        """Note that the exchange under way has ended."""
        self._under_way = None

    def raise_if_nonfinite(self, nonfinite_on_ranks: float) -> None:
        """See :meth:`hpcgnn.exchange.traffic.Traffic.raise_if_nonfinite`. Collective if the sum is above 0."""
        self.traffic.raise_if_nonfinite(self.world, self.current_pass.epoch, nonfinite_on_ranks)
