"""The zoo (tools/pyg_zoo), and a program for ranks: one of its models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rank_pool import ROOT

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world import World

if str(ROOT / "tools") not in sys.path:
    sys.path.append(str(ROOT / "tools"))

from pyg_zoo import graph, layers, page, run, specimens

__all__ = ["graph", "layers", "page", "passes", "run", "specimens"]


def passes(world: World, model: specimens.Specimen, path: Path) -> Any:
    """The original ids of a rank's nodes and the passes of its model, or the sentence that refuses it."""
    try:
        return run.on_a_rank(world, model, model.make(), path)
    except HpcgnnError as error:
        return str(error)
