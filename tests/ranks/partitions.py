"""Programs for ranks that partition a graph together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.world import World


def partitioned(world: World, graph: Path, target: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The report, or the sentence of the refusal."""
    try:
        return partition(world, graph, target, PartitionOptions(**options)).as_dict()
    except HpcgnnError as error:
        return {"error": str(error), "agreed": error.agreed}
