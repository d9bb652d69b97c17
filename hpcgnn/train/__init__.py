"""Training, evaluation, checkpoints and prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.base.lazy import attributes

if TYPE_CHECKING:
    from hpcgnn.train.config import TrainConfig
    from hpcgnn.train.run_config import RunConfig
    from hpcgnn.train.trainer import Trainer

__all__ = ["RunConfig", "TrainConfig", "Trainer"]

__getattr__ = attributes(
    __name__,
    {"RunConfig": "hpcgnn.train.run_config", "TrainConfig": "hpcgnn.train.config", "Trainer": "hpcgnn.train.trainer"},
)
