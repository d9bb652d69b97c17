"""The common part of all models: numbered exchanges and dropouts, and the methods that a trainer calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch

from hpcgnn.base.arguments import check_given
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.node_types import FeaturesByType
from hpcgnn.kernels import Csr, Norm
from hpcgnn.kernels.again import run_again
from hpcgnn.kernels.autograd import is_unshared, layer_activation
from hpcgnn.nn.activations import Activations
from hpcgnn.nn.aggregator import Aggregator, CachedAggregator
from hpcgnn.nn.aggregators import Relations, make_aggregator
from hpcgnn.nn.attention import PartialPlan
from hpcgnn.nn.config import FLOAT32, INTEGERS, LayerSettings, ModelConfig, describe
from hpcgnn.nn.decoders import Decoder
from hpcgnn.nn.halo import AttentionEdges, make_halo
from hpcgnn.nn.hetero import Join
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.layers import (
    BatchNorm,
    Dense,
    DropoutKeys,
    KeyedDropout,
    LabelEmbedding,
    MeanNorm,
)
from hpcgnn.nn.linear import Features, Given
from hpcgnn.nn.pieces import HaloPieces
from hpcgnn.nn.relational import TypedEdges
from hpcgnn.nn.typed_input import TypedInput
from hpcgnn.policy.base import ExchangeFacts


@dataclass(frozen=True)
class Connection:
    """The connection of a model to other ranks. aggregator: of the model's kind. edges: the edges for attention over the halo,
    else None. partial: the plan of partial attention, else None. relations: the rows of sums over relations, else None. typed:
    the edges for attention by types, else None. pieces: those for attention over the halo in pieces, else None. join: of the rows
    of types of edges that have weights of their own, else None.
    """

    aggregator: Aggregator
    edges: AttentionEdges | None = None
    partial: PartialPlan | None = None
    relations: Relations | None = None
    typed: TypedEdges | None = None
    pieces: HaloPieces | None = None
    join: Join | None = None

    def of_edges(self) -> dict[str, int]:
        """The facts about edges in which a checkpoint must agree with a model, by :data:`hpcgnn.nn.config.OF_EDGES`."""
        by_type = self.relations or self.typed
        relations = {} if by_type is None else {"relations": len(by_type.sizes)}
        local = None if self.pieces is None else self.pieces.local
        attr = next((each.attr for each in (self.edges, self.typed, local) if each is not None), None)
        return relations | ({} if attr is None else {"edge_features": attr.shape[1]})


@dataclass(frozen=True)
class ModelContext:
    """The arguments that ``build_model`` passes to the constructor of every model.

    in_width, out_width: number of columns of the first layer's input, and of classes. keys: of dropout. is_sparse: whether that
    input is a Csr. compute: arithmetic of dense products. keep_input_aggregation: aggregate the features once instead of in each
    pass; this needs dense features without dropout and without label inputs. has_input_layer: whether a
    :class:`hpcgnn.nn.typed_input.TypedInput` makes the input.
    """

    in_width: int
    out_width: int
    connection: Connection
    keys: DropoutKeys
    is_sparse: bool
    compute: str = "float32"
    keep_input_aggregation: bool = False
    has_input_layer: bool = False

    @property
    def aggregator(self) -> Aggregator:
        """The aggregator of the connection."""
        return self.connection.aggregator


# A part of a model whose arithmetic can be set.
Part = torch.nn.Module | Aggregator | CachedAggregator


class GraphModel(torch.nn.Module, ABC):
    """``model(x)`` maps this rank's (n, F) features, dense or Csr, to (n, C) scores. Collective, forward and backward.

    With ``config.decoder`` the result is embeddings (n, hidden), from which ``decoder`` computes the scores of links. With
    ``config.label_inputs`` the call is ``model(x, labels)``, where labels are an (n, C) matrix of ones; their embedding is
    added to the features after input dropout. Call :meth:`begin_epoch` before each training step.

    A model implements :meth:`scores` and sets these attributes of its class:

    summary: a phrase for the command's help. settings: dataclasses of the settings that the model has beside those of all
    models. aggregation: the kind for :func:`hpcgnn.nn.aggregators.make_aggregator`. usual_norm: that of ``--norm auto``.
    begins_with_exchange: whether the first exchange of a pass sends the input features, so that its result can be kept.
    has_dense_parameters: whether :meth:`dense_parameters` returns any. kept_rows: rows of ``hidden`` columns that a hidden
    layer keeps for its gradients, measured and rounded down; 0 if unknown. A rank whose part cannot fit into its device is
    refused by this number. ends_hidden: whether the last layer is as wide as the hidden ones, and not as the number of
    classes. scores_joint_rows: whether attention's scores are made of a row for each edge. uses_edge_features: whether layers
    read the features of edges, where the graph has any. sums_by_type: whether sums are those of each type of edges, whatever the
    settings. work: the work of a pass, one that the laboratory's cost model knows; empty if it knows none.
    """

    summary: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (LayerSettings,)
    aggregation: ClassVar[str] = "gcn"
    usual_norm: ClassVar[str] = "mean"
    begins_with_exchange: ClassVar[bool] = False
    has_dense_parameters: ClassVar[bool] = False
    kept_rows: ClassVar[int] = 0
    ends_hidden: ClassVar[bool] = False
    scores_joint_rows: ClassVar[bool] = False
    uses_edge_features: ClassVar[bool] = False
    sums_by_type: ClassVar[bool] = False
    work: ClassVar[str] = ""
    layers: torch.nn.ModuleList

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        """Connect the model to other ranks on ``graph``; ``how`` are the other arguments of ``make_aggregator``. Collective."""
        return Connection(make_aggregator(graph, cls.aggregation, strategy, **how))

    @classmethod
    def uses_strategy(cls, config: ModelConfig) -> bool:
        """Return whether ``--strategy`` decides how cut edges are aggregated."""
        return True

    @classmethod
    def check_settings(cls, config: ModelConfig) -> None:
        """Raise HpcgnnError for settings of this class that cannot be combined."""

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise self._refusal("copied")

    def __reduce__(self) -> NoReturn:
        raise self._refusal("saved")

    def _refusal(self, done: str) -> HpcgnnError:
        return HpcgnnError(
            f"a {type(self).__name__} of hpcgnn.build_model belongs to the ranks of its graph and cannot be {done}: take its "
            "model.state_dict(), and build another model to load it"
        )

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__()
        config.check()
        self.config, self.keys = config, context.keys
        self._activation = config.activation
        self.aggregator, self.compute = context.aggregator, context.compute
        self._widths, self.keeps_input = (context.in_width, context.out_width), context.keep_input_aggregation
        self._of_edges = context.connection.of_edges()
        self.messages, self.backend = context.aggregator.exchange.messages, context.aggregator.backend
        self.aggregators: list[Aggregator | CachedAggregator] = []
        self._num_dropouts = 0
        self.input_layer: TypedInput | None = None
        self.embed_labels: LabelEmbedding | None = None
        self.graph: LocalGraph | None = None  # the graph that the model was built for
        self.asked_compute = context.compute  # may be auto; self.compute is the arithmetic that was chosen
        self.int8: Int8 | None = None  # the integer arithmetic that layers share
        self.activations = Activations()
        self.decoder: Decoder | None = None
        self.input_dropout = self.new_dropout(config.input_dropout)

    # -- parts of models ----------------------------------------------------------------------------------------------

    def new_aggregator(self, *, keep: bool = False) -> Aggregator | CachedAggregator:
        """Make the aggregator of the next exchange of a pass. keep: its input never changes, so it aggregates only once."""
        own = self.add_aggregator(self.aggregator)
        if not keep:
            return own
        self.aggregators[-1] = CachedAggregator(own)
        return self.aggregators[-1]

    def add_aggregator(self, aggregator: Aggregator, wide_from: int | None = None) -> Aggregator:
        """Use a copy of ``aggregator`` for the next exchange of a training pass. wide_from: see
        :meth:`hpcgnn.nn.aggregator.Aggregator.for_layer`."""
        self.aggregators.append(own := aggregator.for_layer(len(self.aggregators), wide_from))
        own.use_compute(self.compute)
        return own

    def new_dense(self, in_width: int, out_width: int) -> Dense:
        """Make a dense layer."""
        return Dense(in_width, out_width, compute=self.compute, backend=self.backend)

    def new_dropout(self, rate: float) -> KeyedDropout:
        """Make the next dropout of a pass, which draws its own random numbers."""
        return self.new_edge_dropouts(rate, None)[0]

    def new_edge_dropouts(self, rate: float, *ids: torch.Tensor | None) -> tuple[KeyedDropout, ...]:
        """Make dropouts of (entries, F) edge values, one for each of the given edge ids (entries,).

        An edge that occurs with the same id in two of them gets the same draw. An argument may be None if the rate is 0.
        """
        self._num_dropouts += 1
        number = self._num_dropouts - 1
        return tuple(KeyedDropout(self.keys, number, rate, self.backend, ids=each) for each in ids)

    def new_norm(self, width: int, layer: torch.nn.Module | None = None) -> torch.nn.Module:
        """Make the configured norm after ``layer``. A bias of the layer that is subtracted again with the mean is not trained.

        The gradient of such a bias consists of rounding errors only. Adam turns them into steps of full length, which differ with
        the number of ranks. The losses do not show it, but running means lag behind, and so the scores of evaluations differ.
        """
        name = self.config.norm_in_use
        if name == "layer":
            return torch.nn.LayerNorm(width)
        if name == "none":
            return torch.nn.Identity()
        if (bias := getattr(layer, "last_bias", None)) is not None:
            bias.requires_grad_(False)  # the optimiser sees a gradient of zeros
        return (BatchNorm if name == "batch" else MeanNorm)(width, self.messages.world, backend=self.backend)

    def activated(
        self, x: torch.Tensor, norm: torch.nn.Module | None = None, drop: torch.nn.Module | None = None,
        *, overwrites: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Apply norm, activation and dropout to x (n, F), in as few passes over memory as possible. overwrites: the result may be
        written over x. Collective."""
        assert isinstance(drop, KeyedDropout | None)
        fused, mask = None, None if drop is None else drop.mask()
        if isinstance(norm, MeanNorm) and self._activation == "relu":
            return norm.activated(x, mask, overwrites=overwrites)
        if isinstance(norm, torch.nn.LayerNorm) and self._activation == "relu":
            fused = Norm(norm.weight, norm.bias, norm.eps)
        elif norm is not None:
            x = norm(x)
        if self._activation == "elu":
            x = torch.nn.functional.elu(x)
            return x if drop is None else drop(x)
        return layer_activation(x, fused, mask, self.backend)

    def widths(self, context: ModelContext) -> list[int]:
        """The widths of the input of the first of ``layers`` layers, of hidden features, and of the result of the last layer."""
        return [context.in_width, *[self.config.hidden] * (self.config.layers - 1), context.out_width]

    def apply_layers(
        self, x: Features, layers: torch.nn.ModuleList, norms: torch.nn.ModuleList, dropouts: torch.nn.ModuleList
    ) -> torch.Tensor:
        """Apply all ``layers`` to x (n, F_in), with norm, activation and dropout between two layers. Collective."""
        first, *others = layers
        y = self.part(first, first, x)
        for norm, drop, layer in zip(norms, dropouts, others, strict=True):
            if self._runs_again(layer, y):
                y = self.part(layer, lambda y, *of: of[2](self.activated(y, *of[:2])), y, norm, drop, layer)
                continue
            is_free = is_unshared(y)
            y = self.activated(y, norm, drop, overwrites=is_free)
            y = layer(y)
        return y

    def part(self, layer: torch.nn.Module | None, run: Callable[..., Any], x: Any, *others: Any) -> torch.Tensor:
        """``run(x, *others)``, which calls ``layer`` with rows like x. With ``--activations recompute``, backward runs it again,
        unless the layer itself keeps one row of a node; None for a part that always runs again. Collective.

        The last layer does not run again: its backward follows at once, with all that it has made."""
        if not self._runs_again(layer, x):
            return run(x, *others)
        return run_again(run, x, *others, state=lambda: (self.messages.current_pass, self.training))

    def _runs_again(self, layer: torch.nn.Module | None, x: Any) -> bool:
        keeps_rows = getattr(layer, "keeps_rows", None)
        if not (self.activations.repeats and torch.is_grad_enabled()) or (keeps_rows is not None and keeps_rows(x)):
            return False
        # Of the ways that no check refuses, attention as one step repeats integers by itself.
        return self.compute not in INTEGERS and layer is not self.layers[-1]

    # -- methods for trainers -----------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Begin a training step: dropout and messages use random numbers of this epoch from now on."""
        self.keys.epoch = epoch
        self.messages.begin_epoch(epoch)
        if self.int8 is not None:
            self.int8.begin_epoch(epoch)
        self.activations.begin_epoch(self.keys.seed, epoch, self.messages.world.rank)

    def exchange_facts(self, degrees: np.ndarray) -> list[ExchangeFacts]:
        """The exchanges of all layers, forward and backward. degrees: (n,) int64 in-degrees, in the order of the features."""
        sending = [each for each in self.aggregators if isinstance(each, Aggregator)]
        return [facts for each in sending for facts in each.exchange_facts(degrees)]

    def use_activations(self, mode: str) -> None:
        """Keep what backward needs in this way from now on (:mod:`hpcgnn.nn.activations`), in all layers that have an attribute
        ``activations``."""
        self.activations = Activations(mode, self.backend)
        for module in self.modules():
            if "activations" in vars(module):
                vars(module)["activations"] = self.activations

    def use_compute(self, compute: str) -> None:
        """Compute products and sums in this arithmetic from now on, in all layers that have an attribute ``compute`` and in all
        aggregators.

        In 8-bit integers, the layer before the softmax stays in float32 (Tango §3.2), unless the settings say otherwise.
        """
        integers = self.int8 if compute in INTEGERS else None
        self.compute = compute
        for module in self.modules():
            if module is not self and "compute" in vars(module):
                vars(module)["compute"] = integers or compute
        for aggregator in self.aggregators:
            if isinstance(aggregator, Aggregator):
                aggregator.use_compute(integers or compute)
        if integers is None:
            return
        for part in () if integers.config.before_softmax else self.before_softmax():
            for module in part.modules() if isinstance(part, torch.nn.Module) else ():
                if "compute" in vars(module):
                    vars(module)["compute"] = FLOAT32
            own = getattr(part, "aggregator", None) if isinstance(part, torch.nn.Module) else part
            if isinstance(own, Aggregator):
                own.use_compute(FLOAT32)
        first = next((each for each in self.modules() if each is not self and "compute" in vars(each)), None)
        integers.watch(first, lambda: self.use_compute(FLOAT32))

    def before_softmax(self) -> list[Part]:
        """The layers and aggregators whose results enter the softmax or the decoder: the dense layer ``last``, if any."""
        return [getattr(self, "last", self.layers[-1])]

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that may have a weight decay of their own, as in the model's paper."""
        return []

    def description(self) -> dict[str, Any]:
        """The facts in which a checkpoint must agree with this model: its architecture, and the widths that follow from the
        graph.
        """
        in_width, out_width = self._widths
        features = in_width if self.graph is None else self.graph.meta.num_features
        return describe(self.config, features, out_width) | self._of_edges

    def owned_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters of which each rank holds rows of its own, by their names in ``state_dict``. All others are the same on
        every rank."""
        rows = None if self.input_layer is None else self.input_layer.embedding
        return {} if rows is None else {"input_layer.embedding": rows}

    def forward(self, x: Given, labels: Csr | None = None) -> torch.Tensor:
        """(n, F) features, and an (n, C) matrix of label inputs if the model has them, to (n, C) scores. Collective."""
        if not isinstance(x, (Csr, FeaturesByType, FeaturesOnDisk)):
            check_given(x=x)
        self.messages.begin_pass(is_training=self.training)
        x = self.input_dropout(x)
        x = x if self.input_layer is None else self.input_layer(x)
        assert not isinstance(x, FeaturesByType), "a graph with types of nodes has an input layer"
        with self.activations.keeping():
            return self.scores(x if self.embed_labels is None else self.embed_labels(x, labels))

    @abstractmethod
    def scores(self, x: Features) -> torch.Tensor:
        """(n, F) features, after input dropout and label embedding, to (n, C) scores. Collective."""


class Rows(GraphModel):
    """The rows of the input layer as they are, for a decoder (``--layers 0``). The decoder's halo alone sends rows."""

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        """Connect by a halo, of which nothing is used but its messages. Collective."""
        return Connection(make_halo(graph, **{name: value for name, value in how.items() if name != "dtype"}))

    def before_softmax(self) -> list[Part]:
        """No layers."""
        return []

    def scores(self, x: Features) -> torch.Tensor:
        """(n, F) rows as they are."""
        assert isinstance(x, torch.Tensor)
        return x
