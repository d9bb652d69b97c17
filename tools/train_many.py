"""Rank program: several trainings, one after the other in the same processes.

usage: hpcgnn launch -n RANKS python train_many.py TRAININGS.json

TRAININGS.json is a list of objects: `name` is given back, `parts` is the graph, `split` is as in `hpcgnn convert
--split` and made anew for this training (without it the graph keeps its own), `seed` is of weights, dropout and
messages, `strategy` and `compute` are as in `build_model`, and `model`, `messages`, `policy`, `labels`, `schedule`,
`train`, `int8` hold what differs from the defaults of ModelConfig, MessageConfig, PolicyConfig, LabelPropagationConfig,
ScheduleConfig, TrainConfig and Int8Config. With `links`, which does so for LinkConfig, it learns links. Rank 0 prints a
line for each as it ends: its `name`, the content of `summary.json` and, where `records` is true, `records`: lists over
epochs of those values of `metrics.jsonl` that RECORDED names.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hpcgnn
from hpcgnn.comm import Messages, MpiWorld, World
from hpcgnn.comm.messages import MessageConfig
from hpcgnn.comm.threads import use_threads
from hpcgnn.data.split import make_split, parse_split
from hpcgnn.graph import LocalGraph
from hpcgnn.memory import keep_freed_memory
from hpcgnn.nn.int8 import Int8Config
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.policy.link_costs import LinkCosts, measure_links
from hpcgnn.stop import StopRequest
from hpcgnn.train.label_propagation import LabelPropagationConfig
from hpcgnn.train.links import LinkConfig, LinkSplit, split_links
from hpcgnn.train.schedule import ScheduleConfig

TRIES = 3
CHOSEN = {"strategy": "hybrid", "compute": "float32"}
RECORDED = (
    "seconds",
    "eval_seconds",
    "policy_seconds",
    "communication_wait_seconds",
    "wire_seconds",
    "bytes_sent",
    "val_metric",
    "test_metric",
    "stale",
    "bits",
)


def main() -> None:
    """Train everything that the file asks for. Collective."""
    trainings = json.loads(Path(sys.argv[1]).read_text())
    world = MpiWorld()
    use_threads(world)
    graphs = {parts: hpcgnn.load(parts, world) for parts in dict.fromkeys(training["parts"] for training in trainings)}
    keep_freed_memory()
    costs = functools.cache(functools.partial(link_costs, world))

    @functools.lru_cache(maxsize=1)  # trainings that follow each other have the same more often than not
    def learned(parts: str, split: str | None, links: LinkConfig | None) -> LocalGraph | LinkSplit:
        graph = graphs[parts] if split is None else split_anew(graphs[parts], split)
        return graph if links is None else split_links(graph, links)

    for training in trainings:
        links = LinkConfig(**training["links"]) if "links" in training else None
        summary = train(learned(training["parts"], training.get("split"), links), training, costs)
        if world.rank == 0:
            print(json.dumps({"name": training["name"]} | summary), flush=True)


def split_anew(graph: LocalGraph, split: str) -> LocalGraph:
    """The graph with the split that `hpcgnn convert` would give it; every rank holds all labels for a moment. Collective."""
    assert graph.y is not None
    everyones = np.zeros((graph.meta.num_nodes, *graph.y.shape[1:]), np.int64)
    everyones[graph.original_ids] = graph.y
    y = graph.world.allreduce(everyones)
    masks = make_split(
        parse_split(split), lambda first, last: y[first:last], y.shape[0], graph.meta.task, str(graph.path)
    )
    return replace(graph, masks={name: torch.from_numpy(mask)[graph.original_ids] for name, mask in masks.items()})


def link_costs(world: World) -> LinkCosts | None:
    """What messages cost, for all trainings; asked for again where a moment's noise left none that fit. Collective."""
    for _ in range(TRIES):
        costs = measure_links(world)
        if costs is not None:
            return costs
    return None


def train(
    learned: LocalGraph | LinkSplit, training: dict[str, Any], measure_costs: Callable[[], LinkCosts | None]
) -> dict[str, Any]:
    """One training from the start; returns the content of ``summary.json``, with ``records`` if wanted. Collective."""
    graph = learned.train if isinstance(learned, LinkSplit) else learned
    labels = LabelPropagationConfig(**training.get("labels", {}))
    config = hpcgnn.ModelConfig(**training.get("model", {}), label_inputs=labels.rate > 0)
    messages = Messages(graph.world, MessageConfig(**training.get("messages", {})))
    chosen: dict[str, Any] = {name: training.get(name, default) for name, default in CHOSEN.items()}
    chosen["int8"] = Int8Config(**training.get("int8", {}))
    model = hpcgnn.build_model(config, graph, messages=messages, seed=training["seed"], **chosen)
    schedule = ScheduleConfig(**training.get("schedule", {}))
    policy = PolicyConfig(**training.get("policy", {}))
    settings = hpcgnn.TrainConfig(**training.get("train", {}), schedule=schedule, labels=labels, policy=policy)
    trainer = hpcgnn.Trainer(model, learned, settings, stop=StopRequest(), measure_costs=measure_costs)
    return trainer.fit() | ({"records": over_epochs(trainer.records)} if training.get("records") else {})


def over_epochs(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A list over epochs of each value that any epoch has; None for those that lack it."""
    found = [key for key in RECORDED if any(key in record for record in records)]
    return {key: [record.get(key) for record in records] for key in found}


if __name__ == "__main__":
    main()
