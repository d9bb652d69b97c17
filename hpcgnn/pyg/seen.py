"""Recognition of tensors that are used again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Seen:
    """An ``edge_index`` and its weights. They are kept alive, so that no other tensor can get their identity.

    Collective decisions depend on identities and never on values, because some ranks may have no edges.
    """

    edge_index: torch.Tensor
    weight: torch.Tensor | None
    versions: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", _versions(self.edge_index, self.weight))

    def is_of(self, edge_index: torch.Tensor, weight: torch.Tensor | None) -> bool:
        """Return whether the given tensors are these very objects, unchanged."""
        same = self.edge_index is edge_index and self.weight is weight
        return same and self.versions == _versions(edge_index, weight)


class Kept(Generic[T]):
    """Objects made from tensors, stored by tensor and tag. The oldest ones are dropped."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._entries: list[tuple[Seen, Hashable, T]] = []

    def find(self, edge_index: torch.Tensor, weight: torch.Tensor | None, tag: Hashable = None) -> T | None:
        """The object that was stored for these very tensors, or None."""
        return next((made for seen, of, made in self._entries if of == tag and seen.is_of(edge_index, weight)), None)

    def keep(self, edge_index: torch.Tensor, weight: torch.Tensor | None, made: T, tag: Hashable = None) -> None:
        """Store ``made`` for these tensors."""
        self._entries = [*self._entries[-(self._most - 1) :], (Seen(edge_index, weight), tag, made)]


class Recurrence:
    """The tensors of the previous pass. Within one pass, the layers and hops of a model use the same tensors."""

    def __init__(self) -> None:
        self._before: dict[Hashable, Seen] = {}
        self._now: dict[Hashable, Seen] = {}

    def begin_pass(self) -> None:
        """Begin a pass: the tensors used so far belong to the previous pass."""
        self._before, self._now = self._now, {}

    def comes_again(self, place: Hashable, edge_index: torch.Tensor, weight: torch.Tensor | None) -> bool:
        """Return whether these tensors were used last at this ``place`` in the previous pass."""
        self._now[place] = Seen(edge_index, weight)
        return place in self._before and self._before[place].is_of(edge_index, weight)


def _versions(edge_index: torch.Tensor, weight: torch.Tensor | None) -> tuple[int, int]:
    return _version(edge_index), -1 if weight is None else _version(weight)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version  # torch counts no changes of inference tensors
