"""Settings of messages between ranks; no torch is imported for them."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.base.errors import WrongValueError
from hpcgnn.base.settings import Checked, setting
from hpcgnn.base.typed import MESSAGE_BITS

COLLECTIVES = ("auto", "alltoallv", "neighbour")
GPU_MPI = ("auto", "on", "off")


@dataclass(frozen=True)
class MessageConfig(Checked):
    """Settings of boundary messages; the page "settings" describes each of them.

    Raises:
        HpcgnnError: when it is used, for values that are not allowed or contradict each other.
    """

    bits: int = setting(32, name="", choices=MESSAGE_BITS)
    message_coding: str = setting(
        "plain",
        "Content of messages. plain: rows; delta: differences from the rows that the receiver has from the last epoch, so "
        "rounding errors do not accumulate (error feedback). delta keeps all rows sent and received in memory.",
        choices=("plain", "delta"),
    )
    eval_precision: str = setting(
        "float32",
        "Precision of messages in evaluations: float32, or the bit-widths of training.",
        choices=("float32", "training"),
    )
    overlap: bool = setting(
        True,
        "Overlap of computation and communication; off waits for messages at once and shows how much time overlap saves. The "
        "results are the same bit for bit.",
    )
    measure_imbalance: bool = setting(
        False,
        "Wait for the latest rank before each message and each sum over ranks, and count this wait as imbalance_seconds, not as "
        "waiting for bytes. It needs --overlap off. The results are the same bit for bit.",
    )
    collective: str = setting(
        "auto",
        "MPI call for boundary messages: alltoallv among all ranks, or a neighbour collective among the ranks that have messages "
        "for each other. auto measures both if the neighbour collective may be faster.",
        choices=COLLECTIVES,
    )
    node_aware: str = setting(
        "auto",
        "Aggregation by node: a row is sent once to each other node rather than once to each of its ranks, the contributions of "
        "a node's ranks are added up before they are sent, and rows move through shared memory within a node. auto turns this "
        "on if there are several nodes with several ranks each.",
        choices=("auto", "on", "off"),
    )
    gpu_mpi: str = setting(
        "auto",
        "Pass GPU memory to MPI. auto does so if the MPI library says that it supports it and a trial message arrives intact; "
        "otherwise, and with off, messages are copied through host memory.",
        choices=GPU_MPI,
    )

    def check(self) -> None:
        """Raise HpcgnnError for settings that do not exist or cannot be combined."""
        super().check()
        if self.measure_imbalance and self.overlap:
            raise WrongValueError(
                "--measure-imbalance needs --overlap off, because computation that overlaps with messages hides imbalance"
            )
        if self.message_coding == "delta" and self.bits == 32:
            raise WrongValueError(
                "message_coding delta compensates for rounding errors: choose --bits 16 or fewer with it"
            )
        if self.message_coding == "delta" and self.eval_precision == "training":
            raise WrongValueError("evaluations send no differences: keep --eval-precision float32 with delta")
