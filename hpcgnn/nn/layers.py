"""Layers: x (n, F_in) -> (n, F_out) of n owned nodes. Graph layers compute over an aggregator (:mod:`hpcgnn.nn.aggregator`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch

from hpcgnn.base.host import index_array
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.node_types import FeaturesByType
from hpcgnn.kernels import Csr, DropoutMask, keyed, spmm
from hpcgnn.kernels.activation import Shift, activate, activation_kernels, column_sums, drop, relu_backward
from hpcgnn.kernels.again import is_again, once
from hpcgnn.kernels.autograd import Gradients, may_overwrite, recorded, recorded_linear, tracked
from hpcgnn.kernels.sizes import block_size
from hpcgnn.nn.activations import Activations
from hpcgnn.nn.aggregated_product import Order, aggregated_product
from hpcgnn.nn.aggregator import Aggregator, CachedAggregator
from hpcgnn.nn.aggregators import Relations
from hpcgnn.nn.edge_blocks import EdgeFeatures, relu_sums
from hpcgnn.nn.grouped import block_products
from hpcgnn.nn.halo import AttentionEdges
from hpcgnn.nn.linear import Compute, Features, Given, LabelledFeatures, matmul, operand
from hpcgnn.nn.on_disk import add_scaled
from hpcgnn.nn.own_rows import sums_with_own
from hpcgnn.nn.whole_graph import mean_over_ranks, sum_over_ranks
from hpcgnn.world import World

_ROWS_AT_ONCE = 1 << 12  # limits memory of products in float64


def linear_first(in_width: int, out_width: int, *, needs_gradient: bool, is_sparse: bool) -> bool:
    """Return whether transforming before aggregating sends fewer bytes, forward and backward together.

    Features need no gradient unless labels are embedded in them, so aggregating features first saves the backward exchange.
    Sparse features are always transformed first.
    """
    aggregate_first_width = 2 * in_width if needs_gradient else in_width
    return is_sparse or 2 * out_width < aggregate_first_width


def xavier(*shape: int) -> torch.nn.Parameter:
    """A matrix of weights, drawn as Glorot and Bengio do."""
    return torch.nn.Parameter(torch.nn.init.xavier_uniform_(torch.empty(*shape)))


def matrices(count: int, *shape: int) -> torch.nn.Parameter:
    """(count, ...) weights, each drawn as by :func:`xavier`."""
    weight = torch.nn.Parameter(torch.empty(count, *shape))
    for each in weight.flatten(0, -3).unbind():
        torch.nn.init.xavier_uniform_(each)
    return weight


def keeps_its_input(_: torch.nn.Module, __: Any) -> bool:
    """The method ``keeps_rows`` of layers that keep one row of a node for gradients, so that backward need not run them again."""
    return True


class BiasedLayer(torch.nn.Module):
    """A layer whose last operation adds a bias to each row of its result."""

    bias: torch.nn.Parameter

    @property
    def last_bias(self) -> torch.nn.Parameter:
        """The vector that is added last, and used nowhere else."""
        return self.bias


class LinearLayer(BiasedLayer, ABC):
    """A layer over a linear aggregator, (n, F_in) to (n, F_out). Its call is collective, forward and backward.

    transform_first: True if rows of the result's width travel, False if rows of the input's width do.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        aggregator: Aggregator | CachedAggregator,
        *,
        transform_first: bool,
        compute: Compute = "float32",
    ) -> None:
        super().__init__()
        self.aggregator, self.transform_first, self.compute = aggregator, transform_first, compute
        self.activations = Activations()
        self.add_weights(in_width, out_width)

    @property
    def order(self) -> Order:
        """The order and the arithmetic of the layer's operations."""
        return Order(self.aggregator, self.transform_first, self.compute, self.activations)

    @abstractmethod
    def add_weights(self, in_width: int, out_width: int) -> None:
        """Make the layer's parameters."""


class GCNLayer(LinearLayer):
    """``Â x W + b`` with ``Â = D^-1/2 (A + I) D^-1/2`` (Kipf & Welling); PyG's ``GCNConv``."""

    keeps_rows = keeps_its_input

    def add_weights(self, in_width: int, out_width: int) -> None:
        self.weight = xavier(in_width, out_width)
        self.bias = torch.nn.Parameter(torch.zeros(out_width))

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        return aggregated_product(self.order, x, self.weight, None, self.bias)


class SAGELayer(LinearLayer):
    """``mean(x_j) W_neighbour + x W_root + b`` (GraphSAGE); PyG's ``SAGEConv`` with mean aggregation."""

    keeps_rows = keeps_its_input

    def add_weights(self, in_width: int, out_width: int) -> None:
        self.weight_neighbour = xavier(in_width, out_width)
        self.weight_root = xavier(in_width, out_width)
        self.bias = torch.nn.Parameter(torch.zeros(out_width))

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        return aggregated_product(self.order, x, self.weight_neighbour, self.weight_root, self.bias)


class Dense(BiasedLayer):
    """``x W + b`` in the arithmetic ``compute``: a :class:`torch.nn.Linear` with W (F_in, F_out)."""

    keeps_rows = keeps_its_input

    def __init__(self, in_width: int, out_width: int, *, compute: Compute = "float32", backend: str = "auto") -> None:
        super().__init__()
        self.compute, self.backend = compute, backend
        self.weight = xavier(in_width, out_width)
        self.bias = torch.nn.Parameter(torch.zeros(out_width))

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        return matmul(operand(x, self.compute), self.weight, self.backend, bias=self.bias)


class GINLayer(LinearLayer):
    """``out(relu(mean_norm(norm(((1 + eps) x + sum_j x_j) W + b))))`` (Xu et al.) with a layer norm, because nodes with many
    neighbours would decide on the scale of a batch norm. PyG's ``GINConv`` with ``train_eps``.

    The first dense layer commutes with the sum, so the cheaper of the two comes first. A model gives what follows ``norm``.
    """

    mean_norm: MeanNorm
    out: Dense

    def add_weights(self, in_width: int, out_width: int) -> None:
        self.eps = torch.nn.Parameter(torch.zeros(1))
        self.weight = xavier(in_width, out_width)
        self.bias = torch.nn.Parameter(torch.zeros(out_width))
        self.norm = torch.nn.LayerNorm(out_width, bias=False)  # the mean norm would subtract a bias again

    @property
    def last_bias(self) -> torch.nn.Parameter:
        return self.out.bias

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        # Each of the functions frees what it has made, but its result.
        return self.out(self.mean_norm.activated(self.norm(self._hidden(x)), None, overwrites=True))

    def _hidden(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, H), before the norm."""
        backend, factor = self.aggregator.backend, 1 + self.eps
        if self.transform_first:
            own = matmul(operand(x, self.compute), self.weight, backend)
            return self.with_own(own, factor).add_(self.bias)
        return matmul(operand(self.with_own(_dense(x), factor), self.compute), self.weight, backend, bias=self.bias)

    def with_own(self, x: torch.Tensor | FeaturesOnDisk, factor: torch.Tensor) -> torch.Tensor:
        """The (n, F) sums over neighbours, plus ``factor * x``."""
        if isinstance(x, FeaturesOnDisk):
            return add_scaled(self.aggregator(x), factor, x)
        if isinstance(self.aggregator, Aggregator):
            return sums_with_own(self.aggregator, x, factor, self.compute)
        return self.aggregator(x) + factor * x


class GINELayer(GINLayer):
    """``MLP((1 + eps) x_i + sum_j relu(x_j + e_ij W_edge + b_edge))`` (Hu et al. 2020); PyG's ``GINEConv`` with ``edge_dim`` and
    ``train_eps``.

    halo: the halo's aggregator, by which rows of the input's width travel. edges: with features ``e`` (entries, D), of which
    there are no rows of F_in columns but those of one block at a time (:mod:`hpcgnn.nn.edge_blocks`): beside the features, the
    layer takes O(n + h) rows of memory, PyG's O(edges). Its call is collective, forward and backward.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        halo: Aggregator | CachedAggregator,
        edges: AttentionEdges,
        compute: Compute = "float32",
    ) -> None:
        super().__init__(in_width, out_width, halo, transform_first=False, compute=compute)
        assert edges.attr is not None
        self.edges = edges
        self.weight_edge = xavier(edges.attr.shape[1], in_width)
        self.bias_edge = torch.nn.Parameter(torch.zeros(in_width))

    def with_own(self, x: torch.Tensor | FeaturesOnDisk, factor: torch.Tensor) -> torch.Tensor:
        assert self.edges.attr is not None
        assert isinstance(x, torch.Tensor), "edges with features have their ends' features in memory"
        under_way = self.aggregator.begin(x)
        scaled = factor * x  # while rows travel
        features = EdgeFeatures(self.edges.attr, self.weight_edge, self.bias_edge)
        return relu_sums(self.edges.csr, under_way.finish(), features, self.aggregator.backend) + scaled


class GCNIILayer(torch.nn.Module):
    """``y W'`` with ``y = (1 - alpha) Â x + alpha x_0`` and ``W' = (1 - beta) I + beta W``; PyG's ``GCN2Conv`` (Chen et al.).

    alpha: share of x_0. beta: ``log(theta / depth + 1)``.
    """

    def __init__(
        self, width: int, aggregator: Aggregator, alpha: float, beta: float, compute: Compute = "float32"
    ) -> None:
        super().__init__()
        self.aggregator, self.alpha, self.beta, self.compute = aggregator, alpha, beta, compute
        self.weight = xavier(width, width)

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """(n, F) and x_0 (n, F) to (n, F). Collective."""
        under_way = self.aggregator.begin(x)
        initial = self.alpha * first  # while rows travel
        y = torch.add(initial, under_way.finish(), alpha=1 - self.alpha)
        identity = torch.eye(y.shape[1], dtype=y.dtype, device=y.device)  # (F, F): small beside y
        return matmul(operand(y, self.compute), identity.lerp(self.weight, self.beta), self.aggregator.backend)


class RGCNLayer(BiasedLayer):
    """``sum_r mean_{j in N_r(i)} x_j W_r + x_i W_root + b`` over relations r (Schlichtkrull et al. 2018, Eq. 2); PyG's
    ``RGCNConv``.

    aggregator, relations: of the sums over the neighbours of each relation, which become means as products are added up, so
    their gradient needs no second (p, F) matrix: it is written over the sums. bases: with B > 0, ``W_r = sum_b a_rb V_b``, Eq. 3.
    blocks: with K > 0, W_r is block-diagonal with K blocks (Eq. 4). Its call is collective, forward and backward.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        aggregator: Aggregator | CachedAggregator,
        relations: Relations,
        *,
        bases: int = 0,
        blocks: int = 0,
        compute: Compute = "float32",
    ) -> None:
        super().__init__()
        self.aggregator, self.relations, self.compute = aggregator, relations, compute
        if isinstance(aggregator, Aggregator):
            aggregator.row_squares, aggregator.row_squares_change = relations.mean_squares, False
        parts = blocks or 1
        self.weight = matrices(bases or len(relations.sizes), parts, in_width // parts, out_width // parts)
        self.mix = xavier(len(relations.sizes), bases) if bases else None
        self.weight_root = xavier(in_width, out_width)
        self.bias = torch.nn.Parameter(torch.zeros(out_width))

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        backend = self.aggregator.backend
        under_way = self.aggregator.begin(_dense(x))
        root = matmul(operand(x, self.compute), self.weight_root, backend, bias=self.bias)  # while rows travel
        sums = under_way.finish()
        weights = self.weight if self.mix is None else torch.tensordot(self.mix, self.weight, 1)
        products = block_products(sums, weights, self.relations.sizes, self.compute, backend, reuse_x=True)
        return spmm(self.relations.means, products, backend=backend).add_(root)


def _dense(x: Features | LabelledFeatures) -> torch.Tensor | FeaturesOnDisk:
    if not isinstance(x, torch.Tensor | FeaturesOnDisk):
        raise TypeError("sparse features must be transformed before they are aggregated")
    return x


class LabelEmbedding(torch.nn.Module):
    """``x + Y E``: ``E[y]`` is added to the features of a node with label ``y``; for multi-label nodes, the sum over their
    labels.

    E is drawn with a root mean square of ``scale``, that of the features. A smaller E vanishes among the features and in the
    rounding error of messages, whose grid spans the range of a row's features; a larger one hides the features.

    Shapes: x (n, F); Y (n, C), with ones where a node's label is an input; E (C, F).
    """

    def __init__(self, num_classes: int, width: int, backend: str = "auto", *, scale: float = 1.0) -> None:
        super().__init__()
        self.backend = backend
        bound = 3**0.5 * scale
        self.weight = torch.nn.Parameter(torch.empty(num_classes, width).uniform_(-bound, bound))

    def forward(self, x: Features, labels: Csr | None) -> Features | LabelledFeatures:
        """``x + Y E``. Sparse features stay sparse: the sum is left to the product that reads them."""
        if labels is None:
            raise ValueError(
                "this model takes labels as inputs: call model(x, labels), with an empty (n, C) Csr for none"
            )
        if isinstance(x, Csr):
            return LabelledFeatures(x, labels, self.weight)
        assert isinstance(x, torch.Tensor), "labels are not added to features on disk"
        return x + spmm(labels, self.weight, backend=self.backend)


def label_matrix(y: torch.Tensor, nodes: torch.Tensor, num_classes: int) -> Csr:
    """(n, C) matrix with ones at the labels of the nodes selected by ``nodes`` (n,) bool. y: (n,) int64 or (n, C) uint8."""
    if y.dim() == 1:
        lengths, indices = nodes.long(), y[nodes]
    else:
        given = (y != 0) & nodes[:, None]
        lengths, indices = given.sum(1), given.nonzero()[:, 1]
    indptr = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    return Csr(indptr, indices, num_classes)  # checked, because a program may have changed the tensor y


@dataclass
class DropoutKeys:
    """The values, beside layer and column, on which a mask depends. The trainer advances ``epoch``.

    ids: (n,) int64 original ids of the owned nodes.
    """

    ids: torch.Tensor
    seed: int = 0
    epoch: int = 0


class KeyedDropout(torch.nn.Module):
    """Set elements to zero with ``probability`` and scale the others by ``1 / (1 - probability)``; the identity in eval mode.

    ``layer`` distinguishes the dropouts of a model. Sparse features (Csr) are dropped exactly as dense ones would be. ids: (n,)
    int64 original ids of the rows, if these are not the owned nodes.
    """

    def __init__(
        self,
        keys: DropoutKeys,
        layer: int,
        probability: float,
        backend: str = "auto",
        *,
        ids: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.keys, self.layer, self.probability, self.backend, self.ids = keys, layer, probability, backend, ids

    def forward(self, x: Given) -> Given:
        mask = self.mask()
        if mask is None:
            return x
        if isinstance(x, FeaturesOnDisk):
            return x.dropped(mask, self.backend)
        if isinstance(x, FeaturesByType):
            of_types = [replace(mask, ids=mask.ids[place]) for place in x.places]
            return x.with_blocks(map(_dropped, x.blocks, of_types, repeat(self.backend)))
        return _drop_sparse(x, mask) if isinstance(x, Csr) else _dropped(x, mask, self.backend)

    def mask(self) -> DropoutMask | None:
        """The mask of this pass, for kernels that apply dropout themselves; None if nothing is dropped."""
        if not self.training or self.probability == 0:
            return None
        key = keyed.derive_key(self.keys.seed, self.keys.epoch, self.layer)
        return DropoutMask(self.keys.ids if self.ids is None else self.ids, key, self.probability)

    def extra_repr(self) -> str:
        return f"p={self.probability}"


def _dropped(x: torch.Tensor, mask: DropoutMask, backend: str) -> torch.Tensor:
    """Dropout whose backward pass computes the mask again, so that it is not kept."""
    again = partial(drop, mask=mask, backend=backend)
    return recorded_linear(x, again, again)


def _drop_sparse(x: Csr, mask: DropoutMask) -> Csr:
    assert x.weight is not None, "sparse features have values"
    if not x.weight.is_cpu:
        draws = keyed.device_draws(keyed.device_row_hashes(mask.key, mask.ids)[x.entry_rows()], x.indices)
        return x.with_weight(torch.where(draws >= mask.threshold, x.weight / (1 - mask.probability), 0))
    hashes = np.repeat(keyed.row_hashes(mask.key, index_array(mask.ids)), index_array(x.row_lengths()))
    kept = keyed.draws(hashes, index_array(x.indices)) >= np.uint32(mask.threshold)
    return x.with_weight(torch.where(torch.from_numpy(kept), x.weight / (1 - mask.probability), 0))


class MeanNorm(torch.nn.Module):
    """``x - mean + bias`` with the mean over the nodes of all ranks: PyG's ``MeanSubtractionNorm`` (Yang et al. 2020), with a
    bias, and with a running mean in evaluations. Collective in training, forward and backward.

    Forward takes x (n, F) and returns a tensor of this shape and type. Rows keep their scale; batch normalisation divides by it,
    which makes rare features as large as common ones.
    """

    def __init__(self, num_features: int, world: World, momentum: float = 0.1, *, backend: str = "auto") -> None:
        super().__init__()
        self.world, self.momentum, self.backend = world, momentum, backend
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.running_mean: torch.Tensor
        self.register_buffer("running_mean", torch.zeros(num_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = mean_over_ranks(x, self.world, self.backend)[0] if self.training else self.running_mean
        return x - (self._noted(mean.to(x.dtype)) - self.bias)

    def _noted(self, mean: torch.Tensor) -> torch.Tensor:
        if self.training and not is_again():
            self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), self.momentum)
        return mean

    def activated(self, x: torch.Tensor, mask: DropoutMask | None, *, overwrites: bool = False) -> torch.Tensor:
        """``dropout(relu(forward(x)))`` in one pass, which keeps a bit of each value for backward; with
        ``overwrites``, over x."""
        averages, total = self.training, 0.0
        kernels = activation_kernels(x, None, mask, self.backend)

        def run(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            nonlocal total
            mean, total = self.running_mean, 1.0
            if averages:
                mean, total = once(lambda: mean_over_ranks(x, self.world, self.backend))
            shift = Shift(bias - self._noted(mean.to(x.dtype)))
            y, positive = activate(kernels, x, shift, mask, overwrites=overwrites)
            if ctx is not None:
                ctx.save_for_backward(positive)
            return y

        def back(ctx: Any, dy: torch.Tensor) -> Gradients:
            (positive,) = ctx.saved_tensors
            sums = torch.empty(dy.shape[1], dtype=torch.float64, device=dy.device)
            dx = relu_backward(kernels, dy, positive, mask, sums, overwrites=may_overwrite(ctx))
            if averages:
                dx -= (sum_over_ranks(sums, self.world) / total).to(dx.dtype)
            return dx, sums.to(dx.dtype)

        return recorded(run, back, x, self.bias) if tracked(x, self.bias) else run(None, x.detach(), self.bias.detach())


class BatchNorm(torch.nn.Module):
    """``torch.nn.BatchNorm1d`` over the nodes of all ranks, with the same formula, parameters and buffers. Collective.

    Forward takes x (n, F). Sums travel as float64, so that any number of ranks gives the same statistics.
    """

    def __init__(
        self, num_features: int, world: World, eps: float = 1e-5, momentum: float = 0.1, *, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.world, self.eps, self.momentum, self.backend = world, eps, momentum, backend
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.running_mean: torch.Tensor
        self.running_var: torch.Tensor
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is kept for backward, and no other (n, F) tensor."""
        return recorded(self._run, self._back, x, self.weight, self.bias)

    def _run(self, ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        mean, variance, ctx.total = once(lambda: self.moments(x))
        ctx.mean, ctx.per_std = mean, (variance + self.eps).rsqrt()
        ctx.save_for_backward(x, weight)
        return (x - mean.to(x.dtype)).mul_((weight * ctx.per_std).to(x.dtype)).add_(bias)

    def _back(self, ctx: Any, dy: torch.Tensor) -> Gradients:
        x, weight = ctx.saved_tensors
        of_bias, backend = column_sums(dy, self.backend), self.backend
        size = block_size(_ROWS_AT_ONCE, x.shape[0])
        pairs = zip(x.split(size), dy.split(size), strict=True)
        mean, nothing = ctx.mean.to(dy.dtype), torch.zeros_like(of_bias)
        of_weight = ctx.per_std * sum(
            (column_sums((rows - mean).mul_(given), backend) for rows, given in pairs), nothing
        )
        factor = weight * ctx.per_std
        if not ctx.total:  # the statistics are constants
            return dy * factor.to(dy.dtype), of_weight.to(dy.dtype), of_bias.to(dy.dtype)
        # dx = factor * (dy - mean(dy) - x' mean(dy x')) for the normalised x' = (x - mean) / std, with means over all ranks
        mean_dy, mean_product = sum_over_ranks(torch.stack((of_bias, of_weight)), self.world) / ctx.total
        slope = -factor * ctx.per_std * mean_product
        dx = torch.addcmul((-factor * mean_dy - slope * ctx.mean).to(dy.dtype), dy, factor.to(dy.dtype))
        dx.addcmul_(x, slope.to(dy.dtype))
        return dx, of_weight.to(dy.dtype), of_bias.to(dy.dtype)

    def moments(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        """(F,) float64 mean and variance of the rows of all ranks, whose running values follow, and the number of rows; outside
        of training those running values, and 0."""
        if not self.training:
            return self.running_mean.double(), self.running_var.double(), 0.0
        mean, total = mean_over_ranks(x, self.world, self.backend)
        parts = ((rows.double() - mean).square_().sum(0) for rows in x.split(block_size(_ROWS_AT_ONCE, x.shape[0])))
        squares = sum(parts, torch.zeros_like(mean))
        variance = sum_over_ranks(squares, self.world) / total
        unbiased = variance * (total / max(total - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return mean, variance, total
