"""Run under mpirun: a model and two policies that are defined only in this file, used through the command line and through
Python.

usage: toys.py PARTS.h5 FOLDER; prints the results as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tomllib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.base.settings import setting
from hpcgnn.cli.main import cli
from hpcgnn.exchange import Messages
from hpcgnn.exchange.mailbox import FRESH, STALE
from hpcgnn.nn.config import LayerSettings, ModelConfig, register
from hpcgnn.nn.graph_model import GraphModel, ModelContext
from hpcgnn.nn.layers import Dense
from hpcgnn.nn.linear import Features
from hpcgnn.policy.base import BitsPolicy, ExchangeFacts, Observation, StalenessPolicy
from hpcgnn.policy.config import BITS_POLICIES, STALENESS_POLICIES, StaleSettings


@dataclass(frozen=True)
class BlendSettings:
    """The settings of the toy model."""

    blend: float = setting(0.25, "Share of the neighbours in each layer.", least=0, most=1)


@register("toy")
class Toy(GraphModel):
    """Dense layers, each of which mixes in the neighbours."""

    summary = "dense layers that mix in their neighbours"
    settings = (LayerSettings, BlendSettings)
    aggregation = "mean"

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        pairs = pairwise(self.widths(context))
        self.dense = torch.nn.ModuleList(Dense(*pair, compute=context.compute, backend=self.backend) for pair in pairs)
        self.neighbours = [self.new_aggregator() for _ in self.dense]

    def scores(self, x: Features) -> torch.Tensor:
        for number, (dense, neighbours) in enumerate(zip(self.dense, self.neighbours, strict=True)):
            y = dense(self.activated(x) if number else x)
            x = torch.lerp(y, neighbours(y), self.config.blend)
        return x


@dataclass(frozen=True)
class FewSettings:
    few_bits: int = setting(4, "Bit-width in every other epoch.", choices=(2, 4))


@BITS_POLICIES.register("alternating")
class Alternating(BitsPolicy):
    """8 bits, and fewer in every other epoch."""

    summary = "has 8 and fewer by turns"
    settings = (FewSettings,)
    needs_clock = True

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        few = self.setup.config.section(FewSettings).few_bits
        for facts in self.all_facts:
            facts.exchange.row_bits = facts.exchange.uniform_bits(few if epoch % 2 else 8)
        return {}


@dataclass(frozen=True)
class FreshSettings:
    fresh_every: int = setting(3, "Number of epochs from one fresh epoch to the next.", least=1)


@STALENESS_POLICIES.register("now-and-then")
class NowAndThen(StalenessPolicy):
    """Stale rows, except in every third epoch."""

    summary = "but for some epochs"
    settings = (FreshSettings, StaleSettings)
    epoch = 0

    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        every = self.setup.config.section(FreshSettings).fresh_every
        for facts in all_facts:
            facts.exchange.freshness = STALE if self.epoch % every else FRESH

    def observe(self, seen: Observation) -> None:
        self.epoch = seen.epoch + 1


SIZES = {"layers": 2, "hidden": 8, "epochs": 6, "dropout": 0.0, "eval_every": 6}
TOYS = {
    "model": "toy",
    "blend": 0.5,
    "bits": "alternating",
    "few_bits": 2,
    "staleness": "now-and-then",
    "fresh_every": 2,
}


def command(*arguments: str) -> str:
    """The output of a command on this rank."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        cli.main(list(arguments), standalone_mode=False, obj=StopRequest())
    return printed.getvalue()


def on_command_line(parts: str, out: Path, settings: dict[str, object]) -> list[dict[str, Any]]:
    flags = [str(word) for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    command("train", parts, "--out", str(out), *flags, "--quiet")
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def refused(make: Any) -> str:
    try:
        make()
    except hpcgnn.HpcgnnError as error:
        return str(error)
    return "nothing"


def main(parts: str, folder: Path) -> None:
    records = on_command_line(parts, folder / "run", SIZES | TOYS)
    graph = hpcgnn.load(parts)
    run = hpcgnn.RunConfig.from_settings(SIZES | TOYS)
    assert isinstance(run.model, ModelConfig)
    assert run.model == hpcgnn.ModelConfig("toy", layers=2, hidden=8, dropout=0.0, blend=0.5)
    policy = hpcgnn.PolicyConfig("alternating", "now-and-then", few_bits=2, fresh_every=2)
    assert run.train.policy == policy
    model = hpcgnn.build_model(run.model, graph, messages=Messages(graph.world, run.messages))
    train = hpcgnn.TrainConfig(epochs=6, eval_every=6, policy=policy)
    trainer = hpcgnn.Trainer(model, graph, train, stop=StopRequest())
    trainer.fit()
    command("predict", parts, str(folder / "run"), "--out", str(folder / "scores.h5"), "--quiet")
    command("train", parts, "--out", str(folder / "again"), "--config", str(folder / "run" / "config.toml"), "--quiet")
    small = {name: value for name, value in SIZES.items() if name != "epochs"}
    found = {
        "command": [record["loss"] for record in records],
        "python": [record["loss"] for record in trainer.records],
        "bits": [sorted({bits for counts in record["bits"].values() for bits in counts}) for record in records],
        "stale": [record["stale"] for record in records],
        "observed": [
            json.loads(line)["observed"] for line in (folder / "run" / "decisions.jsonl").read_text().splitlines()
        ],
        "again": [json.loads(line)["loss"] for line in (folder / "again" / "metrics.jsonl").read_text().splitlines()],
        "config": tomllib.loads((folder / "run" / "config.toml").read_text()),
        "help": " ".join(command("train", "--help").split()),
        "refused": [
            refused(lambda: on_command_line(parts, folder / "no", small | {"blend": 0.5})),
            refused(lambda: on_command_line(parts, folder / "no", small | {"few_bits": 2})),
            refused(lambda: hpcgnn.ModelConfig("gcn", blend=0.5)),
            refused(lambda: hpcgnn.PolicyConfig(staleness="pipeline", fresh_every=5)),
            refused(lambda: hpcgnn.ModelConfig("toy", blend=1.5).check()),
        ],
    }
    if graph.world.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
