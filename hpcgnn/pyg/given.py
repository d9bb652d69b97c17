"""The arguments of a distributed model's calls: plain tensors, and the kinds of their rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hpcgnn.base.arguments import is_plain
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.pyg.row_mode import RowMode
from hpcgnn.pyg.rows import EDGES, ENDS, NODES, plain
from hpcgnn.pyg.tiny_graph import GRAPH, Call, Rows, real_call

_KEPT = 8


class Given:
    """Arguments of calls, made what layers take. before_new: called with each :class:`Call` of a new kind, a
    rehearsal."""

    def __init__(self, graph: LocalGraph) -> None:
        self.graph = graph
        self.before_new: Callable[[Call], None] | None = None
        self._signature: inspect.Signature | None = None  # of the model's forward
        self._kinds: dict[Any, list[str | None]] = {}  # by what is the same in calls on all ranks
        self._made: list[tuple[torch.Tensor, torch.Tensor]] = []

    def prepare(
        self, model: torch.nn.Module, mode: RowMode, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as plain, dense tensors whose rows ``mode`` knows. Collective in the first call of each kind."""
        self._signature = self._signature or inspect.signature(model.forward)
        bound = self._signature.bind(*inputs, **named)
        first = next(iter(bound.arguments), None)
        bound.arguments = {
            name: pytree.tree_map(lambda leaf, name=name: self._plain(model, name, leaf, dense=name == first), value)
            for name, value in bound.arguments.items()
        }
        leaves, tree = pytree.tree_flatten(dict(bound.arguments))
        described = str(tree), *(type(leaf).__name__ for leaf in leaves)
        if described not in self._kinds:
            call = real_call(dict(bound.arguments), self.graph)
            if self.before_new is not None:
                self.before_new(call)
            kinds = pytree.tree_leaves(call.arguments)
            self._kinds[described] = [leaf.kind if isinstance(leaf, Rows) else None for leaf in kinds]
        for leaf, kind in zip(leaves, self._kinds[described], strict=True):
            if kind == GRAPH:
                mode.mark([leaf.x, leaf.y, leaf.original_ids, *leaf.masks.values()], NODES)
                mode.mark(leaf.edge_weight, EDGES)
            elif kind is not None and leaf is not self.graph.edge_index:
                mode.mark(leaf, kind, int(kind == ENDS))
        return bound.args, bound.kwargs

    def _plain(self, model: torch.nn.Module, name: str, leaf: Any, *, dense: bool) -> Any:
        """A tensor of torch's own class: subclasses do not reach kernels. The same object is made for the same tensor."""
        if type(leaf).__name__ == "SparseTensor":
            raise self._sparse(model, name)
        if not isinstance(leaf, torch.Tensor) or (is_plain(leaf) and leaf.layout == torch.strided):
            return leaf
        for given, made in self._made:
            if given is leaf:
                return made
        if leaf.layout == torch.strided:
            made = plain(leaf)
        elif leaf.layout == torch.sparse_csr and dense:
            made = leaf.to_dense()
        else:
            raise self._sparse(model, name)
        self._made = [*self._made[-(_KEPT - 1) :], (leaf, made)]
        return made

    @staticmethod
    def _sparse(model: torch.nn.Module, name: str) -> HpcgnnError:
        return HpcgnnError(
            f"{type(model).__name__} cannot be called with a sparse matrix as {name}: a distributed model takes "
            "graph.edge_index, and values of edges as a tensor of their own"
        )
