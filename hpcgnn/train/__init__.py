"""Training, evaluation, checkpoints and prediction."""

from hpcgnn.train.config import TrainConfig
from hpcgnn.train.run_config import RunConfig
from hpcgnn.train.trainer import Trainer

__all__ = ["RunConfig", "TrainConfig", "Trainer"]
