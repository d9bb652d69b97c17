"""Construction of models of any kind for a graph."""

from __future__ import annotations

import logging
import math
import threading
from typing import Literal

import numpy as np
import torch

from hpcgnn.base.arguments import check_choice, check_type, check_whole
from hpcgnn.base.errors import HpcgnnError, WrongValueError
from hpcgnn.exchange import Messages
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, backends
from hpcgnn.nn.compute import choose_compute
from hpcgnn.nn.config import (
    ACTIVATION_MODES,
    AUTO,
    FLOAT32,
    INT8_ALWAYS,
    INTEGERS,
    KEEP,
    MODELS,
    RECOMPUTE,
    Int8Config,
    ModelConfig,
    check_features_on_disk,
    check_kept,
    why_input_changes,
)
from hpcgnn.nn.decoders import CLASSES
from hpcgnn.nn.graph_model import GraphModel, ModelContext, Rows
from hpcgnn.nn.int8 import make_int8
from hpcgnn.nn.layers import DropoutKeys, LabelEmbedding
from hpcgnn.nn.typed_input import TypedInput, embedded_types, has_input_layer
from hpcgnn.plan import STRATEGIES
from hpcgnn.world import raise_on_all_ranks

_VALUES_AT_ONCE = 1 << 20  # limits memory of the sum of squares
_DRAWING = threading.Lock()  # torch has one generator in a process, and ranks may be threads of one process
_LOG = logging.getLogger("hpcgnn")


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
    keep_input_aggregation: Literal[False, True, "auto"] = False,
    int8: Int8Config | None = None,
    activations: str = KEEP,
) -> GraphModel:
    """Build a model for this rank's part of a graph. Collective.

    The initial weights follow from ``seed`` alone: they are the same on every rank and for any number of ranks.
    ``model(graph.features)`` returns (n, C) scores of the n nodes that this rank owns, before the softmax.

    Args:
        config: settings of the model.
        graph: this rank's part, as ``hpcgnn.load`` returns it. It must have features.
        strategy: ``pre``, ``post`` or ``hybrid``: where edges between parts are aggregated. Attention over the halo does not
            use it.
        seed: of the initial weights, of dropout and of the noise of rounding.
        messages: bit-widths and coding of boundary messages; None sends float32.
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.
        dtype: type of the weights, ``torch.float32`` or ``torch.float64``.
        compute: arithmetic of products and sums of rows: ``float32``, ``bf16``, ``bf16-emulated``, ``tf32``, ``int8``,
            ``int8-always``, or ``auto``, with which all ranks agree on the faster of ``bf16`` and ``float32``.
            ``model.compute`` is the choice.
        keep_input_aggregation: aggregate the features once and keep the result, an (n, F) matrix of ``dtype``. This needs dense
            features without dropout; ``"auto"`` does so where it is possible and the features are in memory, and
            ``model.keeps_input`` says whether.
        int8: settings of ``compute="int8"``.
        activations: ``keep``, ``recompute`` or ``8bit``: how a training step keeps what its gradients need
            (:mod:`hpcgnn.nn.activations`).

    Returns:
        The model, a ``torch.nn.Module`` on the graph's device.

    Raises:
        HpcgnnError: on every rank, for settings that contradict each other, and for a graph without features.
    """
    check_type("graph", graph, LocalGraph)
    with raise_on_all_ranks(graph.world, f"build a model for {graph.path}"):
        check_type("config", config, ModelConfig)
        check_type("messages", messages, Messages, type(None))
        check_type("dtype", dtype, torch.dtype)
        check_type("int8", int8, Int8Config, type(None))
        check_choice("strategy", strategy, STRATEGIES)
        check_choice("activations", activations, ACTIVATION_MODES[:-1])
        check_choice("backend", backend, ("auto", *backends()))
        check_whole("seed", seed)
        messages = messages or Messages(graph.world, device=graph.device)
        _check_fit(config, graph, messages, dtype, (activations, compute, int8 or Int8Config()))
        keep_input_aggregation = _keeps_input(config, graph, keep_input_aggregation, compute)
        if isinstance(graph.features, FeaturesOnDisk):
            check_features_on_disk(config, compute)
    chosen = choose_compute(graph.world, compute, dtype, graph.device)
    if activations == RECOMPUTE:
        messages.send_by_rank()
    messages.reseed(seed := int(seed))  # a Python integer, because NumPy's integers overflow
    kind: type[GraphModel] = MODELS[config.model] if config.layers else Rows
    connection = kind.connected(
        config, graph, strategy, messages=messages, backend=backend, dtype=dtype, width=config.hidden
    )
    has_input = has_input_layer(config, graph)
    context = ModelContext(
        config.hidden if has_input else graph.meta.num_features,
        graph.meta.num_classes if config.decoder == "none" else config.hidden,
        connection,
        DropoutKeys(graph.original_ids.to(graph.device.torch_device), seed),
        is_sparse=isinstance(graph.features, Csr) and not has_input,
        compute=FLOAT32 if chosen in INTEGERS else chosen,
        keep_input_aggregation=keep_input_aggregation,
        has_input_layer=has_input,
    )
    if keep_input_aggregation:
        _ = messages.transport  # agreed upon here, because ranks that are threads draw their weights one after another
    scale = _features_scale(graph) if config.label_inputs and not has_input else 1.0
    model = _with_weights(kind, config, context, seed, scale, graph)
    model = model.to(graph.device.torch_device, dtype)
    model.graph, model.asked_compute = graph, compute
    model.use_activations(activations)
    if chosen in INTEGERS:
        always, otherwise = chosen == INT8_ALWAYS, "the arithmetic of --compute auto"
        model.int8 = make_int8(int8 or Int8Config(), messages, backend, always=always, otherwise=otherwise)
        model.use_compute(chosen if model.int8.is_useful else choose_compute(graph.world, AUTO, dtype, graph.device))
    return model


def _keeps_input(config: ModelConfig, graph: LocalGraph, asked: Literal[False, True, "auto"], compute: str) -> bool:
    """Return whether the aggregation of the input is kept. Raises HpcgnnError where it is asked for in vain."""
    check_type("keep_input_aggregation", asked, bool, str)
    if isinstance(asked, str):
        check_choice("keep_input_aggregation", asked, (AUTO,))
    if not asked:
        return False
    reason = why_input_changes(config)
    if has_input_layer(config, graph):
        reason = reason or "an input layer for types of nodes learns it"
    if isinstance(graph.features, Csr):
        reason = reason or "sparse features are transformed before they are aggregated"
    if config.model == "sgc" and compute in INTEGERS:
        reason = reason or f"--compute {compute} would compute nothing in integers"
    if asked == AUTO:
        reason = reason or ("features are on disk" if isinstance(graph.features, FeaturesOnDisk) else "")
        if reason and graph.world.rank == 0:
            _LOG.info("--cache-input-aggregation auto keeps no sums of the features: %s", reason)
        return not reason
    if reason:
        raise WrongValueError(f"the aggregation of the input cannot be kept: {reason}")
    return True


def _check_fit(
    config: ModelConfig,
    graph: LocalGraph,
    messages: Messages,
    dtype: torch.dtype,
    way: tuple[str, str, Int8Config],
) -> None:
    """Raise HpcgnnError for settings that cannot be combined with each other or with the graph. way: the way of keeping
    activations, the arithmetic and its settings."""
    if messages.device is not graph.device:
        raise WrongValueError(
            f"messages are on {messages.device.torch_device} and the graph is on {graph.device.torch_device}: make them with "
            "Messages(..., device=graph.device)"
        )
    if dtype not in (torch.float32, torch.float64):
        raise WrongValueError(f"dtype must be torch.float32 or torch.float64, not {dtype}")
    config.check()
    check_kept(config, *way, messages.config, is_stale=messages.keeps_rows, is_double=dtype == torch.float64)
    embedded_types(graph.meta, config.embed, str(graph.path))
    if config.decoder != "none" and CLASSES[config.decoder].has_relations and not graph.meta.num_edge_types:
        raise HpcgnnError(
            f"--decoder {config.decoder} learns a vector for each type of edges, and {graph.path} has no types: convert a graph "
            "with edge_type, or use --decoder dot or mlp"
        )
    if graph.features is None and not config.embed:
        raise HpcgnnError(
            f"{graph.path} has no node features: convert the graph with --features degree:64, onehot or random:64, and partition "
            "it again, or learn a row of each node with --embed all"
        )


def _features_scale(graph: LocalGraph) -> float:
    """The root mean square of the features of all nodes; 1 if that is no scale. Collective."""
    x = graph.features
    values = x.weight if isinstance(x, Csr) else x
    assert isinstance(values, torch.Tensor)
    squares = math.fsum(float(each.double().square().sum()) for each in values.reshape(-1).split(_VALUES_AT_ONCE))
    total = graph.world.allreduce(np.array([squares]), what="the scale of the features")[0]
    mean = float(total) / (graph.meta.num_nodes * graph.meta.num_features or 1)
    return math.sqrt(mean) if 0 < mean < math.inf else 1.0


def _with_weights(
    kind: type[GraphModel],
    config: ModelConfig,
    context: ModelContext,
    seed: int,
    label_scale: float,
    graph: LocalGraph,
) -> GraphModel:
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config, context)
        if config.label_inputs:  # last, so that the other weights are the same as without label inputs
            model.embed_labels = LabelEmbedding(
                context.out_width, context.in_width, context.aggregator.backend, scale=label_scale
            )
        if config.decoder != "none":
            model.decoder = CLASSES[config.decoder](
                context.out_width,
                graph.meta.num_edge_types,
                compute=context.compute,
                backend=context.aggregator.backend,
            )
        if context.has_input_layer:
            how = context.compute, context.aggregator.backend
            model.input_layer = TypedInput(graph, config.hidden, config.embed, seed, *how)
    return model
