"""Learning-rate schedules and early stopping. Checkpoints keep the state of both."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from hpcgnn.base.settings import Checked, setting

SCHEDULES = ("constant", "cosine", "step", "plateau")
_OF_DECAYS: dict[str, Any] = {
    "used_if": lambda own: own.schedule in ("step", "plateau"),
    "users": "--schedule step and plateau use it",
}


@dataclass(frozen=True)
class ScheduleConfig(Checked):
    """The learning rate over the epochs.

    schedule: ``constant``; ``cosine``, which falls to zero over the run; ``step``, which multiplies the rate by ``decay`` every
    ``decay_every`` epochs; or ``plateau``, which multiplies it by ``decay`` whenever the validation metric has not improved
    for ``decay_every`` epochs. warmup: number of epochs over which the rate rises linearly at the start.
    """

    schedule: str = setting(
        "constant",
        "Learning-rate schedule. cosine falls to zero over the run; step multiplies the rate by --decay every --decay-every "
        "epochs; plateau does so whenever the validation metric has not improved for --decay-every epochs.",
        choices=SCHEDULES,
    )
    warmup: int = setting(
        0, "Warm-up: number of epochs over which the learning rate rises linearly to --lr; 0 for no warm-up.", least=0
    )
    decay: float = setting(
        0.5,
        "Factor by which the step and plateau schedules multiply the learning rate.",
        above=0,
        most=1,
        **_OF_DECAYS,
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


@dataclass
class Best:
    """The best evaluation so far (a higher metric is better), and the number of decays that followed from plateaus.

    Among equally good evaluations the last one counts, because its model has trained for longer and a few hundred validation
    nodes cannot tell them apart. ``improved`` is the epoch of the first of them. Epochs are counted from 0.
    """

    epoch: int = -1
    val_metric: float | None = None
    test_metric: float | None = None
    plateaus: int = 0
    plateau_since: int = 0
    evaluated: int = -1
    improved: int = -1

    def update(self, epoch: int, val_metric: float | None, test_metric: float | None, decay_every: int) -> bool:
        """Add an evaluation. Returns true if it is the best so far; without validation nodes the latest one is the best."""
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
        """Return whether the metric has not improved for ``patience`` epochs or more; always false for a patience of 0."""
        return patience > 0 and self.evaluated - self.improved >= patience

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Best:
        """The inverse of :meth:`state`.

        Older checkpoints have no ``improved``: the first of equally good evaluations was the best one then.
        """
        return cls(**{"improved": state["epoch"]} | state)

    def state(self) -> dict[str, float | int | None]:
        """The state for a checkpoint."""
        return asdict(self)
