"""Rank 0 prints of each SPLIT whether it gives all ranks the masks of PARTS: ``mpirun python split_anew.py PARTS SPLIT ...``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import torch

import hpcgnn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
train_many = importlib.import_module("train_many")

graph = hpcgnn.load(sys.argv[1])
for split in sys.argv[2:]:
    masks = train_many.split_anew(graph, split).masks
    same = all(torch.equal(masks[name], mask) for name, mask in graph.masks.items())
    everywhere = bool(graph.world.allreduce(np.array([same], np.int64), "min")[0])
    if graph.world.rank == 0:
        print(everywhere)
