"""Training, evaluation, checkpoints and prediction."""

from hpcgnn.train.trainer import TrainConfig, Trainer

__all__ = ["TrainConfig", "Trainer"]
