"""A program of ranks: whether a split gives all of them the masks of PARTS."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch

import hpcgnn
from hpcgnn.comm import World

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
train_many = importlib.import_module("train_many")


def same_masks(world: World, parts: Path, split: str) -> bool:
    """On this rank."""
    graph = hpcgnn.load(parts, world)
    masks = train_many.split_anew(graph, split).masks
    return all(torch.equal(masks[name], mask) for name, mask in graph.masks.items())
