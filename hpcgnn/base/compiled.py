"""numba's ``njit``, whose code is compiled again where there is no place to keep it.

numba looks for a place in ``NUMBA_CACHE_DIR``, beside the source, and in the user's home folder. If none of them can be written,
its own decorator raises an error when a module is imported; and a full disk, or a damaged file, ends the first call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event
from numba.core.caching import FunctionCache

_COMPILING = event.TimingListener()
event.register("numba:compile", _COMPILING)


def compile_seconds() -> float:
    """The seconds in which numba has compiled in this process."""
    return float(_COMPILING.duration) if _COMPILING.done else 0.0


def clock() -> float:
    """Seconds since any time, without those in which numba has compiled."""
    return time.perf_counter() - compile_seconds()


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator as ``numba.njit``. cache: keep compiled code for later processes, if there is a place."""

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = numba.njit(**options)(function)
        if cache and compiled is not function:  # with NUMBA_DISABLE_JIT it is the function itself
            with contextlib.suppress(RuntimeError):  # there is no place
                compiled._cache = _Cache(function)
        return compiled

    return decorate


class _Cache(FunctionCache):
    """A cache that finds nothing where its files cannot be read, and keeps nothing where they cannot be written."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As numba's; None where a file is damaged, which raises whatever its bytes make of it."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:
            with contextlib.suppress(OSError):
                self.flush()  # an empty index, which numba would else read again before it saves
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """As numba's; nothing is kept where the system refuses it."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)
