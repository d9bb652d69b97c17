"""Models of any kind for a graph."""

from __future__ import annotations

import logging

import torch

from hpcgnn.comm import Messages, together
from hpcgnn.errors import HpcgnnError
from hpcgnn.graph import LocalGraph
from hpcgnn.kernels import Csr
from hpcgnn.nn.aggregate import make_aggregator
from hpcgnn.nn.compute import check_compute
from hpcgnn.nn.config import ATTENTIVE, MODELS, ModelConfig
from hpcgnn.nn.decoder import make_decoder
from hpcgnn.nn.deep import GCNII
from hpcgnn.nn.dropout import DropoutKeys
from hpcgnn.nn.graph_model import Frame, GraphModel
from hpcgnn.nn.halo import attention_edges, make_halo
from hpcgnn.nn.label_embedding import LabelEmbedding
from hpcgnn.nn.partial_attention import make_partial_plan
from hpcgnn.nn.propagation import APPNP, DAGNN, SGC
from hpcgnn.nn.stack import GNN, AttentionGNN, JKNet

_LOG = logging.getLogger("hpcgnn")
_TYPES: dict[str, type[GraphModel]] = {
    "gat": AttentionGNN,
    "gatv2": AttentionGNN,
    "gcnii": GCNII,
    "dagnn": DAGNN,
    "sgc": SGC,
    "appnp": APPNP,
    "jknet": JKNet,
}
_KEEPING = ("gcn", "sage", "gin", "sgc", "jknet")  # those whose first exchange is of the features


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
) -> GraphModel:
    """The model for a graph, with weights drawn from ``seed``: the same on every rank and for any P. Collective.

    ``compute`` (:mod:`hpcgnn.nn.compute`) is the arithmetic of dense products; weights are ``dtype`` whatever it is.
    ``strategy`` is of no matter to attention over the halo, whose neighbours' rows travel as they are.
    """
    config.check()
    if keep_input_aggregation:
        _check_input_is_constant(config, graph)
    with together(graph.world, f"compute in {compute}"):
        warning = check_compute(compute, dtype)
    if warning:
        _LOG.warning(warning)
    if graph.features is None:
        raise HpcgnnError(f"{graph.path} has no node features: convert the graph with --features degree:64 or another")
    messages = messages or Messages(graph.world)
    messages.reseed(seed)
    how = {"messages": messages, "backend": backend, "row_bytes": -(-config.hidden * messages.config.bits // 8)}
    edges = partial = None
    if config.attention == "partial":
        partial = make_partial_plan(graph, strategy, messages=messages, backend=backend)
        aggregator = partial.rows
    elif config.model in ATTENTIVE:
        aggregator, edges = make_halo(graph, **how), attention_edges(graph)  # type: ignore[arg-type]
    else:
        aggregator = make_aggregator(graph, MODELS[config.model], strategy, dtype=dtype, **how)  # type: ignore[arg-type]
    frame = Frame(
        graph.meta.num_features,
        graph.meta.num_classes if config.decoder == "none" else config.hidden,
        aggregator,
        DropoutKeys(graph.original_ids, seed),
        is_sparse=isinstance(graph.features, Csr),
        compute=compute,
        keep_input_aggregation=keep_input_aggregation,
        edges=edges,
        partial=partial,
    )
    model = _with_weights(config, frame, seed).to(dtype)
    model.graph = graph
    return model


def _with_weights(config: ModelConfig, frame: Frame, seed: int) -> GraphModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _TYPES.get(config.model, GNN)(config, frame)
        if config.label_inputs:  # last, so that the others' weights are those that they have without it
            model.embed_labels = LabelEmbedding(frame.out_width, frame.in_width, frame.aggregator.backend)
        if config.decoder != "none":
            how = {"compute": frame.compute, "backend": frame.aggregator.backend}
            model.decoder = make_decoder(config.decoder, frame.out_width, **how)
    return model


def _check_input_is_constant(config: ModelConfig, graph: LocalGraph) -> None:
    """Raise the same error on every rank where the aggregation of the input cannot be kept."""
    reasons = {
        f"{config.model} does not begin with one": config.model not in _KEEPING,
        "dropout of the features draws them anew in each epoch (--input-dropout)": config.input_dropout > 0,
        "labels are added to the features (--label-propagation)": config.label_inputs,
        "sparse features are transformed before they are aggregated": isinstance(graph.features, Csr),
    }
    for reason, applies in reasons.items():
        if applies:
            raise HpcgnnError(f"the aggregation of the input cannot be kept: {reason}", agreed=True)
