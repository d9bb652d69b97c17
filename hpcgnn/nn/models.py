"""Models of any depth and width out of the layers of :mod:`hpcgnn.nn.layers`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from hpcgnn.comm import Messages
from hpcgnn.errors import HpcgnnError
from hpcgnn.graph import LocalGraph
from hpcgnn.kernels import Csr, Norm, activation
from hpcgnn.nn.aggregate import Aggregator, KeptAggregator, make_aggregator
from hpcgnn.nn.compute import check_compute
from hpcgnn.nn.dropout import DropoutKeys, KeyedDropout
from hpcgnn.nn.label_embedding import LabelEmbedding
from hpcgnn.nn.layers import GCNLayer, SAGELayer, linear_first
from hpcgnn.nn.linear import Features
from hpcgnn.nn.norm import BatchNorm
from hpcgnn.policy.channel import Channel

_LOG = logging.getLogger("hpcgnn")
MODELS = {"gcn": (GCNLayer, "gcn"), "sage": (SAGELayer, "mean")}  # name -> layer, aggregator
NORMS = ("layer", "batch", "none")


@dataclass(frozen=True)
class ModelConfig:
    """model: ``gcn`` or ``sage``. layers: depth. hidden: width. dropout: before every layer but the first.
    input_dropout: on the features. norm: ``layer``, ``batch`` (statistics over all ranks) or ``none``. label_inputs: whether
    labels are inputs beside the features (see :mod:`hpcgnn.nn.label_embedding`)."""

    model: str = "sage"
    layers: int = 3
    hidden: int = 256
    dropout: float = 0.5
    input_dropout: float = 0.0
    norm: str = "layer"
    label_inputs: bool = False

    def check(self) -> None:
        """Raise HpcgnnError for values that make no model."""
        if self.model not in MODELS:
            raise HpcgnnError(f"model must be one of {', '.join(MODELS)}, not {self.model!r}")
        if self.norm not in NORMS:
            raise HpcgnnError(f"norm must be one of {', '.join(NORMS)}, not {self.norm!r}")
        if self.layers < 1 or self.hidden < 1:
            raise HpcgnnError(f"layers and hidden must be at least 1, not {self.layers} and {self.hidden}")
        if not (0 <= self.dropout < 1 and 0 <= self.input_dropout < 1):
            raise HpcgnnError("dropout and input_dropout must be at least 0 and below 1")


class GNN(torch.nn.Module):
    """[dropout, layer, norm, ReLU] repeated, without norm and ReLU after the last layer.

    ``model(x)`` maps this rank's (n, F) features, dense or Csr, to (n, C) scores. Collective, forward and backward.
    Call :meth:`begin_epoch` before each training step. With ``config.label_inputs`` it is ``model(x, labels)``, labels being
    (n, C) ones; their embedding is added to the features behind the dropout. keep_input_aggregation: aggregate the features
    once and not in each pass, which needs dense ones without dropout or labels.
    """

    def __init__(
        self,
        config: ModelConfig,
        in_width: int,
        out_width: int,
        aggregator: Aggregator,
        keys: DropoutKeys,
        *,
        is_sparse: bool,
        compute: str = "float32",
        keep_input_aggregation: bool = False,
    ) -> None:
        super().__init__()
        config.check()
        layer_type, _ = MODELS[config.model]
        widths = [in_width, *[config.hidden] * (config.layers - 1), out_width]
        self.config, self.keys, self.aggregator, self.compute = config, keys, aggregator, compute
        self.messages = aggregator.exchange.messages
        self.layers = torch.nn.ModuleList()
        self.norms = torch.nn.ModuleList()
        self.dropouts = torch.nn.ModuleList()
        for depth, (width, next_width) in enumerate(pairwise(widths)):
            is_input = depth == 0
            needs_gradient = config.label_inputs or not is_input
            first = linear_first(width, next_width, needs_gradient=needs_gradient, is_sparse=is_sparse and is_input)
            own: Aggregator | KeptAggregator = aggregator.for_layer(depth)
            if is_input and keep_input_aggregation:
                own, first = KeptAggregator(aggregator), False
            self.layers.append(layer_type(width, next_width, own, transform_first=first, compute=compute))
            rate = config.input_dropout if is_input else config.dropout
            self.dropouts.append(KeyedDropout(keys, depth, rate, aggregator.backend))
            if depth < config.layers - 1:
                self.norms.append(_norm(config.norm, next_width, aggregator))
        # last, so that the layers' weights are those that they have without it
        self.embed_labels = LabelEmbedding(out_width, in_width, aggregator.backend) if config.label_inputs else None

    def begin_epoch(self, epoch: int) -> None:
        """What is drawn from now on, for dropout and for messages, is of this training step."""
        self.keys.epoch = epoch
        self.messages.begin_epoch(epoch)

    def channels(self, degrees: np.ndarray) -> list[Channel]:
        """The exchanges of all layers, forward and backward. degrees: (n,) int64 in-degrees, in the order of the features."""
        aggregators = [layer.aggregator for layer in self.layers]
        return [channel for each in aggregators if isinstance(each, Aggregator) for channel in each.channels(degrees)]

    def forward(self, x: Features, labels: Csr | None = None) -> torch.Tensor:
        """(n, F) features, and (n, C) ones where labels are inputs, to (n, C) scores. Collective."""
        self.messages.training = self.training
        x = self.dropouts[0](x)
        if self.embed_labels is not None:
            x = self.embed_labels(x, labels)
        y = self.layers[0](x)
        for norm, drop, layer in zip(self.norms, self.dropouts[1:], self.layers[1:], strict=True):
            y = layer(self._between(y, norm, drop))
        return y

    def _between(self, x: torch.Tensor, norm: torch.nn.Module, drop: torch.nn.Module) -> torch.Tensor:
        """Norm, ReLU, and dropout for the next layer, in as few passes over (n, F) ``x`` as there may be. Collective."""
        assert isinstance(drop, KeyedDropout)
        fused = None
        if isinstance(norm, torch.nn.LayerNorm):
            fused = Norm(norm.weight, norm.bias, norm.eps)
        else:
            x = norm(x)
        return activation(x, fused, drop.mask(), self.aggregator.backend)


def build_model(
    config: ModelConfig,
    graph: LocalGraph,
    *,
    strategy: str = "hybrid",
    seed: int = 0,
    messages: Messages | None = None,
    backend: str = "auto",
    dtype: torch.dtype = torch.float32,
    compute: str = "float32",
    keep_input_aggregation: bool = False,
) -> GNN:
    """The model for a graph, with weights drawn from ``seed``: the same on every rank and for any P. Collective.

    ``compute`` (:mod:`hpcgnn.nn.compute`) is the arithmetic of dense products; weights are ``dtype`` whatever it is.
    """
    config.check()
    if keep_input_aggregation:
        _check_input_is_constant(config, graph)
    with graph.world.together(f"compute in {compute}"):
        warning = check_compute(compute, dtype)
    if warning:
        _LOG.warning(warning)
    if graph.features is None:
        raise HpcgnnError(f"{graph.path} has no node features: convert the graph with --features degree:64 or another")
    _, kind = MODELS[config.model]
    messages = messages or Messages(graph.world)
    messages.seed = seed
    row_bytes = -(-config.hidden * messages.config.bits // 8)
    aggregator = make_aggregator(
        graph, kind, strategy, messages=messages, backend=backend, dtype=dtype, row_bytes=row_bytes
    )
    keys = DropoutKeys(graph.original_ids, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GNN(
            config,
            graph.meta.num_features,
            graph.meta.num_classes,
            aggregator,
            keys,
            is_sparse=isinstance(graph.features, Csr),
            compute=compute,
            keep_input_aggregation=keep_input_aggregation,
        )
    return model.to(dtype)


def _check_input_is_constant(config: ModelConfig, graph: LocalGraph) -> None:
    """Raise the same error on every rank where the aggregation of the input cannot be kept."""
    reasons = {
        "dropout of the features draws them anew in each epoch (--input-dropout)": config.input_dropout > 0,
        "labels are added to the features (--label-propagation)": config.label_inputs,
        "sparse features are transformed before they are aggregated": isinstance(graph.features, Csr),
    }
    for reason, applies in reasons.items():
        if applies:
            raise HpcgnnError(f"the aggregation of the input cannot be kept: {reason}", agreed=True)


def _norm(name: str, width: int, aggregator: Aggregator) -> torch.nn.Module:
    if name == "layer":
        return torch.nn.LayerNorm(width)
    return BatchNorm(width, aggregator.exchange.messages.world) if name == "batch" else torch.nn.Identity()
