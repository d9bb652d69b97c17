"""The contenders in aggregation on the host and on a GPU: ours and its variants, and those from other libraries, each used in its
fastest way. Formats, transposes and 32-bit indices are made in advance wherever a library takes them. Backward is the library's
own autograd; if that makes the transpose in every call, a second contender keeps it (``.kept``), and the faster one represents
the library."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from hpcgnn.kernels import Csr, spmm
from hpcgnn.kernels.buffers import BufferPool
from hpcgnn.kernels.int8 import quantize_rows
from hpcgnn.kernels.spmm import DEFAULT_TUNING, NativeSpmm, Tuning
from hpcgnn.lab.bench.ceilings import copy_call, gather_call, gathers
from hpcgnn.lab.bench.names import ABLATION, HOST_NAME
from hpcgnn.lab.bench.problem import Call, Contender, Problem, Special, autograd_call

_KEY = 1  # key of the rounding noise of 8-bit integers, as in training
# Values that switch a field off, where this is not 0 or the other boolean.
_OFF = {"tile_bytes": 64, "tasks_a_thread": 1}


class Aggregate(torch.autograd.Function):
    """``csr @ x`` whose backward is the product with the kept transpose, as in training."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, csr: Csr, weight: torch.Tensor | None, backend: str) -> torch.Tensor:
        """The product, (rows, width) in a new tensor."""
        ctx.csr, ctx.backend = (csr if weight is None else csr.with_weight(weight)).transpose(), backend
        return spmm(csr, x, weight, backend=backend)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """The gradient of ``x``."""
        return spmm(ctx.csr, grads[0], backend=ctx.backend), None, None, None


def _ours(problem: Problem, direction: str, backend: str) -> Call:
    """Our aggregation as training runs it."""
    problem.csr.transpose()
    return autograd_call(lambda x: Aggregate.apply(x, problem.csr, None, backend), problem, direction)


def _weighted(problem: Problem, direction: str, backend: str) -> Call:
    weight = problem.weight
    if direction == "forward":
        return lambda: spmm(problem.csr, problem.x, weight, backend=backend)
    return autograd_call(lambda x: Aggregate.apply(x, problem.csr, weight, backend), problem, direction)


def _bfloat16(problem: Problem, direction: str, backend: str) -> Call:
    csr, x = problem.operand(direction)
    narrow = x.bfloat16()
    return lambda: spmm(csr, narrow, backend=backend)


def _int8(problem: Problem, direction: str, backend: str) -> Call:
    # A row's largest magnitude becomes 127: spmm could gather such rows where accuracy allows it.
    csr, x = problem.operand(direction)
    scale = x.abs().amax(1).clamp(min=1e-30) / 127
    narrow = (x / scale[:, None]).round().to(torch.int8)
    return lambda: spmm(csr, narrow, scale=scale, backend=backend)


def _int8_counted(problem: Problem, direction: str, backend: str) -> Call:
    csr, x = problem.operand(direction)

    def call() -> torch.Tensor:
        rows = quantize_rows(x, key=_KEY)
        return spmm(csr, rows.codes, backend=backend, scale=rows.scale)

    return call


def _stored(problem: Problem, direction: str, backend: str) -> Call:
    """Keeps x in 8 bits from forward to backward, and adds in float32."""
    csr, x = problem.operand(direction)
    kept = [quantize_rows(problem.x, key=_KEY)]

    def call() -> torch.Tensor:
        if direction == "forward":
            kept[0] = quantize_rows(x, key=_KEY)
        else:
            kept[0].float()
        return spmm(csr, x, backend=backend)

    return call


def _tuned(problem: Problem, direction: str, tuning: Tuning) -> Call:
    csr, x = problem.operand(direction)

    def call() -> torch.Tensor:
        out = torch.empty(csr.num_rows, x.shape[1])
        NativeSpmm().spmm(csr, None, x, None, False, out, tuning)
        return out

    return call


def _tuning_variants() -> Iterator[Contender]:
    """Ours with each field of :class:`Tuning` switched off, or on if it is off by default."""
    for field in dataclasses.fields(Tuning):
        usual = getattr(DEFAULT_TUNING, field.name)
        other = not usual if isinstance(usual, bool) else _OFF.get(field.name, 0)
        changes: dict[str, Any] = {field.name: other}
        tuning = dataclasses.replace(DEFAULT_TUNING, **changes)
        label = f"{field.name} {usual} → {other}".replace("True", "on").replace("False", "off")
        yield Contender(f"ours.tuning.{field.name}", label, partial(_tuned, tuning=tuning), modes=(ABLATION,))


def _in_huge_pages(problem: Problem, direction: str) -> tuple[Csr, torch.Tensor]:
    csr, x = problem.operand(direction)
    return csr, BufferPool().empty(*x.shape).copy_(x)


def _huge_pages(problem: Problem, direction: str) -> Call:
    csr, x = _in_huge_pages(problem, direction)
    return lambda: spmm(csr, x, backend="native")


def _copy(problem: Problem, direction: str) -> Call:
    return copy_call(problem.operand(direction)[1])


def _select(problem: Problem, direction: str) -> Call:
    csr, x = problem.operand(direction)
    indices = csr.indices.long()
    return lambda: torch.index_select(x, 0, indices)


# -- other libraries ---------------------------------------------------------------------------------------------------


def _pyg_conv(problem: Problem, direction: str) -> Call:
    """A PyG layer on ``edge_index``: it runs ``index_select``, then ``scatter_add_`` with an expanded index."""
    from torch_geometric.nn import SimpleConv

    layer, edge_index = SimpleConv(aggr="sum"), problem.edge_index
    return autograd_call(lambda x: layer(x, edge_index), problem, direction)


def _index_add(problem: Problem, direction: str, *, compiled: bool = False) -> Call:
    """A gather and a sum, which ``torch.compile`` fuses."""
    src, dst = problem.edge_index

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(problem.csr.num_rows, x.shape[1]).index_add_(0, dst, x[src])

    return autograd_call(torch.compile(function) if compiled else function, problem, direction)


def _pyg_scatter(problem: Problem, direction: str) -> Call:
    """A layer that users write themselves: a gather, then PyG's ``scatter``."""
    from torch_geometric.utils import scatter

    src, dst = problem.edge_index
    rows = problem.csr.num_rows
    return autograd_call(lambda x: scatter(x[src], dst, 0, rows, "sum"), problem, direction)


def _pyg_edge_index(problem: Problem, direction: str) -> Call:
    """PyG's ``EdgeIndex``, sorted by destination, with both CSR forms cached. ``matmul`` uses these; layers fall back to
    scatter."""
    from torch_geometric import EdgeIndex

    sizes = (problem.csr.num_rows, problem.csr.num_cols)
    adjacency = EdgeIndex(problem.edge_index.flip(0), sparse_size=sizes, sort_order="row").fill_cache_()
    return autograd_call(lambda x: adjacency.matmul(x), problem, direction)


def _sparse_tensor(problem: Problem, value: torch.Tensor | None) -> Any:
    from torch_sparse import SparseTensor

    csr, (column, row) = problem.csr, problem.edge_index
    sizes = (csr.num_rows, csr.num_cols)
    adjacency = SparseTensor(
        row=row, rowptr=csr.indptr, col=column, value=value, sparse_sizes=sizes, is_sorted=True, trust_data=True
    )
    adjacency.fill_cache_()
    return adjacency


def _pyg_sparse_tensor(problem: Problem, direction: str) -> Call:
    from torch_geometric.nn import SimpleConv

    layer, adjacency = SimpleConv(aggr="sum"), _sparse_tensor(problem, _ones(problem.csr))
    return autograd_call(lambda x: layer(x, adjacency), problem, direction)


def _torch_sparse(problem: Problem, direction: str) -> Call:
    import torch_sparse

    adjacency = _sparse_tensor(problem, None)
    return autograd_call(lambda x: torch_sparse.matmul(adjacency, x), problem, direction)


def _torch_csr(csr: Csr, dtype: torch.dtype = torch.int32, values: torch.dtype = torch.float32) -> torch.Tensor:
    indptr, indices, ones = csr.indptr.to(dtype), csr.indices.to(dtype), _ones(csr).to(values)
    return torch.sparse_csr_tensor(indptr, indices, ones, (csr.num_rows, csr.num_cols), check_invariants=False)


def _ones(csr: Csr) -> torch.Tensor:
    return torch.ones(csr.num_entries, device=csr.device)


def _torch_mm(problem: Problem, direction: str) -> Call:
    # The backward pass sorts by row * columns + column in the indices' type: 32 bits would overflow and give wrong gradients.
    matrix = _torch_csr(problem.csr, torch.int32 if direction == "forward" else torch.int64)
    return autograd_call(lambda x: torch.sparse.mm(matrix, x, "sum"), problem, direction)


def _torch_matmul(problem: Problem, direction: str) -> Call:
    matrix = _torch_csr(problem.csr)
    return autograd_call(lambda x: matrix @ x, problem, direction)


def _torch_kept(problem: Problem, direction: str, *, is_named: bool) -> Call:
    csr, x = problem.operand(direction)
    matrix = _torch_csr(csr)
    return (lambda: torch.sparse.mm(matrix, x, "sum")) if is_named else (lambda: matrix @ x)


def _torch_bfloat16(problem: Problem, direction: str) -> Call:
    """The one product of torch that takes bfloat16 on a CPU. Its sums are rounded to bfloat16."""
    csr, x = problem.operand(direction)
    matrix, narrow = _torch_csr(csr, values=torch.bfloat16), x.bfloat16()
    return Special(lambda: torch.sparse.mm(matrix, narrow, "sum"), torch.Tensor.float)


def _mkl(problem: Problem, direction: str) -> Call:
    from hpcgnn.lab.bench.mkl import MklProduct

    csr, x = problem.operand(direction)
    return partial(MklProduct(csr, x.shape[1]), x)


def _dgl(problem: Problem, direction: str) -> Call:
    """DGL's kernel with 32-bit ids and both formats made in advance; backward is the same kernel on the reverse graph."""
    import dgl

    src, dst = problem.edge_index.int()
    graph = dgl.graph((src, dst), num_nodes=problem.csr.num_rows, idtype=torch.int32).formats(["csr", "csc"])
    graph.create_formats_()
    return autograd_call(lambda x: dgl.ops.copy_u_sum(graph, x), problem, direction)


# -- the contenders of a device, in the order in which they are measured ------------------------------------------------
#
# PyG's that store a row for each edge come last: memory that later contenders keep would divide the memory that they need.

_PYG, _TORCH_SPARSE, _BOTH = ("torch_geometric",), ("torch_geometric", "torch_sparse"), ("kernel", "user")
_OF_PYG = (
    Contender("pyg.edge_index", "PyG EdgeIndex", _pyg_edge_index, _PYG),
    Contender("pyg.sparse_tensor", "PyG layer, SparseTensor", _pyg_sparse_tensor, _TORCH_SPARSE),
    Contender("torch_sparse", "torch_sparse.matmul", _torch_sparse, _TORCH_SPARSE),
)
_OF_EDGES = (
    Contender("pyg.layer", "PyG layer, gather + scatter", _pyg_conv, _PYG, modes=_BOTH),
    Contender("pyg.index_add", "PyG gather + index_add", _index_add, modes=_BOTH),
)


def _with(prepare: Any, backend: str, name: str, label: str, **others: Any) -> Contender:
    """A contender of ours with the kernels of ``backend``."""
    return Contender(name, label, partial(prepare, backend=backend), **others)


def _kept(name: str, label: str, *, is_named: bool, modes: tuple[str, ...] = ("kernel",)) -> Contender:
    prepare = partial(_torch_kept, is_named=is_named)
    return Contender(f"{name}.kept", f"{label}, kept transpose", prepare, directions=("backward",), modes=modes)


def _narrow(backend: str, gather_int8: Contender) -> tuple[Contender, ...]:
    """Ours with weights, and with features stored in fewer bytes; then those with other types (``--dtype``), whose times include
    all conversions."""
    return (
        _with(_weighted, backend, "ours.weighted", "ours, weighted", tolerance=None),
        _with(_bfloat16, backend, "ours.bf16", "ours, bfloat16 storage", tolerance=2e-2),
        _with(_int8, backend, "ours.int8", "ours, int8 storage", tolerance=5e-2),
        _with(_int8_counted, backend, "ours.int8.counted", "ours int8, quantization counted", tolerance=5e-2,
              dtype="int8", ceiling="ceiling.gather.int8"),
        _with(_stored, backend, "exact", "EXACT-like storage", dtype="int8", ceiling="ceiling.gather"),
        gather_int8,
    )  # fmt: skip


def _by_name(*contenders: Contender) -> dict[str, Contender]:
    return {each.name: each for each in contenders}


def _host() -> dict[str, Contender]:
    gather, gather_int8 = gathers(())
    return _by_name(
        _with(_ours, "native", "ours", "ours", modes=(*_BOTH, ABLATION)),
        _with(_ours, "jit", "ours.jit", "ours, numba", modes=_BOTH),
        Contender("dgl", "DGL (libxsmm)", _dgl, ("dgl",), modes=_BOTH),
        Contender("torch.mm", 'torch.sparse.mm(A, x, "sum")', _torch_mm, modes=_BOTH),
        _kept("torch.mm", "torch.sparse.mm", is_named=True, modes=_BOTH),
        Contender("torch.csr", "torch CSR A @ x", _torch_matmul),
        _kept("torch.csr", "torch CSR", is_named=False),
        Contender("torch.bf16", "torch.sparse.mm, bfloat16, kept transpose", _torch_bfloat16, tolerance=2e-2),
        Contender("mkl", "MKL, inspected, kept transpose", _mkl, ("sparse_dot_mkl",)),
        *_OF_PYG,
        *_tuning_variants(),
        Contender("ours.huge", "features in huge pages too", _huge_pages, modes=(ABLATION,)),
        dataclasses.replace(gather, modes=("kernel", ABLATION)),
        Contender("ceiling.gather.huge", "row-gather ceiling, features in huge pages",
                  lambda problem, direction: gather_call(*_in_huge_pages(problem, direction)), tolerance=None, modes=(ABLATION,)),
        Contender("ceiling.copy", "copy", _copy, tolerance=None),
        *_narrow("native", gather_int8),
        *_OF_EDGES,
    )  # fmt: skip


def _device() -> dict[str, Contender]:
    """The kernels are those that training uses on the device. torch.sparse.mm takes no name of a reduction on a GPU, and runs the
    product of cuSPARSE (rocSPARSE)."""
    gather, gather_int8 = gathers(("triton",))
    return _by_name(
        _with(_ours, "auto", "ours", "ours"),
        Contender("dgl", "DGL", _dgl, ("dgl",)),
        Contender("torch.mm", "torch.sparse.mm (cuSPARSE)", _torch_matmul),
        _kept("torch.mm", "torch.sparse.mm (cuSPARSE)", is_named=False),
        Contender("compiled", "torch.compile, gather + index_add", partial(_index_add, compiled=True)),
        *_OF_PYG,
        gather,
        Contender("ceiling.copy", "copy", _copy, tolerance=None),
        Contender("ceiling.select", "row gather that is written (index_select)", _select, tolerance=None),
        *_narrow("auto", gather_int8),
        *_OF_EDGES,
        Contender("pyg.scatter", "PyG gather + utils.scatter", _pyg_scatter, _PYG),
    )


HOST, DEVICE = _host(), _device()


def by_name(device: str) -> dict[str, Contender]:
    """The contenders on a device, given by torch's name, such as ``cuda:0``."""
    return HOST if device == HOST_NAME else DEVICE
