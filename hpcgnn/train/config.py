"""Settings of training: the optimiser, epochs, evaluations, checkpoints and the metric."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcgnn.base.settings import Checked, setting
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.train.schedule import ScheduleConfig
from hpcgnn.train.task_config import LINK_METRICS, METRICS, LabelPropagationConfig

_MOST_RATE = 1e30  # Adam multiplies rates by up to 10, in float32


@dataclass(frozen=True)
class TrainConfig(Checked):
    """Settings of training.

    Args:
        epochs: total number of epochs, including those before a resumption.
        lr: learning rate of Adam.
        weight_decay: weight decay of Adam.
        dense_weight_decay: weight decay of a model's ``dense_parameters``; None: ``weight_decay``.
        eval_every: number of epochs from one evaluation to the next.
        checkpoint_every: number of epochs from one checkpoint to the next.
        patience: number of epochs without a better validation metric after which training stops; 0: never.
        metric: ``accuracy``, ``micro-f1`` or ``roc-auc`` for nodes; ``roc-auc``, ``hits@10``, ``hits@50`` or ``hits@100`` for
            links; ``auto`` follows the task.
        schedule: learning-rate schedule, a ``hpcgnn.train.schedule.ScheduleConfig``.
        labels: label propagation, a ``hpcgnn.train.task_config.LabelPropagationConfig``; the model must then be built with
            ``label_inputs``.
        policy: the policies that choose bit-widths and staleness, a ``hpcgnn.PolicyConfig``.

    Raises:
        HpcgnnError: when it is used, for values that are not allowed.
    """

    epochs: int = setting(100, "Total number of epochs, including those before a resume.", least=1)
    lr: float = setting(0.01, "Learning rate of Adam.", above=0, most=_MOST_RATE)
    weight_decay: float = setting(
        0.0,
        "Weight decay (L2 penalty) of Adam, which adds it times the weights to the gradients.",
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
        "Metric of evaluations. auto is accuracy, or micro-f1 for multi-label graphs, or roc-auc for links.",
        choices=tuple(dict.fromkeys(("auto", *METRICS, *LINK_METRICS))),
    )
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    labels: LabelPropagationConfig = field(default_factory=LabelPropagationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)

    def check(self) -> None:
        """Raise HpcgnnError for values that are not allowed. Not collective."""
        super().check()
        for part in (self.schedule, self.labels, self.policy):
            part.check()
