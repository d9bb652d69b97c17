"""Training, evaluation, checkpoints and prediction."""
