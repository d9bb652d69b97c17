"""The contenders from other libraries, each used in its fastest way.

Formats, transposes and 32-bit indices are made in advance wherever a library takes them. Backward is the library's own autograd.
If that makes the transpose in every call, a second contender keeps the transpose (``.kept``), and the faster of both represents
the library. A contender runs on the device of the problem's tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.kernels import Csr
from hpcgnn.lab.bench.problem import Call, Contender, Problem, autograd_call


def _pyg_conv(problem: Problem, direction: str) -> Call:
    """A PyG layer on ``edge_index``: it runs ``index_select``, then ``scatter_add_`` with an expanded index."""
    from torch_geometric.nn import SimpleConv

    layer, edge_index = SimpleConv(aggr="sum"), problem.edge_index
    return autograd_call(lambda x: layer(x, edge_index), problem, direction)


def _pyg_index_add(problem: Problem, direction: str) -> Call:
    src, dst = problem.edge_index
    rows = problem.csr.num_rows
    return autograd_call(lambda x: x.new_zeros(rows, x.shape[1]).index_add_(0, dst, x[src]), problem, direction)


def _pyg_scatter(problem: Problem, direction: str) -> Call:
    """A layer that users write themselves: a gather, then PyG's ``scatter``."""
    from torch_geometric.utils import scatter

    src, dst = problem.edge_index
    rows = problem.csr.num_rows
    return autograd_call(lambda x: scatter(x[src], dst, 0, rows, "sum"), problem, direction)


def _compiled(problem: Problem, direction: str) -> Call:
    """``torch.compile``, which fuses the gather into the sum."""
    src, dst = problem.edge_index
    rows = problem.csr.num_rows
    function = torch.compile(lambda x: x.new_zeros(rows, x.shape[1]).index_add_(0, dst, x[src]))
    return autograd_call(function, problem, direction)


def _pyg_edge_index(problem: Problem, direction: str) -> Call:
    """PyG's ``EdgeIndex``, sorted by destination, with both CSR forms cached. ``matmul`` uses these; layers fall back to
    scatter."""
    from torch_geometric import EdgeIndex

    sizes = (problem.csr.num_rows, problem.csr.num_cols)
    adjacency = EdgeIndex(problem.edge_index.flip(0), sparse_size=sizes, sort_order="row").fill_cache_()
    return autograd_call(lambda x: adjacency.matmul(x), problem, direction)


def _sparse_tensor(problem: Problem, value: torch.Tensor | None) -> Any:
    from torch_sparse import SparseTensor

    csr = problem.csr
    row = problem.edge_index[1]
    adjacency = SparseTensor(
        row=row, rowptr=csr.indptr, col=problem.edge_index[0], value=value, sparse_sizes=(csr.num_rows, csr.num_cols),
        is_sorted=True, trust_data=True,
    )  # fmt: skip
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


def _torch_csr(csr: Csr, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    indptr, indices, ones = csr.indptr.to(dtype), csr.indices.to(dtype), _ones(csr)
    return torch.sparse_csr_tensor(indptr, indices, ones, (csr.num_rows, csr.num_cols), check_invariants=False)


def _ones(csr: Csr) -> torch.Tensor:
    return torch.ones(csr.num_entries, device=csr.device)


def _torch_mm(problem: Problem, direction: str) -> Call:
    # The backward pass sorts by row * columns + column in the indices' type: 32 bits would overflow and give wrong gradients.
    matrix = _torch_csr(problem.csr, torch.int32 if direction == "forward" else torch.int64)
    return autograd_call(lambda x: torch.sparse.mm(matrix, x, "sum"), problem, direction)


def _torch_mm_kept(problem: Problem, direction: str) -> Call:
    csr, x = problem.operand(direction)
    matrix = _torch_csr(csr)
    return lambda: torch.sparse.mm(matrix, x, "sum")


def _torch_matmul(problem: Problem, direction: str) -> Call:
    matrix = _torch_csr(problem.csr)
    return autograd_call(lambda x: matrix @ x, problem, direction)


def _torch_matmul_kept(problem: Problem, direction: str) -> Call:
    csr, x = problem.operand(direction)
    matrix = _torch_csr(csr)
    return lambda: matrix @ x


def _dgl(problem: Problem, direction: str) -> Call:
    """DGL's kernel with 32-bit ids and both formats made in advance; backward is the same kernel on the reverse graph."""
    import dgl

    src, dst = problem.edge_index.int()
    graph = dgl.graph((src, dst), num_nodes=problem.csr.num_rows, idtype=torch.int32).formats(["csr", "csc"])
    graph.create_formats_()
    return autograd_call(lambda x: dgl.ops.copy_u_sum(graph, x), problem, direction)


_BACKWARD = ("backward",)
_PYG, _TORCH_SPARSE = ("torch_geometric",), ("torch_geometric", "torch_sparse")
_OF_PYG = (
    Contender("pyg.edge_index", "PyG EdgeIndex", "pyg.edge_index", _pyg_edge_index, _PYG),
    Contender("pyg.sparse_tensor", "PyG layer, SparseTensor", "pyg.sparse_tensor", _pyg_sparse_tensor, _TORCH_SPARSE),
    Contender("torch_sparse", "torch_sparse.matmul", "torch_sparse", _torch_sparse, _TORCH_SPARSE),
    Contender("pyg.layer", "PyG layer, gather + scatter", "pyg", _pyg_conv, _PYG),
    Contender("pyg.index_add", "PyG gather + index_add", "pyg", _pyg_index_add),
)
RIVALS = (
    Contender("dgl", "DGL (libxsmm)", "dgl", _dgl, ("dgl",)),
    Contender("torch.mm", 'torch.sparse.mm(A, x, "sum")', "torch.mm", _torch_mm),
    Contender("torch.mm.kept", "torch.sparse.mm, kept transpose", "torch.mm", _torch_mm_kept, directions=_BACKWARD),
    Contender("torch.csr", "torch CSR A @ x", "torch.csr", _torch_matmul),
    Contender("torch.csr.kept", "torch CSR, kept transpose", "torch.csr", _torch_matmul_kept, directions=_BACKWARD),
    *_OF_PYG,
)
# On a GPU torch.sparse.mm takes no name of a reduction, and runs the product of cuSPARSE (rocSPARSE).
DEVICE_RIVALS = (
    Contender("dgl", "DGL", "dgl", _dgl, ("dgl",)),
    Contender("torch.mm", "torch.sparse.mm (cuSPARSE)", "torch.mm", _torch_matmul),
    Contender("torch.mm.kept", "torch.sparse.mm (cuSPARSE), kept transpose", "torch.mm", _torch_matmul_kept,
              directions=_BACKWARD),
    Contender("compiled", "torch.compile, gather + index_add", "compiled", _compiled),
    *_OF_PYG,
    Contender("pyg.scatter", "PyG gather + utils.scatter", "pyg", _pyg_scatter, _PYG),
)  # fmt: skip
