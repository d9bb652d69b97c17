"""The input layer of graphs whose nodes have types: it gives all nodes rows of one width, which layers aggregate and ranks send.

``h_v = x_v W_t + b_t + e_v`` for a node v of type t. The features of each type have columns of their own in x, so all W_t
together are one matrix W. Sparse x give one product, dense ones a product for each type. e_v is a row for node v alone, if
``--embed`` names its type: it is a parameter that only the owner of v holds, because no other rank needs it or its gradient.
"""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import index_array
from hpcgnn.data.schema import GraphMeta
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.node_types import FeaturesByType
from hpcgnn.kernels import Csr, dense, keyed, spmm
from hpcgnn.kernels.autograd import Gradients, recorded
from hpcgnn.nn.config import FLOAT32, ModelConfig
from hpcgnn.nn.layers import xavier
from hpcgnn.nn.linear import Compute, Given, matmul, operand

ALL = "all"
_EMBEDDING = int.from_bytes(b"embed", "big")  # takes the place of a layer in the key of the initial values


class TypedInput(torch.nn.Module):
    """(n, F) features, dense or sparse, to (n, H). Not collective.

    weight: (F, H), or None without features. bias: (T, H), for T types of nodes, or 1. embedding: (m, H) rows of this rank's m
    nodes of the types that are embedded, in the graph's order, or None; ``embedded``: their numbers among all such nodes of the
    graph, in the order of original ids, and ``num_embedded`` the number of these. The initial values of a row follow from the
    seed and the original id, uniform with variance 1 / H. Adam does not move a row without a gradient if weight decay is 0.
    """

    def __init__(self, graph: LocalGraph, width: int, embed: str, seed: int, compute: Compute, backend: str) -> None:
        super().__init__()
        meta, self.compute, self.backend = graph.meta, compute, backend
        ids = index_array(graph.original_ids)
        self.weight = xavier(meta.num_features, width) if meta.num_features else None
        self.bias = torch.nn.Parameter(torch.zeros(max(len(meta.node_types), 1), width))
        kinds = index_array(graph.node_type)
        device = graph.device.torch_device
        self._kinds = Csr(np.arange(ids.size + 1), kinds, self.bias.shape[0]).to(device)
        chosen = embedded_types(meta, embed, str(graph.path))
        self.embedded, self.num_embedded, self.embedding, self._places = np.empty(0, np.int64), 0, None, None
        if not chosen:
            return
        first = meta.node_type_offsets
        sizes = np.where(np.isin(np.arange(first.size - 1), chosen), np.diff(first), 0)
        before = np.cumsum(sizes) - sizes  # embedded nodes of the types before
        has_row = np.isin(kinds, chosen)
        self.embedded, self.num_embedded = (ids - first[kinds] + before[kinds])[has_row], int(sizes.sum())
        self.embedding = torch.nn.Parameter(initial_rows(ids[has_row], width, seed))
        indptr = np.concatenate(([0], np.cumsum(has_row)))
        self._places = Csr(indptr, np.arange(self.embedded.size), max(self.embedded.size, 1)).to(device)

    def forward(self, x: Given) -> torch.Tensor:
        """x: of this rank's nodes, (n, 0) if there are no features."""
        h = spmm(self._kinds, self.bias, backend=self.backend)
        if self._places is not None and self.embedding is not None and self.embedded.size:
            h = h + spmm(self._places, self.embedding, backend=self.backend)
        if self.weight is None:
            return h
        if isinstance(x, FeaturesByType):
            return _add_products(h, self.weight, x, self.backend)
        return matmul(operand(x, self.compute), self.weight, self.backend, plus=h)


def _add_products(h: torch.Tensor, weight: torch.Tensor, x: FeaturesByType, backend: str) -> torch.Tensor:
    """``h`` (n, H), with the product of each type's features and its rows of W (F, H) added in its memory."""

    def run(ctx: Any, h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(h)
        for place, block, first in zip(x.places, x.blocks, x.first_columns, strict=True):
            own, kernels = weight[first : first + block.shape[1]], dense.kernels_for(block, backend)
            if isinstance(place, slice):
                dense.run_product(kernels, block, own, None, h[place], FLOAT32)
            else:
                h.index_add_(0, place, dense.run_product(kernels, block, own, None, None, FLOAT32))
        return h

    def back(_: Any, dh: torch.Tensor) -> Gradients:
        of_types = [
            dense.run_weight_gradient(dense.kernels_for(block, backend), block, dh[place])[0]
            for place, block in zip(x.places, x.blocks, strict=True)
        ]
        return dh, torch.cat(of_types)

    return recorded(run, back, h, weight)


def has_input_layer(config: ModelConfig, graph: LocalGraph) -> bool:
    """Return whether a model for this graph begins with a :class:`TypedInput`."""
    return bool(graph.meta.node_types or config.embed or not config.layers)


def embedded_types(meta: GraphMeta, embed: str, where: str) -> list[int]:
    """The numbers of the types that ``--embed`` names: some types with commas between, as in a line of csv, ``all``, or "" for
    none. A graph without types has one, 0. Raises HpcgnnError for other names."""
    if not embed:
        return []
    names = [each.name for each in meta.node_types]
    if embed == ALL:
        return list(range(max(len(names), 1)))
    chosen = [name for line in csv.reader(embed.splitlines()) for name in line]
    if unknown := [name for name in chosen if name not in names]:
        told = [f'"{name}"' if "," in name else name for name in names]
        has = f"it has {', '.join(told)}, or all" if names else "its nodes have no types: say all"
        raise HpcgnnError(f"--embed: {where} has no type of nodes {unknown[0]!r}; {has}")
    return [number for number, name in enumerate(names) if name in chosen]


def initial_rows(ids: np.ndarray, width: int, seed: int) -> torch.Tensor:
    """(m, width) float32 initial rows of the nodes with these original ids, the same on any number of ranks."""
    hashes = keyed.row_hashes(keyed.derive_key(seed, 0, _EMBEDDING), ids)
    draws = keyed.draws(hashes[:, np.newaxis], np.arange(width))
    return torch.from_numpy(((draws / 2.0**31 - 1) * (3 / width) ** 0.5).astype(np.float32))
