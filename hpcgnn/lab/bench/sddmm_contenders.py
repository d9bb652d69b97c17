"""The contenders that multiply at the edges of a graph: for each entry (r, c) of its matrix, row r of ``a`` and row c of ``b``.

*dot* computes a dot product for each head, *add* the sum of both rows. The time of a call includes quantization.
"""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import Csr, edges, int8
from hpcgnn.lab.bench.ceilings import copy_call, gather_on, int8_sized
from hpcgnn.lab.bench.names import EDGE_OPS, HOST_NAME
from hpcgnn.lab.bench.problem import Call, Contender, Problem

_KEYS = (1, 2)  # keys of the rounding noise of a and b, which training uses as well
# Entries whose rows torch gathers at a time: the rows of a million entries would take gigabytes.
_CHUNK, _CHUNK_ON_DEVICE = 1 << 12, 1 << 18


class SddmmProblem(Problem):
    """A matrix, ``a`` (rows, width) and ``b`` (columns, width); *dot* multiplies ``heads`` groups of columns."""

    def __init__(self, csr: Csr, width: int, heads: int, device: Device = CPU) -> None:
        super().__init__(csr, width, device=device)
        self.heads = heads

    @property
    def a(self) -> torch.Tensor:
        """(rows, width) float32."""
        return self.dz

    @property
    def b(self) -> torch.Tensor:
        """(columns, width) float32."""
        return self.x

    def heads_of(self, op: str) -> int | None:
        """The argument ``heads`` of kernels for ``op``."""
        return self.heads if op == "dot" else None


def _ours(problem: SddmmProblem, op: str) -> Call:
    csr, a, b, heads = problem.csr, problem.a, problem.b, problem.heads_of(op)
    return lambda: edges.sddmm(csr, a, b, op, heads)


def _ours_int8(problem: SddmmProblem, op: str) -> Call:
    return lambda: int8.sddmm(problem.csr, *_quantized(problem), heads=problem.heads)


def _ours_int8_alone(problem: SddmmProblem, op: str) -> Call:
    operands = _quantized(problem)
    return lambda: int8.sddmm(problem.csr, *operands, heads=problem.heads)


def _quantized(problem: SddmmProblem) -> tuple[int8.Int8Rows, int8.Int8Rows]:
    return int8.quantize_rows(problem.a, key=_KEYS[0]), int8.quantize_rows(problem.b, key=_KEYS[1])


def _exact(problem: SddmmProblem, op: str) -> Call:
    """Quantizes both operands, to keep them for backward, and multiplies in float32."""
    csr, heads = problem.csr, problem.heads_of(op)
    kept: list[tuple[int8.Int8Rows, int8.Int8Rows]] = []

    def call() -> torch.Tensor:
        kept[:] = [_quantized(problem)]
        return edges.sddmm(csr, problem.a, problem.b, op, heads)

    return call


def _torch(problem: SddmmProblem, op: str) -> Call:
    """torch's operations, which gather the rows of some thousand entries at a time."""
    csr, a, b, heads = problem.csr, problem.a, problem.b, problem.heads
    rows, columns = csr.entry_rows(), csr.indices.long()
    chunk = _CHUNK if csr.device.type == "cpu" else _CHUNK_ON_DEVICE
    chunks = [slice(first, min(first + chunk, csr.num_entries)) for first in range(0, csr.num_entries, chunk)]

    def call() -> torch.Tensor:
        out = a.new_empty(csr.num_entries, heads if op == "dot" else problem.width)
        for part in chunks:
            left, right = a.index_select(0, rows[part]), b.index_select(0, columns[part])
            if op == "add":
                torch.add(left, right, out=out[part])
            else:
                torch.sum(left.mul_(right).view(len(left), heads, -1), 2, out=out[part])
        return out

    return call


def _torch_sampled(problem: SddmmProblem, op: str) -> Call:
    """A sampled product of torch for each head, with operands that are made contiguous in advance."""
    csr, heads = problem.csr, problem.heads
    indptr, indices, zeros = csr.indptr.int(), csr.indices.int(), torch.zeros(csr.num_entries, device=csr.device)
    shape = csr.num_rows, csr.num_cols
    pattern = torch.sparse_csr_tensor(indptr, indices, zeros, shape, check_invariants=False)
    a, b = ([part.contiguous() for part in x.chunk(heads, 1)] for x in (problem.a, problem.b))

    def call() -> torch.Tensor:
        products = [torch.sparse.sampled_addmm(pattern, a[h], b[h].T, beta=0).values() for h in range(heads)]
        return torch.stack(products, 1)

    return call


def _dgl(problem: SddmmProblem, op: str) -> Call:
    """DGL's kernel, with 32-bit ids and all formats made in advance."""
    import dgl

    src, dst = problem.edge_index.int()
    graph = dgl.graph((src, dst), num_nodes=problem.csr.num_rows, idtype=torch.int32)
    graph.create_formats_()
    if op == "add":
        return lambda: dgl.ops.gsddmm(graph, "add", problem.a, problem.b, "v", "u")
    a, b = (x.view(len(x), problem.heads, -1) for x in (problem.a, problem.b))
    return lambda: dgl.ops.gsddmm(graph, "dot", a, b, "v", "u")[..., 0]


def _gather(problem: SddmmProblem, op: str) -> Call:
    return gather_on(problem.device, problem.csr, problem.b)


def _gather_int8(problem: SddmmProblem, op: str) -> Call:
    return gather_on(problem.device, problem.csr, int8_sized(problem.b))


_GATHER, _GATHER_INT8 = "ceiling.gather", "ceiling.gather.int8"
_OF_INT8: dict[str, Any] = {"tolerance": 5e-2, "dtype": "int8", "ceiling": _GATHER_INT8}


def _line_up(modules: tuple[str, ...] = ()) -> tuple[Contender, ...]:
    """The contenders. modules: modules that the ceilings need."""
    return (
        Contender("ours", "ours float32", "ours", _ours, directions=EDGE_OPS, ceiling=_GATHER),
        Contender("ours.int8", "ours int8", "ours.int8", _ours_int8, directions=("dot",), **_OF_INT8),
        Contender("ours.int8.alone", "ours int8, codes given", "ours.int8.alone", _ours_int8_alone,
                  directions=("dot",), **_OF_INT8),
        Contender("exact", "EXACT-like storage", "exact", _exact, directions=EDGE_OPS, dtype="int8",
                  ceiling=_GATHER),
        Contender("dgl", "DGL float32", "dgl", _dgl, ("dgl",), directions=EDGE_OPS, ceiling=_GATHER),
        Contender("torch", "torch, gather and sum", "torch", _torch, directions=EDGE_OPS, ceiling=_GATHER),
        Contender("torch.sampled", "torch sampled_addmm", "torch", _torch_sampled, directions=("dot",),
                  ceiling=_GATHER),
        Contender(_GATHER, "row-gather ceiling", "ceiling", _gather, modules, directions=EDGE_OPS, tolerance=None),
        Contender(_GATHER_INT8, "row-gather ceiling, int8 rows", "ceiling", _gather_int8, modules, directions=EDGE_OPS,
                  tolerance=None, dtype="int8"),
        Contender("ceiling.copy", "copy of b", "ceiling", lambda problem, _: copy_call(problem.b), directions=EDGE_OPS,
                  tolerance=None),
    )  # fmt: skip


HOST, DEVICE = ({each.name: each for each in _line_up(modules)} for modules in ((), ("triton",)))


def by_name(device: str) -> dict[str, Contender]:
    """The contenders on a device, given by torch's name."""
    return HOST if device == HOST_NAME else DEVICE
