"""The exact contents of a parts file for each of P ranks: nodes, entries of matrices, and rows and bytes between ranks. Memory
is O(pairs of ranks that exchange rows) and O(P), never O(P^2); between nodes that share rows, also O(edges of a node)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from hpcgnn.base.typed import INT8_BITS, QUANTIZED_BITS
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.exchange.layout import BLOCK_BYTES, WIDE_BITS
from hpcgnn.graph.node_plan import edges_into, rows_between
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes
from hpcgnn.lab.bench.plan_work import stored_plan
from hpcgnn.world.placement import Placement

FLOAT_BITS = 32
_PAIRS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows between ranks in one forward aggregation: (pairs,) int64 each, for pairs of ranks that exchange rows. Backward,
    the same rows are sent in the opposite direction."""

    sender: np.ndarray
    receiver: np.ndarray
    rows: np.ndarray
    num_ranks: int

    def sent(self, *, is_backward: bool = False) -> np.ndarray:
        """(P,) int64 rows that each rank sends; backward, those that it has received."""
        ranks = self.receiver if is_backward else self.sender
        return np.bincount(ranks, self.rows, self.num_ranks).astype(np.int64)

    def table(self, sizes: np.ndarray, *, is_backward: bool) -> sparse.csr_array:
        """(P, P) int64 bytes from rank to rank, from the (pairs,) bytes of all pairs."""
        ends = (self.receiver, self.sender) if is_backward else (self.sender, self.receiver)
        return sparse.csr_array((sizes, ends), (self.num_ranks, self.num_ranks), dtype=np.int64)


def segment_bytes(rows: np.ndarray, width: int, bits: int, wide: int = 0) -> np.ndarray:
    """Bytes of one rank's rows for another; float32 rows at 32 bits. rows: int64 of any shape."""
    return rows * width * 4 if bits == FLOAT_BITS else mixed_bytes(rows[..., None], width, [bits], wide)


def mixed_bytes(rows: np.ndarray, width: int, bits: list[int], wide: int = 0) -> np.ndarray:
    """(...,) int64 bytes of a segment with (..., k) int64 rows of each of k ``bits``, as
    :func:`hpcgnn.exchange.layout.make_layout` lays them out. wide: number of wide columns beside the ``width`` others."""
    payload = rows @ np.array([payload_bytes(width, each) for each in bits])
    beside = PARAMS_BYTES + payload_bytes(wide, WIDE_BITS)
    params = rows @ np.array([beside if each <= max(QUANTIZED_BITS) else 0 for each in bits])
    return -(-(-(-payload // PARAMS_BYTES) * PARAMS_BYTES + params) // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True)
class Wire:
    """The messages of an epoch's exchanges. shares: (bits, share of the rows) pairs, which add up to 1. sends: whether messages
    are sent; otherwise, rows of an earlier epoch are used again. reads_codes: whether receivers may add up codes without
    decoding; not if rows have several bit-widths, or are changed before. repeats_input: whether rows that never change are sent
    in each epoch."""

    shares: tuple[tuple[int, float], ...]
    sends: bool = True
    reads_codes: bool = True
    repeats_input: bool = True

    def bytes(self, pairs: Pairs, width: int, wide: int = 0, *, is_backward: bool) -> sparse.csr_array:
        """(P, P) int64 bytes from rank to rank of one exchange. If there are several bit-widths, that of each row is drawn, so
        messages of few rows are as uneven as those of a policy. wide: columns that travel beside rows of fewer than 8 bits."""
        if not self.sends:
            return sparse.csr_array((pairs.num_ranks, pairs.num_ranks), dtype=np.int64)
        if len(self.shares) == 1:
            bits = self.shares[0][0]
            sizes = segment_bytes(pairs.rows, width, bits, wide if bits < INT8_BITS else 0)
            return pairs.table(sizes, is_backward=is_backward)
        draws, sizes = np.random.default_rng((0, int(is_backward))), np.empty(len(pairs.rows), np.int64)
        widths, shares = map(list, zip(*self.shares, strict=True))
        for first in range(0, len(sizes), _PAIRS_AT_ONCE):
            some = slice(first, first + _PAIRS_AT_ONCE)
            sizes[some] = mixed_bytes(draws.multinomial(pairs.rows[some], shares), width, widths, wide)
        return pairs.table(sizes, is_backward=is_backward)


@dataclass(frozen=True, eq=False)
class Parts:
    """A graph in P parts with the plan of a strategy: (P,) int64 each but for counts. nodes, edges: owned, and ending at owned
    ones. features: stored values of sparse features; zeros for dense ones. local, send, receive: entries of L, S and R. written:
    rows of S. read: rows that R reads. pairs: rows between ranks; where ranks share nodes, those between nodes, by who carries
    them."""

    name: str
    nodes: np.ndarray
    edges: np.ndarray
    features: np.ndarray
    local: np.ndarray
    send: np.ndarray
    receive: np.ndarray
    written: np.ndarray
    read: np.ndarray
    pairs: Pairs
    in_width: int
    out_width: int
    is_sparse: bool

    @property
    def num_ranks(self) -> int:
        """The number of ranks P."""
        return self.pairs.num_ranks


def read_parts(file: PartsFile, strategy: str, placement: Placement | None = None) -> Parts:
    """The parts in an open file. placement: of ranks that share nodes and the rows that they send to other nodes
    (``--node-aware``); None where each pair of ranks has messages of its own. Raises HpcgnnError if the file has no plan for the
    strategy, or is damaged."""
    (plan, _), parts, meta = stored_plan(file, strategy), range(file.num_parts), file.meta
    sender, receiver, post, pre = plan.pairs()
    by_ranks = Pairs(sender, receiver, post + pre, file.num_parts)
    entries = plan.entries()
    is_sparse = meta.x_nnz is not None and not meta.x_by_type
    of_edges = [file.slab_rows("edges/indices", part) for part in parts]
    of_features = [file.slab_rows("nodes/x_data", part) if is_sparse else (0, 0) for part in parts]
    return Parts(
        name=str(file.path),
        nodes=np.diff(file.node_offsets),
        edges=np.diff(np.array(of_edges), axis=1)[:, 0],
        features=np.diff(np.array(of_features), axis=1)[:, 0],
        local=entries["L"],
        send=entries["S"],
        receive=entries["R"],
        written=by_ranks.sent(),
        read=by_ranks.sent(is_backward=True),
        pairs=by_ranks if placement is None else _pairs_between_nodes(file, strategy, placement),
        in_width=meta.num_features,
        out_width=max(meta.num_classes, 1),
        is_sparse=is_sparse,
    )


def _pairs_between_nodes(file: PartsFile, strategy: str, placement: Placement) -> Pairs:
    """Rows between nodes by the ranks that carry them, as training plans them (:mod:`hpcgnn.graph.node_plan`)."""
    num_ranks, tables = file.num_parts, []
    for node in range(placement.num_nodes):
        edges = edges_into(file, placement, node)
        carriers = rows_between(edges, strategy, int(file.node_offsets[-1])).carriers(placement, node)
        keys, counts = np.unique(carriers.sender * num_ranks + carriers.receiver, return_counts=True)
        tables.append(np.stack((keys // num_ranks, keys % num_ranks, counts)))
    sender, receiver, rows = np.concatenate(tables, axis=1)
    return Pairs(sender, receiver, rows, num_ranks)
