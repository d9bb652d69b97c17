"""The contenders that multiply at the edges of a graph: for each entry (r, c) of its matrix, row r of ``a`` and row c of ``b``.
*dot* computes a dot product for each head, *add* the sum of both rows. The time of a call includes quantization."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import Csr, edges, int8
from hpcgnn.lab.bench.ceilings import copy_call, gathers
from hpcgnn.lab.bench.names import EDGE_OPS, HOST_NAME
from hpcgnn.lab.bench.problem import Call, Contender, Prepare, Problem

_KEYS = (1, 2)  # keys of the rounding noise of a and b, which training uses as well
# Entries whose rows torch gathers at a time: the rows of a million entries would take gigabytes.
_CHUNK, _CHUNK_ON_DEVICE = 1 << 12, 1 << 18


class SddmmProblem(Problem):
    """A matrix, ``a`` (rows, width) and ``b`` (columns, width); *dot* multiplies ``heads`` groups of columns."""

    def __init__(self, csr: Csr, width: int, heads: int, device: Device = CPU) -> None:
        super().__init__(csr, width, device)
        self.heads, self.a, self.b = heads, self.dz, self.x

    def operand(self, direction: str) -> tuple[Csr, torch.Tensor]:
        """The matrix, and ``b``, whose rows it names."""
        return self.csr, self.b

    def product(self, op: str) -> torch.Tensor:
        """Our result in float32."""
        return edges.sddmm(self.csr, self.a, self.b, op, self.heads if op == "dot" else None)

    def quantized(self) -> tuple[int8.Int8Rows, int8.Int8Rows]:
        """``a`` and ``b`` in 8-bit integers."""
        return int8.quantize_rows(self.a, key=_KEYS[0]), int8.quantize_rows(self.b, key=_KEYS[1])


def _ours_int8(problem: SddmmProblem, op: str, *, alone: bool) -> Call:
    given = problem.quantized() if alone else None
    return lambda: int8.sddmm(problem.csr, *(given or problem.quantized()), heads=problem.heads)


def _exact(problem: SddmmProblem, op: str) -> Call:
    """Quantizes both operands, to keep them for backward, and multiplies in float32."""
    kept = list(problem.quantized())

    def call() -> torch.Tensor:
        kept[:] = problem.quantized()
        return problem.product(op)

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


def _made(name: str, label: str, prepare: Prepare, **changes: Any) -> Contender:
    return Contender(name, label, prepare, **({"directions": EDGE_OPS, "ceiling": "ceiling.gather"} | changes))


def _line_up(*modules: str) -> dict[str, Contender]:
    """The contenders by name. modules: modules that the ceilings need."""
    of_int8: dict[str, Any] = {
        "tolerance": 5e-2,
        "dtype": "int8",
        "ceiling": "ceiling.gather.int8",
        "directions": ("dot",),
    }
    contenders = (
        _made("ours", "ours float32", lambda problem, op: lambda: problem.product(op)),
        _made("ours.int8", "ours int8", partial(_ours_int8, alone=False), **of_int8),
        _made("ours.int8.alone", "ours int8, codes given", partial(_ours_int8, alone=True), **of_int8),
        _made("exact", "EXACT-like storage", _exact, dtype="int8"),
        _made("dgl", "DGL float32", _dgl, modules=("dgl",)),
        _made("torch", "torch, gather and sum", _torch),
        _made("torch.sampled", "torch sampled_addmm", _torch_sampled, directions=("dot",)),
        *gathers(modules, EDGE_OPS),
        _made("ceiling.copy", "copy of b", lambda problem, _: copy_call(problem.b), tolerance=None, ceiling=""),
    )
    return {each.name: each for each in contenders}


HOST, DEVICE = _line_up(), _line_up("triton")


def by_name(device: str) -> dict[str, Contender]:
    """The contenders on a device, given by torch's name."""
    return HOST if device == HOST_NAME else DEVICE
