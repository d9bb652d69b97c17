"""The work and the messages of each rank in a training step, in stretches: the work before exchange k begins, the work during
exchange k, and the work after the last one. Shapes: P ranks, T kinds of :data:`hpcgnn.lab.cost_model.constants.WORK`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import sparse

from hpcgnn.kernels.fusing import adds_from_codes
from hpcgnn.lab.cost_model.constants import COLUMN, WORK
from hpcgnn.lab.cost_model.rows import FLOAT_BITS, Parts, Wire
from hpcgnn.lab.cost_model.steps import Aggregation, Steps, Work

_VALUE_BYTES, _INDEX_BYTES = 4, 4
_CACHE_BYTES = 1 << 20  # of a core, not shared
_SCALARS_BYTES = 64  # the loss, counts and stop requests beside the gradients


@dataclass(frozen=True, eq=False)
class Exchange:
    """An exchange of a step. number: its place among the exchanges. width: of a row. sent: (P, P) bytes."""

    number: int
    width: int
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

    def total(self) -> np.ndarray:
        """(T,) work of all ranks."""
        return sum((each.sum(axis=0) for each in (*self.before, *self.beside)), self.optimiser.sum(axis=0))

    def times(self, factors: np.ndarray) -> Workload:
        """The same step with (P, T) times the work of each kind."""
        before, beside = (tuple(each * factors for each in work) for work in (self.before, self.beside))
        return replace(self, before=before, beside=beside, optimiser=self.optimiser * factors)

    def bytes_sent(self) -> np.ndarray:
        """(P,) int64 bytes that each rank sends in a step, as ``bytes_sent`` of ``metrics.jsonl`` counts them."""
        return sum((each.bytes_of_ranks[0] for each in self.exchanges), np.zeros(self.num_ranks, np.int64))

    def rows_sent(self) -> np.ndarray:
        """(P,) int64 rows that each rank sends in a step."""
        sent = (self.parts.pairs.sent(is_backward=each.is_backward) for each in self.exchanges if each.sent.nnz)
        return sum(sent, np.zeros(self.num_ranks, np.int64))


def workload_of(
    parts: Parts,
    steps: Steps,
    bits: int,
    *,
    compute: str = "float32",
    self_loops: bool = False,
    wire: Wire | None = None,
) -> Workload:
    """The workload of a training step on these parts. bits: bit-width of values in messages. compute: arithmetic of products, one
    of float32, bf16 and int8. self_loops: whether each node has an entry of L, as in GCN. wire: the messages, if not all rows
    have ``bits``."""
    maker = _Maker(parts, steps, bits, wire or Wire(((bits, 1.0),)), compute, self_loops)
    before, beside = [], []
    exchanges: list[Exchange] = []
    maker.add("epoch", 1.0)
    for piece in steps.pieces:
        if isinstance(piece, Work):
            maker.work(piece)
            continue
        maker.begin(piece)
        before.append(maker.taken())
        travelling = maker.wire if piece.sends else replace(maker.wire, sends=False)
        sent = travelling.bytes(parts.pairs, piece.width, piece.wide, is_backward=piece.is_backward)
        exchanges.append(Exchange(len(exchanges), piece.width, piece.is_backward, sent))
        for work in piece.beside:
            maker.work(work)
        maker.multiply("L", piece)
        beside.append(maker.taken())
        maker.end(piece)
    before.append(maker.taken())
    maker.add("parameter", float(steps.parameters))
    reduced = steps.parameters * _VALUE_BYTES + _SCALARS_BYTES
    memory = _memory(parts, steps)
    return Workload(parts, tuple(before), tuple(beside), tuple(exchanges), maker.taken(), reduced, memory)


class _Maker:
    """Work of P ranks that is added up until an exchange begins or ends."""

    def __init__(self, parts: Parts, steps: Steps, bits: int, wire: Wire, compute: str, self_loops: bool) -> None:
        self.pairs, self.wire, self.compute = parts.pairs, wire, compute
        self.bits = bits if len(wire.shares) > 1 else wire.shares[0][0]
        self.is_encoded = bits != FLOAT_BITS
        self.sums = np.zeros((parts.num_ranks, len(WORK)))
        nodes, halo = parts.nodes, parts.nodes + (parts.read if steps.is_halo else 0)
        edges = parts.edges + nodes
        self.counts = {"rank": 1.0, "nodes": nodes, "halo": halo, "features": parts.features, "edges": edges}
        # entries, rows and columns of each matrix
        self.matrices = {
            "L": (nodes if steps.is_halo else parts.local + (nodes if self_loops else 0), nodes, nodes),
            "S": (parts.send, parts.written, nodes),
            "R": (parts.read if steps.is_halo else parts.receive, halo, parts.read),
        }

    def taken(self) -> np.ndarray:
        taken, self.sums = self.sums, np.zeros_like(self.sums)
        return taken

    def add(self, name: str, amount: np.ndarray | float) -> None:
        self.sums[:, COLUMN[name]] += amount

    def work(self, piece: Work) -> None:
        rows = self.counts[piece.of]
        values = rows * (piece.columns * piece.times)
        self.add(f"product_{self.compute}" if piece.name == "product" else piece.name, values)
        if piece.name == "element":
            self.add("element_missed", values * _missed(rows, piece.columns))

    def begin(self, piece: Aggregation) -> None:
        """Go through the work until an exchange begins: the rows to send are computed and encoded."""
        self.add("aggregation", 1.0)
        if not (self.wire.sends and piece.sends):
            return
        self.multiply("R" if piece.is_backward else "S", piece)
        values = self.pairs.sent(is_backward=piece.is_backward) * float(piece.width)
        self.add("encode" if self.is_encoded else "row", values)  # float32 is looked at for NaN and infinity
        self.add("quantization", float(self.is_encoded))

    def end(self, piece: Aggregation) -> None:
        """Go through the work after an exchange: rows that are not added directly from their codes are decoded."""
        matrix = "S" if piece.is_backward else "R"
        is_fused = piece.sends and self._is_fused(matrix, piece)
        if self.is_encoded and piece.sends and not is_fused:
            self.add("decode", self.pairs.sent(is_backward=not piece.is_backward) * float(piece.width))
        self.multiply(matrix, piece, is_fused=is_fused)

    def multiply(self, matrix: str, piece: Aggregation, *, is_fused: bool = False) -> None:
        """Go through a product with L, S or R. is_fused: whether codes are added without being decoded."""
        entries, rows, columns = self._matrix(matrix, piece)
        values = entries * float(piece.width)
        if is_fused:
            self.add("code", values)
        else:
            self.add("entry", values)
            self.add("entry_missed", values * _missed(columns, piece.width))
        self.add("row", rows * float(piece.width))

    def _matrix(self, matrix: str, piece: Aggregation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The (P,) entries, rows and columns of a matrix; backward, those of the transposed one."""
        entries, rows, columns = self.matrices[matrix]
        return (entries, columns, rows) if piece.is_backward else (entries, rows, columns)

    def _is_fused(self, matrix: str, piece: Aggregation) -> bool:
        """As :func:`hpcgnn.exchange.codecs.fuses` decides for most ranks."""
        if not self.is_encoded or not self.wire.reads_codes:
            return False
        entries, _, columns = self._matrix(matrix, piece)
        return adds_from_codes(self.bits, int(entries.mean()), int(columns.mean()), piece.width)


def _memory(parts: Parts, steps: Steps) -> np.ndarray:
    sparse_bytes, dense_bytes = _VALUE_BYTES + _INDEX_BYTES, parts.in_width * _VALUE_BYTES
    values = parts.features * sparse_bytes if parts.is_sparse else parts.nodes * dense_bytes
    matrices = 2 * _INDEX_BYTES * (parts.local + parts.send + parts.receive) + 8 * parts.edges
    widest = max((each.width for each in steps.exchanges()), default=0)
    kept = parts.nodes * (steps.kept_width * _VALUE_BYTES)
    travelling = (parts.written + parts.read) * (2 * widest * _VALUE_BYTES)
    return np.stack((values + matrices, kept, travelling), axis=1).astype(np.float64)


def _missed(rows: np.ndarray, width: int) -> np.ndarray:
    """(P,) share of a matrix of (P,) rows that is not in a core's cache when it is used again."""
    return np.maximum(0.0, 1.0 - _CACHE_BYTES / np.maximum(rows * (width * float(_VALUE_BYTES)), 1.0))
