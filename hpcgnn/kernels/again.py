"""Parts of a model that backward runs again (``--activations recompute``), of which their inputs alone are kept.

The first gradient that needs a tensor of a part runs it again, and takes the tensors from there that functions have saved. What
other ranks sent in the first run is kept in the form in which it came, and statistics of norms with it, so the second run sends
nothing and changes no running mean; the gradients of the part travel as in any backward pass. Dropout draws by key, so all values
are the same bits. A rank can decide by itself to run a part again, because no other rank notices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hpcgnn.base.errors import HpcgnnError

T = TypeVar("T")


class _Present(threading.local):  # ranks that are threads have one each, and so have torch's threads of GPUs
    part: _Part | None = None


PRESENT = _Present()


class _Enough(Exception):  # no error
    """All tensors have been found."""


class _Part:
    """One part in one pass. told: what other ranks sent, in its order. state: the same in both runs, or there is no second."""

    def __init__(self, run: Callable[..., Tensor], given: tuple[Any, ...], state: Callable[[], Any]) -> None:
        self._run, self._given, self._state, self._then = run, given, state, state()
        self._count, self._found = 0, dict[int, Tensor]()
        known = [each for one in (run, *given) for each in _tensors_of(one)]
        self._versions = [(each, each._version) for each in known]
        self.told: list[Any] = []
        self.next: int | None = None  # of the values told, in a second run

    def first(self) -> Tensor:
        """The part's result."""
        with saved_tensors_hooks(self._numbered, self._again), _inside(self):
            return self._run(*self._given)

    def _numbered(self, x: Tensor) -> int:
        if x.is_leaf and x.requires_grad:
            self._versions.append((x, x._version))
        self._count += 1
        return self._count - 1

    def _again(self, number: int) -> Tensor:
        if number not in self._found:
            self._run_again()
        return self._found.pop(number)

    def _note(self, x: Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            self._found[len(self._found)] = x.detach()  # without the functions of the second run
        if len(self._found) == self._count:
            raise _Enough

    def note_if_last(self, saved: Sequence[Tensor]) -> None:
        """See :func:`may_be_last`."""
        if self.next is not None and len(self._found) + len(saved) == self._count:
            for each in saved:
                self._note(each)

    def _run_again(self) -> None:
        if any(each._version != version for each, version in self._versions):
            raise HpcgnnError(
                "layers run again in backward with --activations recompute, and their input or weights have changed since "
                "forward: call backward before they change, or take --activations keep",
                agreed=True,
            )
        if self._state() != self._then:
            raise HpcgnnError(
                "layers run again in backward with --activations recompute, and another epoch or an evaluation has begun since "
                "forward: call backward before it, or take --activations keep",
                agreed=True,
            )
        self._found, self.next = {}, 0
        try:
            with torch.enable_grad(), saved_tensors_hooks(self._note, lambda nothing: nothing), _inside(self):
                self._run(*self._given)
        except _Enough:
            return
        raise HpcgnnError("a layer computed otherwise when backward ran it again: take --activations keep")


def _tensors_of(given: Any) -> Iterator[Tensor]:
    """A tensor, or the parameters of a module."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, torch.nn.Module):
        yield from given.parameters()


@contextmanager
def _inside(part: _Part | None) -> Iterator[None]:
    before, PRESENT.part = PRESENT.part, part
    try:
        yield
    finally:
        PRESENT.part = before


def run_again(run: Callable[..., Tensor], *given: Any, state: Callable[[], Any]) -> Tensor:
    """``run(*given)``, which backward runs once more. state: its value must be the same then. Collective as ``run``, but only in
    the first run."""
    return _Part(run, given, state).first()


def is_again() -> bool:
    """Return whether a part runs again."""
    part = PRESENT.part
    return part is not None and part.next is not None


def may_be_last(*saved: Tensor) -> None:
    """Before a function computes a result, and saves these tensors: a part that runs again ends here, if they are the last ones
    that it is run for."""
    part = PRESENT.part
    if part is not None:
        part.note_if_last(saved)


def told_before() -> Any:
    """In a part that runs again, what other ranks told next in the first run; else None."""
    part = PRESENT.part
    if part is None or part.next is None:
        return None
    part.next += 1
    return part.told[part.next - 1]


def tell(found: Callable[[], Any]) -> None:
    """In the first run of a part, keep what other ranks told."""
    part = PRESENT.part
    if part is not None and part.next is None:
        part.told.append(found())


def once(make: Callable[[], T]) -> T:
    """``make()``, which is not differentiable; in a part that runs again, the result of the first run."""
    found: T | None = told_before()
    if found is None:
        with _inside(None):
            made = found = make()
        tell(lambda: made)
    return found
