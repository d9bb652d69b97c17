"""The work and the messages of each rank in a training step: columns of :data:`hpcgnn.lab.cost_model.constants.WORK`, between
exchanges.

A step is divided into stretches: the work before exchange k begins, the work during exchange k, and the work after the last
one. Shapes: P ranks, T kinds of work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy import sparse

from hpcgnn.exchange.codecs import reads_codes_faster
from hpcgnn.lab.cost_model import steps
from hpcgnn.lab.cost_model.constants import COLUMN, WORK
from hpcgnn.lab.cost_model.rows import FLOAT_BITS, Parts
from hpcgnn.lab.cost_model.steps import Steps
from hpcgnn.lab.cost_model.wire import Wire

_VALUE_BYTES, _INDEX_BYTES = 4, 4
_CACHE_BYTES = 1 << 20  # of a core, not shared
_SCALARS_BYTES = 64  # the loss, counts and stop requests beside the gradients


@dataclass(frozen=True, eq=False)
class Exchange:
    """An exchange of a step. sent: (P, P) bytes. width, bits: of a row. number: its place among the exchanges."""

    number: int
    width: int
    bits: int
    is_backward: bool
    sent: sparse.csr_array

    @cached_property
    def bytes_of_ranks(self) -> tuple[np.ndarray, np.ndarray]:
        """(P,) bytes that each rank sends, and that it receives."""
        return np.asarray(self.sent.sum(axis=1)), np.asarray(self.sent.sum(axis=0))

    @cached_property
    def messages_of_ranks(self) -> np.ndarray:
        """(P,) messages that each rank sends or receives."""
        return np.diff(self.sent.indptr) + np.bincount(self.sent.indices, minlength=self.sent.shape[0])

    @cached_property
    def senders(self) -> np.ndarray:
        """(pairs,) sender of each message, in the order of ``sent``."""
        return np.repeat(np.arange(self.sent.shape[0]), np.diff(self.sent.indptr))


@dataclass(frozen=True, eq=False)
class Workload:
    """The workload of a training step. before: a (P, T) array for each exchange, and one for the work after the last. beside:
    one for each exchange, with the work during it. optimiser: (P, T) work after the reduction. reduced_bytes: bytes of
    gradients and scalars. memory: (P, 3) bytes of features and matrices, of the memory kept for gradients, and of rows and
    messages."""

    parts: Parts
    before: tuple[np.ndarray, ...]
    beside: tuple[np.ndarray, ...]
    exchanges: tuple[Exchange, ...]
    optimiser: np.ndarray
    reduced_bytes: int
    memory: np.ndarray

    @property
    def num_ranks(self) -> int:
        """The number of ranks P."""
        return self.parts.num_ranks

    def bytes_sent(self) -> np.ndarray:
        """(P,) int64 bytes that each rank sends in a step, as ``bytes_sent`` of ``metrics.jsonl`` counts them."""
        none = np.zeros(self.num_ranks, np.int64)
        return sum((exchange.bytes_of_ranks[0] for exchange in self.exchanges), none)

    def rows_sent(self) -> np.ndarray:
        """(P,) int64 rows that each rank sends in a step."""
        pairs, none = self.parts.pairs, np.zeros(self.num_ranks, np.int64)
        sent = (each for each in self.exchanges if each.sent.nnz)
        return sum((pairs.received() if each.is_backward else pairs.sent() for each in sent), none)


@dataclass
class _Ledger:
    """Work of P ranks that is added up until an exchange begins or ends."""

    ranks: int
    work: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.take()

    def take(self) -> np.ndarray:
        taken = getattr(self, "work", np.zeros(0))
        self.work = np.zeros((self.ranks, len(WORK)))
        return taken

    def add(self, name: str, amount: np.ndarray | float) -> None:
        self.work[:, COLUMN[name]] += amount


def workload_of(
    parts: Parts,
    step: Steps,
    bits: int,
    *,
    compute: str = "float32",
    self_loops: bool = False,
    wire: Wire | None = None,
) -> Workload:
    """The workload of ``step`` on these parts. bits: bit-width of values in messages. compute: arithmetic of products, one of
    float32, bf16 and int8. self_loops: whether each node has an entry of L, as in GCN. wire: the messages, if not all rows
    have ``bits``."""
    return _Maker(parts, step, bits, compute, self_loops, wire).made()


class _Maker:
    def __init__(
        self, parts: Parts, step: Steps, bits: int, compute: str, self_loops: bool, wire: Wire | None = None
    ) -> None:
        self.parts, self.step, self.compute, self.wire = parts, step, compute, wire
        self.bits = bits if wire is None or len(wire.shares) > 1 else wire.shares[0][0]
        self.ledger = _Ledger(parts.num_ranks)
        halo = parts.read if step.is_halo else np.zeros_like(parts.nodes)
        self.extended = parts.nodes + halo
        self.entries = {
            "L": parts.nodes if step.is_halo else parts.local + (parts.nodes if self_loops else 0),
            "S": parts.send,
            "R": parts.read if step.is_halo else parts.receive,
            "A": parts.edges + parts.nodes,
        }
        # (rows, columns) of each matrix
        self.shapes = {
            "L": (parts.nodes, parts.nodes),
            "S": (parts.written, parts.nodes),
            "R": (self.extended, parts.read),
            "A": (parts.nodes, self.extended),
        }
        self.is_encoded = bits != FLOAT_BITS

    def made(self) -> Workload:
        before, beside, exchanges = [], [], []
        self.ledger.add("epoch", 1.0)
        for piece in self.step.pieces:
            if isinstance(piece, steps.Start):
                self._encode(piece)
                before.append(self.ledger.take())
                sent = self._sent(piece)
                exchanges.append(Exchange(piece.number, piece.width, self.bits, piece.is_backward, sent))
            elif isinstance(piece, steps.Wait):
                beside.append(self.ledger.take())
                self._decode(piece)
            elif isinstance(piece, steps.Parameters):
                before.append(self.ledger.take())
                self.ledger.add("parameter", float(piece.count))
            else:
                self._work(piece)
        reduced = self.step.parameters * _VALUE_BYTES + _SCALARS_BYTES
        return Workload(
            self.parts, tuple(before), tuple(beside), tuple(exchanges), self.ledger.take(), reduced, self._memory()
        )

    @property
    def _sends(self) -> bool:
        return self.wire is None or self.wire.sends

    def _sent(self, piece: steps.Start) -> sparse.csr_array:
        if self.wire is None:
            return self.parts.pairs.bytes(piece.width, self.bits, is_backward=piece.is_backward)
        return self.wire.bytes(self.parts.pairs, piece.width, is_backward=piece.is_backward)

    def _work(self, piece: steps.Piece) -> None:
        add = self.ledger.add
        if isinstance(piece, steps.Spmm):
            if self._sends or piece.matrix != ("R" if piece.transposed else "S"):
                self._spmm(piece)
        elif isinstance(piece, steps.Product):
            rows = self.extended if piece.of_halo else self.parts.nodes
            add(f"product_{self.compute}", rows * float(piece.in_width * piece.out_width))
        elif isinstance(piece, steps.Elements):
            rows = self.extended if piece.of_halo else self.parts.nodes
            values = rows * (piece.width * piece.passes)
            add("element", values)
            add("element_missed", values * _missed(rows, piece.width))
        elif isinstance(piece, steps.Attention):
            add("attention", self.entries["A"] * float(piece.heads))
        elif isinstance(piece, steps.Calls):
            add(piece.name, 1.0)

    def _spmm(self, piece: steps.Spmm) -> None:
        if piece.matrix == "X":
            self.ledger.add("feature", self.parts.features * float(piece.width))
            return
        if piece.matrix == "A":  # timed with the scores, and not as an aggregation
            self.ledger.add("weighted", self.entries["A"] * float(piece.width))
            return
        entries = self.entries[piece.matrix]
        rows, columns = self.shapes[piece.matrix][:: -1 if piece.transposed else 1]
        comes = piece.matrix == ("S" if piece.transposed else "R")
        if comes and self._is_fused(entries, columns, piece.width):
            self.ledger.add("code", entries * float(piece.width))
        else:
            values = entries * float(piece.width)
            self.ledger.add("entry", values)
            self.ledger.add("entry_missed", values * _missed(columns, piece.width))
        self.ledger.add("row", rows * float(piece.width))

    def _is_fused(self, entries: np.ndarray, columns: np.ndarray, width: int) -> bool:
        """Return whether codes are added without being decoded, as :func:`hpcgnn.exchange.codecs.fuses` decides for most
        ranks."""
        if not self.is_encoded or (self.wire is not None and not self.wire.reads_codes):
            return False
        total, rows = int(entries.sum()), max(int(columns.sum()), 1)
        least = 4 if self.bits in (1, 2, 4, 16) else 1
        return reads_codes_faster(self.bits, rows // columns.size, width) or total <= least * rows

    def _encode(self, piece: steps.Start) -> None:
        if not self._sends:
            return
        pairs = self.parts.pairs
        rows = pairs.received() if piece.is_backward else pairs.sent()
        if self.is_encoded:
            self.ledger.add("encode", rows * float(piece.width))
            self.ledger.add("quantization", 1.0)
        else:
            self.ledger.add("row", rows * float(piece.width))  # looked at for NaN and infinity

    def _decode(self, piece: steps.Wait) -> None:
        """The decoding of rows that are not added directly from their codes."""
        pairs = self.parts.pairs
        rows = pairs.sent() if piece.is_backward else pairs.received()
        matrix = "S" if piece.is_backward else "R"
        columns = self.shapes[matrix][0] if piece.is_backward else self.shapes[matrix][1]
        if self.is_encoded and not self._is_fused(self.entries[matrix], columns, piece.width):
            self.ledger.add("decode", rows * float(piece.width))

    def _memory(self) -> np.ndarray:
        parts = self.parts
        values = (
            parts.features * (_VALUE_BYTES + _INDEX_BYTES)
            if parts.is_sparse
            else parts.nodes * parts.in_width * _VALUE_BYTES
        )
        matrices = 2 * _INDEX_BYTES * (parts.local + parts.send + parts.receive) + 8 * parts.edges
        widest = max((each.width for each in self.step.exchanges()), default=0)
        kept = parts.nodes * (self.step.kept_width * _VALUE_BYTES)
        travelling = (parts.written + parts.read) * (2 * widest * _VALUE_BYTES)
        return np.stack((values + matrices, kept, travelling), axis=1).astype(np.float64)


def _missed(rows: np.ndarray, width: int) -> np.ndarray:
    """(P,) share of a matrix of (P,) rows that is not in a core's cache when it is used again."""
    return np.maximum(0.0, 1.0 - _CACHE_BYTES / np.maximum(rows * (width * float(_VALUE_BYTES)), 1.0))


def largest_bytes(exchanges: Iterable[Exchange]) -> int:
    """The largest number of bytes that a rank sends or receives in one of these exchanges."""
    return max((int(np.max(np.maximum(*exchange.bytes_of_ranks))) for exchange in exchanges), default=0)
