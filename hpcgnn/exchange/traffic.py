"""The seconds of each phase of an epoch, the bytes that a model's exchanges move, and rows with a NaN or an infinity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU, Device
from hpcgnn.exchange.passes import ExchangeId
from hpcgnn.kernels.messages import DeviceCount
from hpcgnn.world.world import World

IMBALANCE = "imbalance_seconds"  # which only a run with --measure-imbalance tells apart from the other waits
PHASES = (
    "aggregation_seconds",
    "communication_wait_seconds",
    "wire_seconds",
    "quantization_seconds",
    "synchronisation_seconds",
    "policy_seconds",
    IMBALANCE,
)


class Timings:
    """Seconds per phase since the last :meth:`take`; ``wire_seconds`` overlaps with the others.

    device: the device whose time is measured. A phase of a GPU lies between two marks in its stream of work, and the host does
    not wait for them. While the host waits for messages, the GPU waits for the host: this time counts as
    ``communication_wait_seconds``.
    """

    def __init__(self, device: Device = CPU) -> None:
        self.device = device
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._spans: list[tuple[str, Any, Any]] = []

        self._phases = {phase: _Phase(phase, device.mark, self._spans) for phase in PHASES}

    def add(self, phase: str, seconds: float) -> None:
        """Add ``seconds`` to ``phase``."""
        self._seconds[phase] += seconds

    def measure(self, phase: str) -> _Phase:
        """A context that adds the time of its body to ``phase``; the same object in each call."""
        return self._phases[phase]

    def take(self) -> list[float]:
        """The seconds in the order of :data:`PHASES`; starts again from zero. Waits for the end of the measured work."""
        for phase, first, last in self._spans:
            self._seconds[phase] += self.device.seconds_between(first, last)
        values = list(self._seconds.values())
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._spans.clear()
        return values


class _Phase:
    """Notes the first and last mark of each body that ends without an error in ``spans``; bodies may be nested."""

    def __init__(self, name: str, mark: Callable[[], Any], spans: list[tuple[str, Any, Any]]) -> None:
        self._name, self._mark, self._spans = name, mark, spans
        self._firsts: list[Any] = []

    def __enter__(self) -> None:
        self._firsts.append(self._mark())

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        first = self._firsts.pop()
        if kind is None:
            self._spans.append((self._name, first, self._mark()))


BYTES = ("bytes_sent", "bytes_between_nodes", "bytes_shared_on_nodes")


@dataclass(frozen=True, eq=False)
class Sent:
    """Bytes of a message."""

    to_ranks: np.ndarray  # (P,) int64 bytes for each rank
    total: int
    between_nodes: int  # the sum over ranks on other nodes


class Traffic:
    """Bytes of all passes, and the observations of the present training step; among P ranks."""

    def __init__(self, num_ranks: int) -> None:
        self.bytes_sent: Counter[ExchangeId] = Counter()  # by this rank in messages, with parameters of quantization
        self.bytes_between_nodes: Counter[ExchangeId] = Counter()  # the part of them for ranks on other nodes
        self.bytes_shared_on_nodes: Counter[ExchangeId] = Counter()  # read from memory that ranks of a node share
        self.bytes_to = np.zeros(num_ranks, np.int64)  # bytes_sent of all exchanges, by receiving rank
        self.ages: dict[ExchangeId, int] = {}  # epochs since the rows last used in this step were sent
        self.calls: dict[ExchangeId, int] = {}  # starts in this step: several if a pass uses a layer again
        self._started: list[ExchangeId] = []
        self._nonfinite: list[DeviceCount] = []

    def bytes(self) -> dict[str, int]:
        """Totals over all exchanges so far, by the names in :data:`BYTES`."""
        return {name: getattr(self, name).total() for name in BYTES}

    def take_bytes(self, other: Traffic) -> None:
        """Move the bytes that ``other`` has counted to this object."""
        for name in BYTES:
            getattr(self, name).update(getattr(other, name))
            getattr(other, name).clear()
        self.bytes_to += other.bytes_to
        other.bytes_to[:] = 0

    def begin_step(self) -> None:
        """Begin a training step."""
        self._started, self._nonfinite = [], []
        self.calls.clear()
        self.ages.clear()

    # -- calls --------------------------------------------------------------------------------------------------------

    @property
    def exchanges_started(self) -> set[ExchangeId]:
        """The exchanges that this step has started so far; the same on all ranks."""
        return set(self._started)

    def shared(self, exchange: ExchangeId, num_bytes: int) -> None:
        """Count ``num_bytes`` that ``exchange`` reads from memory which ranks of this node share."""
        self.bytes_shared_on_nodes[exchange] += num_bytes

    def started(self, exchange: ExchangeId, sent: Sent, nonfinite: DeviceCount) -> None:
        """Count the start of an exchange and its bytes. nonfinite: a number above 0 if its rows hold a NaN or an infinity."""
        self.bytes_to += sent.to_ranks
        self.bytes_sent[exchange] += sent.total
        self.bytes_between_nodes[exchange] += sent.between_nodes
        self._started.append(exchange)
        self._nonfinite.append(nonfinite)

    # -- NaN and infinities -------------------------------------------------------------------------------------------

    def nonfinite_count(self) -> DeviceCount:
        """A number above 0 if this rank has sent a NaN or an infinity in this step, else 0: an int, or a tensor on the device."""
        on_device = [count for count in self._nonfinite if isinstance(count, torch.Tensor)]
        on_host = sum(count for count in self._nonfinite if not isinstance(count, torch.Tensor))
        return torch.stack(on_device).sum() + on_host if on_device else on_host

    def raise_if_nonfinite(self, world: World, epoch: int, nonfinite_on_ranks: float) -> None:
        """Raise HpcgnnError if a rank has sent a NaN or an infinity in this step. Collective if any rank has.

        The error names the first exchange that sent one, and its rank. nonfinite_on_ranks: sum of :meth:`nonfinite_count` over
        ranks, the same number on each.
        """
        if not nonfinite_on_ranks:
            return
        mine = next((number for number, rows in enumerate(self._nonfinite) if int(rows)), len(self._started))
        first = int(world.allreduce(np.array([mine * world.size + world.rank]), "min")[0])
        which, rank = divmod(first, world.size)  # all ranks start the same exchanges in the same order
        raise HpcgnnError(
            f"{self._started[which].name} of rank {rank} held NaN or infinite values in epoch {epoch}: lower --lr "
            "or scale the features down",
            agreed=True,
        )
