"""Settings of messages between ranks; no torch is imported for them."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.bit_widths import MESSAGE_BITS
from hpcgnn.errors import WrongValueError
from hpcgnn.settings import Checked, setting

CODINGS = ("plain", "delta")
EVAL_PRECISIONS = ("float32", "training")
NODE_AWARE = ("auto", "on", "off")
COLLECTIVES = ("auto", "alltoallv", "neighbour")
GPU_MPI = ("auto", "on", "off")


@dataclass(frozen=True)
class MessageConfig(Checked):
    """Settings of boundary messages.

    bits: bit-width of each value that travels in training. message_coding: ``plain``, or ``delta`` for differences to the rows
    that the receiver has. eval_precision: ``float32``, or ``training`` for evaluations with the bit-widths of training.
    overlap: whether a rank computes while its messages travel; without it, each rank waits at once, which shows how much time
    overlap saves. collective: ``alltoallv``, ``neighbour``, or ``auto`` for the faster one (:mod:`hpcgnn.comm.links`).
    node_aware: whether the ranks of a node share the rows that they exchange with other nodes (:mod:`hpcgnn.node_plan`).
    gpu_mpi: whether MPI is given memory of GPUs (:mod:`hpcgnn.comm.gpu_mpi`).
    """

    bits: int = setting(32, name=None, choices=MESSAGE_BITS)
    message_coding: str = setting(
        "plain",
        "delta sends differences to what the receiver has from the last epoch, so that nothing that rounding lost is lost for "
        "good; it keeps all rows sent and received in memory.",
        choices=CODINGS,
    )
    eval_precision: str = setting(
        "float32", "Messages of evaluations: float32, or as few bits as in training.", choices=EVAL_PRECISIONS
    )
    overlap: bool = setting(
        True, "Compute while messages travel; off shows what that saves. Results are the same, bit for bit."
    )
    collective: str = setting(
        "auto",
        "MPI's call for boundary messages: over all ranks, or over those that have some for each other. auto measures both "
        "where that may pay.",
        choices=COLLECTIVES,
    )
    node_aware: str = setting(
        "auto",
        "Send a row once to all ranks of another node, and add up the contributions of a node's ranks before a row is sent; "
        "within a node, rows move through shared memory. auto does so where several ranks share a node and there are several "
        "nodes.",
        choices=NODE_AWARE,
    )
    gpu_mpi: str = setting(
        "auto",
        "Give MPI the memory of GPUs. auto does where the library says that it takes it, and a trial comes right; else, and with "
        "off, messages go through memory of the host.",
        choices=GPU_MPI,
    )

    def check(self) -> None:
        """Raise HpcgnnError for settings that do not exist or do not go together."""
        super().check()
        if self.message_coding == "delta" and self.bits == 32:
            raise WrongValueError(
                "message_coding delta compensates for what few bits lose: choose --bits 16 or fewer with it"
            )
        if self.message_coding == "delta" and self.eval_precision == "training":
            raise WrongValueError("an evaluation sends no differences: leave --eval-precision float32 with delta")
