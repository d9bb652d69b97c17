"""The cases: every pair of two settings' values occurs in one, with every graph and every kind of feature."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from campaign.numbers import graphs
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.nn.config import MODELS
from hpcgnn.train.run_config import RunConfig

Chosen = dict[str, object]
Axes = dict[str, tuple[object, ...]]
_FEW = {"hidden": 8, "layers": 2, "heads": 2, "hops": 2, "lr": 0.01, "bits_period": 2, "group_rows": 3, "epochs": 3}
_POLICIES = {"loss_window": 1, "drift_threshold": 0.01, "negative_pool": 8, "link_split": (0.1, 0.1)}


EXACT = {
    "arithmetic": ("float32", "float64", "jit", "reference"),
    "bits": ("32",),
    "message_coding": ("plain",),
    "eval_precision": ("float32",),
    "staleness": ("off",),
}
"""Settings with which any number of ranks gives the results of one process, except for rounding."""


def all_axes() -> Axes:
    """The values of each axis; the first one is the plain one."""
    return {
        "edges": tuple(graphs.EDGES),
        "features": tuple(graphs.FEATURES),
        "labels": tuple(graphs.LABELS),
        "ranks": (2, 3, 4),
        "arithmetic": ("float32", "float64", "jit", "reference", "bf16-emulated", "int8-always"),
        "node_aware": ("off", "on"),
        # Graphs have no types and no features of edges.
        "model": tuple(name for name in MODELS if name not in ("gine", "hgt", "rgat", "rgcn")),
        "attention": ("halo", "partial"),
        "norm": ("mean", "batch", "layer", "none"),
        "dropout": (0.0, 0.5),
        "label_propagation": (0.0, 0.5),
        "strategy": ("pre", "post", "hybrid"),
        "task": ("node", "link"),
        "decoder": ("dot", "mlp"),
        "bits": ("32", "16", "8", "4", "2", "1", "uniform", "adaqp", "sylvie", "pipeqs", "auto"),
        "message_coding": ("plain", "delta"),
        "eval_precision": ("float32", "training"),
        "staleness": ("off", "pipeline", "sylvie", "pipeqs", "sancus", "auto"),
        "metric": ("auto", "roc-auc"),
        "cache_input_aggregation": (False, True),
    }


@dataclass(frozen=True)
class Choice:
    """A case: a value for each axis, by the name of the axis."""

    chosen: tuple[tuple[str, object], ...]

    def __getitem__(self, name: str) -> object:
        return dict(self.chosen)[name]

    @property
    def name(self) -> str:
        """The name for ``--only``: graph, features, and all values that differ from the first value of their axis."""
        first = {name: values[0] for name, values in all_axes().items()}
        always = ("edges", "features", "labels", "ranks", "model")
        words = [str(v) if n in always else f"{n}={v}" for n, v in self.chosen if n in always or v != first[n]]
        return ", ".join(words)

    def config(self) -> RunConfig:
        """The settings of the run.

        Raises:
            HpcgnnError: for values that cannot be combined.
        """
        chosen = dict(self.chosen)
        own = {
            name: chosen[name]
            for name in all_axes()
            if name not in ("edges", "features", "labels", "ranks", "arithmetic")
        }
        compute = str(chosen["arithmetic"])
        own["compute"] = compute if compute in ("bf16-emulated", "int8-always") else "float32"
        given = own | _FEW | _POLICIES
        config = RunConfig.from_settings(given, lenient=tuple(given))
        config.check()
        return config


def _are_valid(chosen: Chosen) -> bool:
    try:
        Choice(tuple(chosen.items())).config()
    except HpcgnnError:
        return False
    return True


def cases(rng: np.random.Generator, count: int, axes: Axes) -> Iterator[Choice]:
    """At least this many cases: first cases that cover all pairs, then random ones in which all values are equally likely.

    Pairs of values that cannot be combined occur in none; another section checks which combinations are refused.
    """
    pairs = [((a, x), (b, y)) for a, b in itertools.combinations(axes, 2) for x in axes[a] for y in axes[b]]
    missing = {pairs[number] for number in rng.permutation(len(pairs))}
    order = [pairs[number] for number in rng.permutation(len(pairs))]
    made = 0
    for pair in order:
        if pair not in missing:
            continue
        found = _completed(dict(pair), missing, axes, rng)
        if found is not None:
            missing -= _pairs_of(found)
            made += 1
            yield Choice(tuple(found.items()))
    while made < count:
        found = _completed({}, set(), axes, rng)
        if found is not None:
            made += 1
            yield Choice(tuple(found.items()))


def _completed(
    given: Chosen, missing: set[tuple[tuple[str, object], ...]], axes: Axes, rng: np.random.Generator
) -> Chosen | None:
    """The best of a few choices of the other values that can be combined; None if there is none."""
    best: Chosen | None = None
    most = -1
    for _ in range(5):
        chosen = {
            name: given[name] if name in given else values[int(rng.integers(len(values)))]
            for name, values in axes.items()
        }
        chosen = _made_to_go_together(chosen, given, axes)
        new = len(_pairs_of(chosen) & missing) if missing else 0
        if new > most and _are_valid(chosen):
            best, most = chosen, new
            if not missing:
                break
    return best


def _made_to_go_together(chosen: Chosen, given: Chosen, axes: Axes) -> Chosen:
    """Replace values that cannot be combined, unless the pair needs them. Most random choices would be refused for one of a few
    reasons.
    """
    fixed = dict(chosen)
    if "labels" not in given and fixed["labels"] == "no training nodes":
        fixed["labels"] = "usual"
    if "task" not in given and fixed["edges"] in graphs.WITHOUT_LINKS:
        fixed["task"] = "node"
    for name in (
        "message_coding",
        "cache_input_aggregation",
        "label_propagation",
        "dropout",
        "eval_precision",
        "metric",
        "staleness",
    ):
        if name not in given and not _are_valid(fixed):
            fixed[name] = axes[name][0]
    return fixed


def _pairs_of(chosen: Chosen) -> set[tuple[tuple[str, object], ...]]:
    return set(itertools.combinations(chosen.items(), 2))
