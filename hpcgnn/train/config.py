"""How a model is trained."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcgnn.policy.config import PolicyConfig
from hpcgnn.settings import Checked, setting
from hpcgnn.train.schedule import ScheduleConfig
from hpcgnn.train.task_config import LINK_METRICS, METRICS, LabelPropagationConfig

_MOST_RATE = 1e30  # Adam multiplies rates by up to 10, in float32


@dataclass(frozen=True)
class TrainConfig(Checked):
    """epochs: in all. lr, weight_decay: of Adam. dense_weight_decay: of a model's ``dense_parameters``; None: the same.
    eval_every: epochs between evaluations. checkpoint_every: epochs between checkpoints. patience: stop after so many epochs
    without a better validation metric; 0 = never. metric: of nodes ``accuracy``, ``micro-f1`` or ``roc-auc``; ``auto`` follows
    the task. labels: which are inputs; a model for it is built with ``label_inputs``. policy: who decides in how many bits rows
    travel, and when they are waited for."""

    epochs: int = setting(100, "In all, resumed ones included.", least=1)
    lr: float = setting(0.01, "Learning rate of Adam.", above=0, most=_MOST_RATE)
    weight_decay: float = setting(0.0, least=0, most=_MOST_RATE)
    dense_weight_decay: float | None = setting(
        None,
        "Of the dense layers that have one in the model's paper.",
        least=0,
        most=_MOST_RATE,
        default_in_words="as --weight-decay",
    )
    eval_every: int = setting(1, "Epochs from one evaluation to the next.", least=1)
    checkpoint_every: int = setting(10, "Epochs from one checkpoint to the next.", least=1)
    patience: int = setting(0, "Stop after so many epochs without a better validation metric; 0 = never.", least=0)
    metric: str = setting(
        "auto",
        "What is evaluated; auto is accuracy, micro-f1 for multi-label graphs, and roc-auc for links.",
        choices=tuple(dict.fromkeys(("auto", *METRICS, *LINK_METRICS))),
    )
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    labels: LabelPropagationConfig = field(default_factory=LabelPropagationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)

    def check(self) -> None:
        """Raise HpcgnnError for values that cannot train."""
        super().check()
        for part in (self.schedule, self.labels, self.policy):
            part.check()
