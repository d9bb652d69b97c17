"""A program for ranks: one training pass of a model in one of the ways in which it can run, and what shows that way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hpcgnn
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.config import Int8Config
from hpcgnn.nn.graph_model import GraphModel
from hpcgnn.policy import PolicyConfig
from hpcgnn.policy.policies import Policies
from hpcgnn.train.ledger import Ledger
from hpcgnn.train.tasks import features_of
from hpcgnn.world import World

SEED = 1


@dataclass(frozen=True)
class Way:
    """A way of running a model: arguments of ``hpcgnn.load``, ``Messages`` and ``build_model``. rows: ``fresh``, ``stale`` (by
    one epoch) or ``delta`` (differences). epochs: number of equal training passes, of which the last one counts."""

    strategy: str = "hybrid"
    bits: int = 32
    rows: str = "fresh"
    node_aware: str = "off"
    features: str = "memory"
    node_order: str = "none"
    dtype: str = "float32"
    compute: str = "float32"
    activations: str = "keep"
    cached: bool = False
    epochs: int = 1


@dataclass
class Found:
    """The results of a rank. scores: (N, classes). gradients: of all parameters, summed over ranks, and of the features (N, F),
    if these are dense and in memory. parameters: all in full. facts: numbers that show the way, of all ranks together. digest: of
    the bits of this rank's results. refused: the sentence, if the model is refused."""

    scores: np.ndarray
    gradients: dict[str, np.ndarray]
    parameters: dict[str, np.ndarray]
    facts: dict[str, Any]
    digest: str = ""
    refused: str = ""


def draw_constants(model: GraphModel) -> None:
    """Give values to the parameters that begin with the same number everywhere, such as biases: errors in them would not show."""
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
                seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
                noise = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(seed))
                parameter.add_((noise - 0.5).to(parameter.dtype))


def built(graph: LocalGraph, config: hpcgnn.ModelConfig, way: Way) -> GraphModel:
    """The model, with values in all parameters."""
    coding = "delta" if way.rows == "delta" else "plain"
    messages = Messages(graph.world, MessageConfig(way.bits, coding, node_aware=way.node_aware))
    model = hpcgnn.build_model(
        config,
        graph,
        strategy=way.strategy,
        seed=SEED,
        messages=messages,
        dtype=getattr(torch, way.dtype),
        compute=way.compute,
        keep_input_aggregation=way.cached,
        int8=Int8Config(most_error=1),
        activations=way.activations,
    )
    draw_constants(model)
    return model


def on_all_rows(graph: LocalGraph, values: torch.Tensor) -> np.ndarray:
    """(N, ...) rows of all nodes by original id, from those of owned nodes. Collective."""
    found = np.zeros((graph.meta.num_nodes, *values.shape[1:]))
    found[graph.original_ids.numpy()] = values.detach().double().numpy()
    return graph.world.allreduce(found)


def in_full(model: GraphModel, name: str, values: torch.Tensor) -> np.ndarray:
    """The parameter ``name``, or its gradient, of all ranks: rows that a rank has alone are put together. Collective."""
    if name not in model.owned_parameters():
        return values.detach().double().numpy().copy()
    layer = model.input_layer
    assert layer is not None
    rows = np.zeros((layer.num_embedded, values.shape[1]))
    rows[layer.embedded] = values.detach().double().numpy()
    return model.messages.world.allreduce(rows)


@contextmanager
def noted(model: GraphModel, facts: dict[str, Any]) -> Iterator[None]:
    """In the context of a forward pass, count the bytes that it keeps."""
    ledger = Ledger(least_bytes=64)
    ledger.know(model, model.graph)
    with ledger:
        yield
    facts["kept_bytes"] = sum(ledger.blocks[number].num_bytes for number in ledger.live.values())


def one_pass(
    model: GraphModel, x: Any, cotangent: torch.Tensor, policies: Policies | None, facts: dict[str, Any]
) -> Any:
    """The scores of a training pass, whose gradients are left in the parameters. Collective."""
    model.zero_grad()
    if isinstance(x, torch.Tensor):
        x.grad = None
    with noted(model, facts):
        scores = model(x)
    if policies is not None:
        policies.begin_backward()
    (scores * cotangent).sum().backward()
    return scores


def shown(model: GraphModel, x: Any, before: int) -> dict[str, int]:
    """Numbers of this rank that show how the last pass ran."""
    traffic, moving = model.messages.traffic, [each for each in model.aggregators if isinstance(each, Aggregator)]
    strategy = getattr(model.aggregator, "plan", None)
    rows = (0, 0) if strategy is None else (int(strategy.send_to.pre.sum()), int(strategy.send_to.post.sum()))
    return {
        "bytes": int(traffic.bytes_sent.total()) - before,
        "pre": rows[0],
        "post": rows[1],
        "rows_at_once": max((int(each.exchange.receive_counts.sum()) for each in moving), default=0),
        "aged": sum(box.arrived is not None for box in model.messages.kept.mailboxes.values()),
        "differences": len(model.messages.kept.differences),
        "quantized": 0 if model.int8 is None else model.int8.quantizer.take_counts().quantized,
        "shares": sum(bool(each.linear.links) for each in moving),
        "sparse": isinstance(x, Csr),
        "blocks": isinstance(x, FeaturesOnDisk),
    }


def in_one_way(world: World, path: Path, config: hpcgnn.ModelConfig, way: Way, cotangent: np.ndarray) -> Found:
    """One training pass. cotangent: (N, classes), the gradient of the loss by the scores. Collective."""
    try:
        graph = hpcgnn.load(path, world, features=way.features).reordered(way.node_order, 16)
        model = built(graph, config, way)
        policies = None
        if way.rows == "stale":
            train = hpcgnn.TrainConfig(policy=PolicyConfig(staleness="pipeline"))
            policies = hpcgnn.Trainer(model, graph, train).policies
    except hpcgnn.HpcgnnError as error:
        return Found(np.zeros(0), {}, {}, {}, refused=str(error))
    parameters = {name: in_full(model, name, p) for name, p in model.named_parameters()}
    x = features_of(graph, model)
    if isinstance(x, torch.Tensor) and x.shape[1] and not way.cached:
        x = x.clone().requires_grad_()
    mine = torch.from_numpy(cotangent)[graph.original_ids].to(getattr(torch, way.dtype))
    facts: dict[str, Any] = {}
    for epoch in range(way.epochs):
        model.begin_epoch(epoch)
        before = int(model.messages.traffic.bytes_sent.total())
        if policies is not None:
            policies.begin_epoch(epoch)
        scores = one_pass(model, x, mine, policies, facts)
        if policies is not None:
            policies.observe(epoch, 1.0, 1.0, policies.sums())
    facts |= shown(model, x, before)
    model.messages.drain()
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    bits = b"".join(each.detach().numpy().tobytes() for each in (scores, *gradients.values()))
    found = {name: in_full(model, name, each) for name, each in gradients.items()}
    owned = model.owned_parameters()
    found = {name: each if name in owned else world.allreduce(each) for name, each in found.items()}
    if isinstance(x, torch.Tensor) and x.requires_grad:
        found["x"] = on_all_rows(graph, torch.zeros_like(x) if x.grad is None else x.grad)
    names = sorted(facts)
    total = dict(zip(names, world.allreduce(np.array([float(facts[name]) for name in names])).tolist(), strict=True))
    return Found(on_all_rows(graph, scores), found, parameters, total, hashlib.sha256(bits).hexdigest())
