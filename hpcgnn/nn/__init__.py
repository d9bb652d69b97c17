"""Distributed layers and models."""

from hpcgnn.nn.aggregate import Aggregator, make_aggregator
from hpcgnn.nn.models import GNN, ModelConfig, build_model

__all__ = ["GNN", "Aggregator", "ModelConfig", "build_model", "make_aggregator"]
