"""Distributed layers and models."""

from hpcgnn.nn.aggregate import Aggregator, make_aggregator
from hpcgnn.nn.config import ModelConfig
from hpcgnn.nn.graph_model import GraphModel
from hpcgnn.nn.models import build_model

__all__ = ["Aggregator", "GraphModel", "ModelConfig", "build_model", "make_aggregator"]
