"""Tensors that are recognised when they come again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Seen:
    """An ``edge_index`` and its weights. They are kept, so that no other tensor ever has their identity.

    What ranks do together follows from this and never from values, as some of them may have no edge at all.
    """

    edge_index: torch.Tensor
    weight: torch.Tensor | None
    versions: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", _versions(self.edge_index, self.weight))

    def is_of(self, edge_index: torch.Tensor, weight: torch.Tensor | None) -> bool:
        """Return whether these are the very same, unchanged."""
        same = self.edge_index is edge_index and self.weight is weight
        return same and self.versions == _versions(edge_index, weight)


class Kept(Generic[T]):
    """Objects that were made for tensors, by tensor and tag. The oldest are forgotten."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._entries: list[tuple[Seen, Hashable, T]] = []

    def find(self, edge_index: torch.Tensor, weight: torch.Tensor | None, tag: Hashable = None) -> T | None:
        """The object that was made for these very tensors, or None."""
        return next((made for seen, of, made in self._entries if of == tag and seen.is_of(edge_index, weight)), None)

    def keep(self, edge_index: torch.Tensor, weight: torch.Tensor | None, made: T, tag: Hashable = None) -> None:
        """Find ``made`` from now on."""
        self._entries = [*self._entries[-(self._most - 1) :], (Seen(edge_index, weight), tag, made)]


class Recurrence:
    """The tensors of the pass before: a model's layers, and its hops, use the same ones within a pass."""

    def __init__(self) -> None:
        self._before: dict[Hashable, Seen] = {}
        self._now: dict[Hashable, Seen] = {}

    def begin_pass(self) -> None:
        """Begin a pass: the tensors that came so far belong to the pass before."""
        self._before, self._now = self._now, {}

    def comes_again(self, place: Hashable, edge_index: torch.Tensor, weight: torch.Tensor | None) -> bool:
        """Return whether the last ones of this ``place`` in the pass before were these."""
        self._now[place] = Seen(edge_index, weight)
        return place in self._before and self._before[place].is_of(edge_index, weight)


def _versions(edge_index: torch.Tensor, weight: torch.Tensor | None) -> tuple[int, int]:
    return edge_index._version, -1 if weight is None else weight._version
