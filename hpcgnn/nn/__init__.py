"""Distributed layers and models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.base.lazy import attributes

if TYPE_CHECKING:
    from hpcgnn.nn.aggregator import Aggregator
    from hpcgnn.nn.aggregators import make_aggregator
    from hpcgnn.nn.build import build_model
    from hpcgnn.nn.config import ModelConfig
    from hpcgnn.nn.graph_model import GraphModel

__all__ = ["Aggregator", "GraphModel", "ModelConfig", "build_model", "make_aggregator"]

__getattr__ = attributes(__name__)
