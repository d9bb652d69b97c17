"""Projections of a graph in more and more parts (strong scaling), or of graphs that grow with their parts (weak scaling)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.cost_model.model_file import Model
from hpcgnn.lab.cost_model.policies import PLAIN, Decided
from hpcgnn.lab.cost_model.predict import MOST_ONE_BY_ONE, Prediction, Read, predict
from hpcgnn.lab.cost_model.profiles import Profile
from hpcgnn.policy.config import OFF

STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True)
class Way:
    """A way of sending. bits: a number, or the name of a policy. node_aware: as the setting; None: as the others of a
    projection."""

    strategy: str
    bits: str
    staleness: str = OFF
    message_coding: str = PLAIN
    node_aware: str | None = None

    def settings(self) -> dict[str, Any]:
        """The settings by the names of flags."""
        found = {"strategy": self.strategy, "bits": self.bits, "staleness": self.staleness}
        found |= {"message_coding": self.message_coding}
        return found if self.node_aware is None else found | {"node_aware": self.node_aware}

    @property
    def in_words(self) -> str:
        """The text in a legend."""
        bits = f"{self.bits} bits" if self.bits.isdigit() else f"bits {self.bits}"
        words = [self.strategy, bits]
        words += [f"stale {self.staleness}"] if self.staleness != OFF else []
        words += [self.message_coding] if self.message_coding != PLAIN else []
        return ", ".join([*words, "by nodes"] if self.node_aware == "on" else words)


# Each pair of ranks has messages of its own (SuperGCN's figures), but for ``nodes``.
WAYS = {
    "vanilla": Way("post", "32", node_aware="off"),
    "pre": Way("pre", "32", node_aware="off"),
    "hybrid": Way("hybrid", "32", node_aware="off"),
    "int8": Way("hybrid", "8", node_aware="off"),
    "int2": Way("hybrid", "2", node_aware="off"),
    "nodes": Way("hybrid", "32", node_aware="on"),
    "nodes-int2": Way("hybrid", "2", node_aware="on"),
    "pipeline": Way("hybrid", "32", "pipeline", node_aware="off"),
    "uniform": Way("hybrid", "uniform", node_aware="off"),
    "adaqp": Way("hybrid", "adaqp", node_aware="off"),
    "sylvie": Way("hybrid", "sylvie", "sylvie", node_aware="off"),
    "pipeqs": Way("hybrid", "pipeqs", "pipeqs", node_aware="off"),
}
SETS = {
    "strategies": ("vanilla", "pre", "hybrid", "int2"),
    "policies": ("vanilla", "int8", "adaqp", "sylvie", "pipeqs"),
}


def ways_of(text: str) -> dict[str, Way]:
    """The ways that a comma-separated list names: ways, or sets of them.

    Raises:
        HpcgnnError: for an unknown name.
    """
    names = [name for each in text.split(",") for name in SETS.get(each.strip(), (each.strip(),))]
    unknown = [name for name in names if name not in WAYS]
    if unknown:
        raise HpcgnnError(
            f"--ways must be a list of {', '.join((*SETS, *WAYS))}, separated by commas, not {unknown[0]!r}"
        )
    return {name: WAYS[name] for name in names}


def contenders(strategies: Sequence[str], bits: Collection[int]) -> dict[str, Way]:
    """Each strategy with the largest bit-width, and the last strategy with the other bit-widths."""
    most = max(bits)
    chosen = [Way(strategy, str(most)) for strategy in strategies]
    chosen += [Way(strategies[-1], str(each)) for each in sorted(bits, reverse=True) if each != most]
    return {each.in_words: each for each in chosen}


@dataclass(frozen=True, eq=False)
class Point:
    """A prediction, its way, and whether it belongs to strong or weak scaling."""

    scaling: str
    way: str
    prediction: Prediction

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without those of each rank."""
        return {"scaling": self.scaling, "way": self.way} | self.prediction.as_dict(by_rank=False)


@dataclass(frozen=True)
class Task:
    """The predictions to make. files: parts files of strong scaling; growing: of weak scaling. configuration: the common
    settings of all ways. decided, most_messages: arguments of :func:`hpcgnn.lab.cost_model.predict.predict`."""

    files: Sequence[Path]
    growing: Sequence[Path]
    ways: Mapping[str, Way]
    configuration: Mapping[str, Any]
    decided: Sequence[Decided] = field(default=())
    most_messages: int = MOST_ONE_BY_ONE

    @property
    def size(self) -> int:
        """The number of predictions."""
        return (len(self.files) + len(self.growing)) * len(self.ways)


def project(
    model: Model,
    task: Task,
    *,
    profile: Profile | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> list[Point]:
    """A prediction for each parts file and each way, sorted by scaling and ranks. Data of a file are kept only while it is
    used."""
    found = []
    for scaling, files in ((STRONG, task.files), (WEAK, task.growing)):
        for path in files:
            read: dict[Any, Read] = {}
            with PartsFile(path) as file:
                for name, way in task.ways.items():
                    made = predict(
                        model,
                        file,
                        dict(task.configuration) | way.settings(),
                        profile=profile,
                        decided=task.decided,
                        most_messages=task.most_messages,
                        read=read,
                    )
                    found.append(Point(scaling, name, made))
                    advance(1)
    return sorted(found, key=lambda point: (point.scaling != STRONG, point.prediction.ranks))
