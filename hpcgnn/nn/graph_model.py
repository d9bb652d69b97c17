"""The common part of all models: exchanges and dropouts with numbers of their own, and the methods that a trainer calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from hpcgnn.graph import LocalGraph
from hpcgnn.kernels import Csr, Norm, activation
from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.aggregators import make_aggregator
from hpcgnn.nn.compute_config import FLOAT32, INTEGERS
from hpcgnn.nn.config import LayerSettings, ModelConfig, describe
from hpcgnn.nn.decoder import DotDecoder, MLPDecoder
from hpcgnn.nn.dropout import DropoutKeys, KeyedDropout
from hpcgnn.nn.halo import AttentionEdges
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.kept_aggregator import KeptAggregator
from hpcgnn.nn.label_embedding import LabelEmbedding
from hpcgnn.nn.layers import EndsWithBias
from hpcgnn.nn.linear import Features
from hpcgnn.nn.norm import BatchNorm
from hpcgnn.nn.partial_attention import PartialPlan
from hpcgnn.policy.channel import Channel


@dataclass(frozen=True)
class Connection:
    """How a model's rows reach other ranks. aggregator: of the model's kind. edges: what attention is paid along, and partial:
    the plan where it is aggregated in part before it travels; else None."""

    aggregator: Aggregator
    edges: AttentionEdges | None = None
    partial: PartialPlan | None = None


@dataclass(frozen=True)
class Frame:
    """The surroundings that a model is built into. in_width, out_width: features and classes. keys: of dropout. is_sparse:
    whether features are a Csr. compute: arithmetic of dense products. keep_input_aggregation: aggregate the features once and
    not in each pass, which needs dense ones without dropout or labels."""

    in_width: int
    out_width: int
    connection: Connection
    keys: DropoutKeys
    is_sparse: bool
    compute: str = "float32"
    keep_input_aggregation: bool = False

    @property
    def aggregator(self) -> Aggregator:
        """That of the connection."""
        return self.connection.aggregator


# Of a model.
Part = torch.nn.Module | Aggregator | KeptAggregator


def _use_float32(part: Part) -> None:
    """For a layer's products, those of what it is made of, and its aggregation; or for one that is given."""
    for module in part.modules() if isinstance(part, torch.nn.Module) else ():
        if "compute" in vars(module):
            vars(module)["compute"] = FLOAT32
    aggregator = getattr(part, "aggregator", None) if isinstance(part, torch.nn.Module) else part
    if isinstance(aggregator, Aggregator):
        aggregator.use_int8(None)


class GraphModel(torch.nn.Module, ABC):
    """``model(x)`` maps this rank's (n, F) features, dense or Csr, to (n, C) scores. Collective, forward and backward.

    With ``config.decoder`` the scores are embeddings (n, hidden), of which ``decoder`` makes those of links.
    Call :meth:`begin_epoch` before each training step. With ``config.label_inputs`` it is ``model(x, labels)``, labels being
    (n, C) ones; their embedding is added to the features behind their dropout. Models implement :meth:`scores`, and say what
    there is to know of their class:

    summary: what it is, for the command's help. settings: dataclasses with what it can be set beside what all models have.
    aggregation: as :func:`hpcgnn.nn.aggregate.make_aggregator` takes it. begins_with_exchange: whether the first exchange of a
    pass is of the features, so that its result can be kept. has_dense_parameters: whether there are
    :meth:`dense_parameters`.
    """

    summary: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (LayerSettings,)
    aggregation: ClassVar[str] = "gcn"
    begins_with_exchange: ClassVar[bool] = False
    has_dense_parameters: ClassVar[bool] = False
    layers: torch.nn.ModuleList

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        """How its rows travel on ``graph``; ``how`` are the other arguments of ``make_aggregator``. Collective."""
        return Connection(make_aggregator(graph, cls.aggregation, strategy, **how))

    @classmethod
    def uses_strategy(cls, config: ModelConfig) -> bool:
        """Whether cut edges are aggregated as ``--strategy`` says."""
        return True

    @classmethod
    def check_settings(cls, config: ModelConfig) -> None:
        """Raise HpcgnnError for settings of this class that do not go together."""

    def __init__(self, config: ModelConfig, frame: Frame) -> None:
        super().__init__()
        config.check()
        self.config, self.keys, self.aggregator, self.compute = config, frame.keys, frame.aggregator, frame.compute
        self._widths, self.keeps_input = (frame.in_width, frame.out_width), frame.keep_input_aggregation
        self.messages, self.backend = frame.aggregator.exchange.messages, frame.aggregator.backend
        self.aggregators: list[Aggregator | KeptAggregator] = []
        self._num_dropouts = 0
        self.embed_labels: LabelEmbedding | None = None
        self.graph: LocalGraph | None = None  # what the model was built for
        self.asked_compute = frame.compute  # or auto, of which self.compute is what was chosen
        self.int8: Int8 | None = None  # what layers share that compute in 8-bit integers
        self.decoder: DotDecoder | MLPDecoder | None = None
        self.input_dropout = self.new_dropout(config.input_dropout)

    # -- what models are made of --------------------------------------------------------------------------------------

    def new_aggregator(self, *, keep: bool = False) -> Aggregator | KeptAggregator:
        """The aggregator of the next exchange of a pass. keep: of features that never change, once."""
        own = self.aggregator.for_layer(len(self.aggregators))
        self.aggregators.append(KeptAggregator(own) if keep else own)
        return self.aggregators[-1]

    def adopted(self, aggregator: Aggregator) -> Aggregator:
        """``aggregator`` for the exchange that comes behind those of the layers in a training pass."""
        own = aggregator.for_layer(len(self.aggregators))
        self.aggregators.append(own)
        return own

    def new_dropout(self, rate: float) -> KeyedDropout:
        """The next dropout of a pass, with draws of its own."""
        self._num_dropouts += 1
        return KeyedDropout(self.keys, self._num_dropouts - 1, rate, self.backend)

    def new_partial_plan(self, plan: PartialPlan) -> PartialPlan:
        """``plan`` with the next two exchanges of a pass."""
        number = len(self.aggregators)
        own = plan.for_layer(number, number + 1)
        self.aggregators += [own.scores, own.rows]
        return own

    def new_edge_dropouts(self, rate: float, *ids: torch.Tensor | None) -> tuple[KeyedDropout, ...]:
        """The same for (entries, F) values of edges with these ids (entries,); what has one id in two of them has one draw.

        None will do where nothing is dropped."""
        self._num_dropouts += 1
        number = self._num_dropouts - 1
        return tuple(KeyedDropout(self.keys, number, rate, self.backend, ids=each) for each in ids)

    def new_norm(self, width: int, layer: torch.nn.Module | None = None) -> torch.nn.Module:
        """As configured, behind ``layer``, whose bias stays at rest where the norm takes it away again.

        The gradient of such a bias is rounding errors alone. Adam makes steps of full length of them, which differ with the
        number of ranks: losses do not show it, but running means lag behind, and so do the scores of an evaluation.
        """
        name = self.config.norm
        if name == "layer":
            return torch.nn.LayerNorm(width)
        if name == "batch":
            biases: tuple[torch.nn.Parameter, ...] = layer.last_biases() if isinstance(layer, EndsWithBias) else ()
            for bias in biases:
                bias.requires_grad_(False)  # which is a gradient of zeros to the optimiser
        return BatchNorm(width, self.messages.world) if name == "batch" else torch.nn.Identity()

    def activated(
        self, x: torch.Tensor, norm: torch.nn.Module | None = None, drop: torch.nn.Module | None = None
    ) -> torch.Tensor:
        """Norm, activation and dropout of (n, F), in as few passes over it as there may be. Collective."""
        fused = None
        if isinstance(norm, torch.nn.LayerNorm) and self.config.activation == "relu":
            fused = Norm(norm.weight, norm.bias, norm.eps)
        elif norm is not None:
            x = norm(x)
        if self.config.activation == "elu":
            x = torch.nn.functional.elu(x)
            return x if drop is None else drop(x)
        assert isinstance(drop, KeyedDropout | None)
        return activation(x, fused, None if drop is None else drop.mask(), self.backend)

    def widths(self, frame: Frame) -> list[int]:
        """Of what enters the first of ``layers`` layers, to what leaves the last one."""
        return [frame.in_width, *[self.config.hidden] * (self.config.layers - 1), frame.out_width]

    def through(
        self, x: Features, layers: torch.nn.ModuleList, norms: torch.nn.ModuleList, dropouts: torch.nn.ModuleList
    ) -> torch.Tensor:
        """(n, F_in) through all ``layers``, with norm, activation and dropout between one and the next. Collective."""
        y = layers[0](x)
        for norm, drop, layer in zip(norms, dropouts, layers[1:], strict=True):
            y = layer(self.activated(y, norm, drop))
        return y

    # -- what a trainer asks for --------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Begin a training step: dropout and messages draw for it from now on."""
        self.keys.epoch = epoch
        self.messages.begin_epoch(epoch)
        if self.int8 is not None:
            self.int8.begin_epoch(epoch)

    def channels(self, degrees: np.ndarray) -> list[Channel]:
        """The exchanges of all layers, forward and backward. degrees: (n,) int64 in-degrees, in the order of the features."""
        sending = [each for each in self.aggregators if isinstance(each, Aggregator)]
        return [channel for each in sending for channel in each.channels(degrees)]

    def use_compute(self, compute: str) -> None:
        """Products are done in this arithmetic from now on, by all layers that have it as ``compute``.

        In 8-bit integers, what is right before the softmax stays float32 (Tango §3.2), unless that is not wanted.
        """
        integers = self.int8 if compute in INTEGERS else None
        self.compute = compute
        for module in self.modules():
            if module is not self and "compute" in vars(module):
                vars(module)["compute"] = integers or compute
        for aggregator in self.aggregators:
            if isinstance(aggregator, Aggregator):
                aggregator.use_int8(integers)
        if integers is None:
            return
        for part in () if integers.config.before_softmax else self.before_softmax():
            _use_float32(part)
        first = next((each for each in self.modules() if each is not self and "compute" in vars(each)), None)
        integers.watch(first, lambda: self.use_compute(FLOAT32))

    def before_softmax(self) -> list[Part]:
        """Layers and aggregators whose results the softmax is of, or those of the decoder."""
        return [self.layers[-1]]

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        """Those that may have a weight decay of their own, as in the model's paper."""
        return []

    def description(self) -> dict[str, Any]:
        """The facts that a checkpoint must share with this model: its architecture and the widths that the graph gives it."""
        return describe(self.config, *self._widths)

    def forward(self, x: Features, labels: Csr | None = None) -> torch.Tensor:
        """(n, F) features, and (n, C) ones where labels are inputs, to (n, C) scores. Collective."""
        self.messages.begin_pass(is_training=self.training)
        x = self.input_dropout(x)
        return self.scores(x if self.embed_labels is None else self.embed_labels(x, labels))

    @abstractmethod
    def scores(self, x: Features) -> torch.Tensor:
        """(n, F) features, after dropout and with labels, to (n, C) scores. Collective."""
