"""A program for ranks: a training of a few epochs, whose outcome is its results or the sentence that refused it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import StopRequest
from hpcgnn.exchange import Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import compute
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.train.links import split_links
from hpcgnn.train.run_config import LINK, RunConfig
from hpcgnn.world import World

_NUDGES = {torch.float32: 2.0**-21, torch.float64: 2.0**-48}


@dataclass
class Outcome:
    """The outcome of a training. refused: the sentence; empty if there was none. losses, metrics: of each epoch. gradients: of
    the first epoch. rows_sent: of all ranks, whether any rows were sent.
    """

    refused: str = ""
    losses: list[float] = field(default_factory=list)
    metrics: list[list[float | None]] = field(default_factory=list)
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    rows_sent: bool = False
    weights_finite: bool = True


def train(world: World, path: Path, config: RunConfig, arithmetic: str, nudge: int = 0) -> Outcome:
    """The outcome of a training on every rank. nudge: seed of random changes of weights and features in their last bits; 0: no
    changes.
    """
    found = Outcome()
    try:
        trainer = _trainer(world, path, config, arithmetic, nudge)
        for epoch in range(config.train.epochs):
            record = trainer.run_epoch()
            found.losses.append(record["loss"])
            found.metrics.append([record[f"{name}_metric"] for name in ("train", "val", "test")])
            found.rows_sent |= record["bytes_sent"] > 0
            if epoch == 0:
                found.gradients = {
                    name: p.grad.double().numpy().copy()
                    for name, p in trainer.model.named_parameters()
                    if p.grad is not None
                }
        trainer.model.messages.drain()
        found.weights_finite = all(bool(p.isfinite().all()) for p in trainer.model.parameters())
    except HpcgnnError as error:
        found.refused = str(error)
    return found


def _trainer(world: World, path: Path, config: RunConfig, arithmetic: str, nudge: int) -> hpcgnn.Trainer:
    dtype = torch.float64 if arithmetic == "float64" else torch.float32
    backend = {"float64": "reference", "jit": "jit", "reference": "reference"}.get(arithmetic, "auto")
    graph = hpcgnn.load(path, world)
    if nudge:
        graph = replace(graph, features=_moved(graph.features, graph, nudge, _NUDGES[dtype]))
    links = split_links(graph, config.links) if config.task == LINK else None
    model = hpcgnn.build_model(
        config.model,
        graph if links is None else links.train,
        messages=Messages(world, config.messages),
        strategy=config.strategy,
        backend=backend,
        dtype=dtype,
        compute=config.compute,
        int8=config.int8,
        keep_input_aggregation=config.cache_input_aggregation,
    )
    if nudge:
        rng = torch.Generator().manual_seed(nudge)
        with torch.no_grad():
            for p in model.parameters():
                p *= 1 + _NUDGES[dtype] * torch.randn(p.shape, generator=rng, dtype=p.dtype)
    return hpcgnn.Trainer(
        model, links or graph, config.train, stop=StopRequest(), clock=Clock(None),
        measure_costs=lambda: LinkCosts({"node": 1e-8}, {"node": 1e-5}),
    )  # fmt: skip


def _moved(x: torch.Tensor, graph: LocalGraph, seed: int, by: float) -> torch.Tensor:
    rows = [np.random.default_rng((seed, int(node))).standard_normal(x.shape[1]) for node in graph.original_ids]
    noise = torch.from_numpy(np.array(rows).reshape(x.shape))
    # Features are stored as float32, so changes below their last bit would have no effect.
    return (x.double() * (1 + max(by, 2.0**-23) * noise)).clamp(-3.4028234e38, 3.4028234e38).to(x.dtype)


@contextlib.contextmanager
def small_products_in_bfloat16() -> Iterator[None]:
    """Use bfloat16 for small products too, which are otherwise computed in float32 because that is faster."""
    with mock.patch.dict(compute._LEAST, dict.fromkeys(compute._LEAST, (1, 1))):
        yield
