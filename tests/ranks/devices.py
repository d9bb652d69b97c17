"""Ranks that use the stand-in device (tests/standin), and an MPI that takes its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcgnn.world import World


def know_standin(world: World) -> None:
    """Register the stand-in before the first backward pass."""
    from standin import standin

    standin()


@contextmanager
def taking_device_memory(world: World, *, takes: bool = True) -> Iterator[None]:
    before = type(world).takes_memory_of
    type(world).takes_memory_of = lambda self, kind: takes and kind == "standin"  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        type(world).takes_memory_of = before  # type: ignore[method-assign]
