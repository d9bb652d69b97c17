"""Learning-rate schedules and early stopping, both with a state that checkpoints keep."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from hpcgnn.settings import Checked, setting

SCHEDULES = ("constant", "cosine", "step", "plateau")
_OF_DECAYS: dict[str, Any] = {
    "used_if": lambda own: own.schedule in ("step", "plateau"),
    "users": "--schedule step and plateau use it",
}


@dataclass(frozen=True)
class ScheduleConfig(Checked):
    """schedule: ``constant``; ``cosine`` to zero over the run; ``step``: times ``decay`` every ``decay_every`` epochs;
    ``plateau``: times ``decay`` when the validation metric has not improved for ``decay_every`` epochs.
    warmup: epochs of linear rise at the start."""

    schedule: str = setting("constant", "Learning rate over the epochs.", choices=SCHEDULES)
    warmup: int = setting(0, "Epochs of linear rise.", least=0)
    decay: float = setting(0.5, "Factor of the step and plateau schedules.", above=0, most=1, **_OF_DECAYS)
    decay_every: int = setting(50, "Epochs between decays.", least=1, **_OF_DECAYS)


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


@dataclass
class Best:
    """The best evaluation so far (higher is better), and what follows from how long ago it was.

    Of equally good ones the last counts, which has learned for longer: a few hundred validation nodes cannot tell them
    apart. ``improved`` is the epoch of the first of them.
    """

    epoch: int = -1
    val_metric: float | None = None
    test_metric: float | None = None
    plateaus: int = 0
    plateau_since: int = 0
    evaluated: int = -1
    improved: int = -1

    def update(self, epoch: int, val_metric: float | None, test_metric: float | None, decay_every: int) -> bool:
        """Take in an evaluation; true if it is the best. Without validation nodes the latest one counts as best."""
        self.evaluated = epoch
        is_better = val_metric is None or self.val_metric is None or val_metric > self.val_metric
        is_best = is_better or val_metric == self.val_metric
        if is_better:
            self.improved = self.plateau_since = epoch
        elif epoch - self.plateau_since >= decay_every:
            self.plateaus, self.plateau_since = self.plateaus + 1, epoch
        if is_best:
            self.epoch, self.val_metric, self.test_metric = epoch, val_metric, test_metric
        return is_best

    def is_exhausted(self, patience: int) -> bool:
        """Whether the last evaluation came ``patience`` epochs or more after the last better one; never for 0."""
        return patience > 0 and self.evaluated - self.improved >= patience

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Best:
        """The inverse of :meth:`state`. Before there was ``improved``, the first of equally good ones was the best."""
        return cls(**{"improved": state["epoch"]} | state)

    def state(self) -> dict[str, float | int | None]:
        """For a checkpoint."""
        return asdict(self)
