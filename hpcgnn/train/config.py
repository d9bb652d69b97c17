"""Settings of training and of its tasks, learning-rate schedules and early stopping. This module does not import torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcgnn.base.errors import WrongValueError
from hpcgnn.base.settings import MOST_SEED, Checked, setting
from hpcgnn.policy.config import PolicyConfig

REAL_METRICS, LOWER_IS_BETTER = ("r2", "rmse", "mae"), ("rmse", "mae")
METRICS = ("accuracy", "micro-f1", "roc-auc", *REAL_METRICS)
MRR = "mrr"
LINK_METRICS = ("roc-auc", "hits@10", "hits@50", "hits@100", MRR)
AT_END, ALWAYS, NEVER = "end", "always", "never"


@dataclass(frozen=True)
class LinkConfig(Checked):
    """Settings of link prediction: the split of links, and their negative pairs.

    Raises:
        HpcgnnError: when it is used, for values that are not allowed, or that leave no links for training.
    """

    link_split: tuple[float, float] = setting(
        (0.05, 0.1),
        "Shares of the links that are held out for validation and for testing. Both directions of an edge are in the same set.",
        metavar="VAL TEST",
    )
    link_seed: int = setting(
        0,
        "Seed of the split and of the negative pairs in evaluations; --seed does not change them.",
        least=0,
        most=MOST_SEED,
    )
    negatives: int = setting(
        1, "Negative sampling: number of node pairs without a link that are drawn for each link in each epoch.", least=1
    )
    negative_pool: int = setting(
        2048,
        "Negative sampling: number of nodes drawn in each epoch, from which each negative pair takes one end; where "
        "nodes have types, as many of each type. Every rank receives their embeddings.",
        least=1,
    )
    # The types of edges that are links, by number or name, separated by commas; empty: all.
    target: str = setting("", name="")
    rank_all: str = setting(
        AT_END,
        "With --metric mrr, time at which the true end of each link is ranked among the candidates that the graph has for "
        "the link, as graphs of ogbl-citation2, ogbl-wikikg2 and ogbl-biokg have, or else all nodes, or all of its type. end: at "
        "the end of the training, for the test links, with the weights of the best epoch; always: also in each evaluation; "
        "never: not at all. Other evaluations rank it among the --negative-pool drawn nodes.",
        choices=(AT_END, ALWAYS, NEVER),
    )

    def check(self) -> None:
        """As :meth:`Checked.check`, and for a split that leaves no links for training."""
        super().check()
        if not (min(self.link_split) >= 0 and sum(self.link_split) < 1):  # false for a NaN
            raise WrongValueError(
                f"link-split must be two shares of at least 0 whose sum is below 1, not {self.link_split}"
            )


@dataclass(frozen=True)
class LabelPropagationConfig(Checked):
    """Settings of label propagation."""

    rate: float = setting(
        0.0,
        "Share of the training labels that are model inputs; 0 turns label propagation off, and SuperGCN's code uses 0.62. An "
        "embedding of these labels is added to the features, and the loss is computed on the other training nodes. "
        "Evaluations and predictions take all training labels and no others as inputs, so the training metric then covers "
        "nodes whose label is an input.",
        name="label_propagation",
        metavar="RATE",
        least=0,
        below=1,
    )
    redraw: str = setting(
        "epoch",
        "Time at which the propagated labels are drawn: in every epoch, or once for the whole run.",
        name="label_redraw",
        choices=("epoch", "once"),
        used_if=lambda own: own.rate > 0,
        users="--label-propagation above 0 uses it",
    )


AUTO, NO_WEIGHTS, BALANCED = "auto", "none", "balanced"
_OF_CLASSES: dict[str, Any] = {"used_if": lambda own: own.loss == AUTO, "users": "--loss auto uses it"}


@dataclass(frozen=True)
class LossConfig(Checked):
    """Settings of the loss of nodes."""

    class_weight: str = setting(
        NO_WEIGHTS,
        "Weight of each class in the loss. balanced: inversely proportional to the number of its training nodes; FILE: text "
        "with a number for each class, from class 0 on. Weights are scaled so that their mean over the training nodes is 1. For "
        "nodes with several labels, they are factors of the loss of the labels that a node has, and balanced is the number of "
        "training nodes without the label per node with it.",
        metavar="none|balanced|FILE",
        **_OF_CLASSES,
    )
    label_smoothing: float = setting(
        0.0,
        "Label smoothing: share of each target that is spread evenly over all classes.",
        least=0,
        below=1,
        **_OF_CLASSES,
    )
    loss: str = setting(
        AUTO,
        "Loss of nodes. auto: cross-entropy for classes, binary for nodes with several labels, and mse for targets that are real "
        "numbers. For these: mse, the squared error; mae, the absolute error; huber, half of the squared error up to errors of 1 "
        "and the absolute error minus 1/2 beyond.",
        choices=(AUTO, "mse", "mae", "huber"),
    )


_OF_DECAYS: dict[str, Any] = {
    "used_if": lambda own: own.schedule in ("step", "plateau"),
    "users": "--schedule step and plateau use it",
}


@dataclass(frozen=True)
class ScheduleConfig(Checked):
    """The learning rate over the epochs."""

    schedule: str = setting(
        "constant",
        "Learning-rate schedule. cosine falls to zero over the run; step multiplies the rate by --decay every --decay-every "
        "epochs; plateau does so whenever the validation metric has not improved for --decay-every epochs.",
        choices=("constant", "cosine", "step", "plateau"),
    )
    warmup: int = setting(
        0, "Warm-up: number of epochs over which the learning rate rises linearly to --lr; 0 for no warm-up.", least=0
    )
    decay: float = setting(
        0.5, "Factor by which the step and plateau schedules multiply the learning rate.", above=0, most=1, **_OF_DECAYS
    )
    decay_every: int = setting(
        50,
        "Number of epochs between two decays (step), or without improvement before a decay (plateau).",
        least=1,
        **_OF_DECAYS,
    )


def learning_rate_factor(config: ScheduleConfig, epoch: int, epochs: int, best: Best) -> float:
    """The factor of the learning rate in ``epoch`` (from 0)."""
    warmup = min(1.0, (epoch + 1) / config.warmup) if config.warmup else 1.0
    if config.schedule == "cosine":
        return warmup * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
    if config.schedule == "step":
        return warmup * config.decay ** (epoch // config.decay_every)
    if config.schedule == "plateau":
        return warmup * config.decay**best.plateaus
    return warmup


def merit(metric: str, value: Any) -> float:
    """The value of a metric, with the sign by which a higher one is better."""
    return -value if metric in LOWER_IS_BETTER else value


def scale_of(metric: str) -> tuple[int, str, str]:
    """A factor, the unit of an axis and a format, by which people see a metric: in percent, or, for regression, as it is."""
    return (1, "", "{:.4g}") if metric in REAL_METRICS else (100, " in %", "{:.2f} %")


def in_words(metric: str, value: float) -> str:
    """The value of a metric for people."""
    factor, _, form = scale_of(metric)
    return form.format(factor * value)


@dataclass
class Best:
    """The best evaluation so far, and the number of decays that followed from plateaus. Among equally
    good evaluations the last one counts, whose model has trained for longer; ``improved`` is the epoch of the first of them."""

    epoch: int = -1
    val_metric: float | None = None
    test_metric: float | None = None
    plateaus: int = 0
    plateau_since: int = 0
    evaluated: int = -1
    improved: int = -1

    def update(
        self, epoch: int, val_metric: float | None, test_metric: float | None, decay_every: int, metric: str = AUTO
    ) -> bool:
        """Add an evaluation by ``metric``. Returns true if it is the best so far; without validation nodes the latest one is the
        best."""
        self.evaluated = epoch
        is_better = val_metric is None or self.val_metric is None
        is_better = is_better or merit(metric, val_metric) > merit(metric, self.val_metric)
        is_best = is_better or val_metric == self.val_metric
        if is_better:
            self.improved = self.plateau_since = epoch
        elif epoch - self.plateau_since >= decay_every:
            self.plateaus, self.plateau_since = self.plateaus + 1, epoch
        if is_best:
            self.epoch, self.val_metric, self.test_metric = epoch, val_metric, test_metric
        return is_best

    def is_exhausted(self, patience: int) -> bool:
        """Return whether the metric has not improved for ``patience`` epochs or more; always false for a patience of 0."""
        return patience > 0 and self.evaluated - self.improved >= patience

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Best:
        """The inverse of :meth:`state`. Without ``improved``, in older ones, the first of equally good evaluations is the
        best."""
        return cls(**{"improved": state["epoch"]} | state)

    def state(self) -> dict[str, float | int | None]:
        """The state for a checkpoint."""
        return asdict(self)


_MOST_RATE = 1e30  # Adam multiplies rates by up to 10, in float32


@dataclass(frozen=True)
class TrainConfig(Checked):
    """Settings of training.

    The page "settings" describes each of them. ``schedule`` is a ``hpcgnn.train.config.ScheduleConfig``, ``labels`` a
    ``hpcgnn.train.config.LabelPropagationConfig`` (the model must then be built with ``label_inputs``), ``loss`` a
    ``hpcgnn.train.config.LossConfig`` and ``policy`` a ``hpcgnn.PolicyConfig``.

    Raises:
        HpcgnnError: when it is used, for values that are not allowed.
    """

    epochs: int = setting(100, "Total number of epochs, including those before a resume.", least=1)
    lr: float = setting(0.005, "Learning rate of Adam; for sgc 0.2.", above=0, most=_MOST_RATE)
    weight_decay: float = setting(
        0.0,
        "Weight decay (L2 penalty) of Adam, which adds it times the weights to the gradients; sgc: 1e-4, gat: 5e-4.",
        least=0,
        most=_MOST_RATE,
    )
    dense_weight_decay: float | None = setting(
        None,
        "Weight decay of the dense layers that have a weight decay of their own in the model's paper.",
        least=0,
        most=_MOST_RATE,
        default_in_words="the value of --weight-decay",
    )
    eval_every: int = setting(
        1, "Number of epochs from one evaluation to the next; the last epoch is always evaluated.", least=1
    )
    checkpoint_every: int = setting(
        10, "Number of epochs from one checkpoint (checkpoints/last.pt) to the next.", least=1
    )
    patience: int = setting(
        0,
        "Early stopping: stop after this number of epochs without a better validation metric; 0 never stops early.",
        least=0,
    )
    metric: str = setting(
        "auto",
        "Metric of evaluations. auto is accuracy, or micro-f1 for multi-label graphs, or r2 (coefficient of determination) for "
        "real targets, or roc-auc for links, or mrr (filtered mean reciprocal rank) for links of a graph with types of edges. "
        "rmse and mae, the errors of real targets, are better the lower they are.",
        choices=tuple(dict.fromkeys(("auto", *METRICS, *LINK_METRICS))),
    )
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    labels: LabelPropagationConfig = field(default_factory=LabelPropagationConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
