"""A program of ranks that are to know the stand-in (tests/standin)."""

from __future__ import annotations

from hpcgnn.comm import World


def know_standin(world: World) -> None:
    """Before their first backward pass."""
    from standin import standin

    standin()
