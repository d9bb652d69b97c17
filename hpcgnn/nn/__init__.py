"""Distributed layers and models."""

from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.aggregators import make_aggregator
from hpcgnn.nn.build import build_model
from hpcgnn.nn.config import ModelConfig
from hpcgnn.nn.graph_model import GraphModel

__all__ = ["Aggregator", "GraphModel", "ModelConfig", "build_model", "make_aggregator"]
