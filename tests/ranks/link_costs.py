"""A program for ranks: it fits the costs of links."""

from __future__ import annotations

from hpcgnn.comm import World
from hpcgnn.policy.link_costs import LinkCosts, measure_links


def measured(world: World) -> tuple[LinkCosts | None, list[int]]:
    """The costs, which may be unusable on a busy machine, and the nodes of ranks."""
    return measure_links(world), world.hosts().tolist()
