"""Moving boundary rows between ranks: one nonblocking alltoallv, and nothing else."""

from __future__ import annotations

import time

import numpy as np
import torch

from hpcgnn.comm.timings import Timings
from hpcgnn.comm.world import Pending, World


class Exchange:
    """The exchange of one plan in one direction.

    Send and receive buffers are allocated once per width and reused by every layer of that width: an exchange's rows are
    consumed before the next one starts.
    """

    def __init__(
        self,
        world: World,
        send_counts: np.ndarray,
        receive_counts: np.ndarray,
        timings: Timings,
        what: str = "boundary rows",
    ) -> None:
        self.world = world
        self.timings = timings
        self.what = what
        self.send_counts = send_counts  # (P,) int64 rows to each rank
        self.receive_counts = receive_counts  # (P,) int64 rows from each rank
        self.bytes_sent = 0  # running total of payload bytes that left this rank
        self._buffers: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def buffers(self, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """``(send, received)``: (send rows, width) and (received rows, width), the same tensors at every call."""
        key = (width, dtype)
        if key not in self._buffers:
            self._buffers[key] = (
                torch.empty(int(self.send_counts.sum()), width, dtype=dtype),
                torch.empty(int(self.receive_counts.sum()), width, dtype=dtype),
            )
        return self._buffers[key]

    def start(self, send: torch.Tensor, received: torch.Tensor) -> Pending:
        """Start moving ``send`` to the peers and their rows into ``received``. Collective."""
        self.bytes_sent += send.numel() * send.element_size()
        return self.world.start_alltoallv(
            send.numpy(), self.send_counts, received.numpy(), self.receive_counts, self.what
        )

    def progress(self, pending: Pending) -> None:
        """Let MPI move data between two pieces of computation."""
        self.world.test(pending)

    def wait(self, pending: Pending) -> None:
        """Wait until the received rows are there."""
        with self.timings.measure("communication_wait_seconds"):
            self.world.wait(pending)
        self.timings.add("wire_seconds", time.perf_counter() - pending.started_at)

    def reverse(self) -> Exchange:
        """The exchange of the backward pass: what was received is sent back."""
        return Exchange(self.world, self.receive_counts, self.send_counts, self.timings, f"gradients of {self.what}")
