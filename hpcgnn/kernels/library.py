"""The native library, and the choice of the instruction set among those for which it was compiled."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # torch's OpenMP runtime must be loaded before our library looks for one, so that there is only one

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.kernels.interface import Interface

_HERE = Path(__file__).resolve()
_FINDING = (
    threading.Lock()
)  # ctypes gives each load of a library types of its own, which do not fit those of another load
_SUFFIX = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
}


class Library:
    """A native library, with the types of its functions' arguments (:class:`Interface`).

    Raises:
        ValueError: in one sentence, for a library that this version cannot use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
            text = self._library.hpcgnn_interface
        except (OSError, AttributeError) as error:
            raise ValueError(f"{path.name} is no library of this version: {error}") from error
        text.restype = ctypes.c_char_p
        self.text: str = text().decode()
        self.interface = Interface(self.text)
        self._check()

    def _check(self) -> None:
        header = (
            _HERE.parents[2] / "native" / "hpcgnn.h"
        )  # in a checkout: an edit of the header may not have been compiled yet
        if header.exists() and header.read_text() != self.text:
            raise ValueError(
                f"{self.path.name} was built from another native/hpcgnn.h: run setup.py build_ext --inplace"
            )
        for name, structure in self.interface.structs.items():
            compiled = self.call("hpcgnn_struct_bytes", name=name.encode())
            if compiled != ctypes.sizeof(structure):
                raise ValueError(
                    f"{self.path.name}: {name} has {compiled} bytes, not {ctypes.sizeof(structure)} as here"
                )

    def function(self, name: str, symbol: str = "") -> Callable[..., Any]:
        """The function that the header calls ``name`` and the library ``symbol``. It is called with named arguments."""
        prototype, flags = self.interface.prototype(name)
        return prototype((symbol or name, self._library), flags)

    def bound(self, name: str, symbol: str, fixed: dict[str, Any]) -> Callable[..., Any]:
        """The function with the arguments ``fixed``, which are checked once and live as long as it. It takes the others by name:
        addresses, unchecked, in place of tensors.
        """
        prototype, flags = self.interface.prototype(name, takes_addresses=True)
        made = functools.partial(prototype((symbol, self._library), flags), **self.interface.converted(name, fixed))
        vars(made)["fixed"] = fixed
        return made

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Call a function that is no kernel, and return its result."""
        return self.function(name)(**arguments)


def load() -> Library | None:
    """The native library, or None if there is none that this version can use. Threads get the same one."""
    with _FINDING:
        return _find()[0]


def missing() -> str | None:
    """The reason why there are no native kernels; None if there are."""
    if load() is not None:
        return None
    return _find()[1] or "hpcgnn was installed without a C++ compiler"


@functools.cache
def _find() -> tuple[Library | None, str]:
    """The library, or None and the problem of the library file that was found."""
    problem = ""
    for path in sorted(_HERE.parent.glob("_native*.so")):
        try:
            return Library(path), ""
        except ValueError as error:
            problem = str(error)
    return None, problem


def isas() -> list[str]:
    """The instruction sets that this CPU can run, the best one last; empty without a library."""
    library = load()
    return [] if library is None else library.call("hpcgnn_isas").decode().split()


@functools.cache
def isa() -> str:
    """The instruction set in use: the best one, or what ``HPCGNN_ISA`` asks for.

    ``sve`` stands for SVE of the vector length that the CPU has (``sve128``, ``sve256``, ``sve512``).

    Raises:
        HpcgnnError: if ``HPCGNN_ISA`` names one that is unknown or that this CPU cannot run.
    """
    asked, usable = os.environ.get("HPCGNN_ISA", ""), isas()
    if not asked:
        return usable[-1]
    matching = [name for name in usable if name == asked or (asked == "sve" and name.startswith("sve"))]
    if not matching:
        raise HpcgnnError(f"HPCGNN_ISA={asked}: this machine can run {', '.join(usable)}; unset it, or set one of them")
    return matching[-1]


def multiplies_bf16() -> bool:
    """Return whether there are kernels that multiply bfloat16: the instruction set in use is AVX-512, and the CPU has
    AVX512_BF16.
    """
    library = load()
    return library is not None and isa() == "avx512" and bool(library.call("hpcgnn_multiplies_bf16"))


@functools.cache
def has_dot_products() -> bool:
    """Return whether there are kernels that add the products of four 8-bit integers by one instruction, for the CPU and the
    instruction set in use. ``HPCGNN_DOT_PRODUCTS=off`` makes it False, to run as on CPUs without these instructions.
    """
    library = load()
    if library is None or os.environ.get("HPCGNN_DOT_PRODUCTS", "on") == "off":
        return False
    return bool(library.call("hpcgnn_has_dot_products", isa=isa().encode()))


def last_isa() -> str:
    """The instruction set of the native kernel that ran last; empty before the first."""
    library = load()
    return "" if library is None else library.call("hpcgnn_last_isa").decode()


@functools.cache
def segment_entries() -> int:
    """The number of entries of the segments in which rows are summed."""
    return _loaded().call("hpcgnn_segment_entries")


@functools.cache
def function(name: str, dtype: torch.dtype | None = None) -> Callable[..., Any]:
    """The kernel ``name`` for ``dtype`` and the instruction set in use; its arguments have the names of ``native/hpcgnn.h``."""
    typed = name if dtype is None else f"{name}_{_SUFFIX[dtype]}"
    return _loaded().function(typed, f"hpcgnn_{isa()}_{typed}")


def bound(name: str, dtype: torch.dtype | None = None, /, **fixed: Any) -> Callable[..., Any]:
    """The same kernel with some arguments fixed; see :meth:`Library.bound`."""
    typed = name if dtype is None else f"{name}_{_SUFFIX[dtype]}"
    return _loaded().bound(typed, f"hpcgnn_{isa()}_{typed}", fixed)


@functools.cache
def struct(name: str) -> Callable[..., ctypes.Structure]:
    """A function that makes a structure of ``native/hpcgnn.h`` from all its fields; see :meth:`Interface.struct`."""
    return _loaded().interface.struct(name)


@functools.cache
def constant(name: str) -> int:
    """The value of an enumerator of ``native/hpcgnn.h``."""
    return _loaded().interface.constants[name]


def _loaded() -> Library:
    library = load()
    assert library is not None, "the dispatcher calls native kernels only where the library was loaded"
    return library


def native(name: str, dtype: torch.dtype | None = None, /, **arguments: Any) -> Any:
    """Call the kernel ``name`` for ``dtype`` on as many threads as torch uses: ``torch.set_num_threads`` sets both."""
    return function(name, dtype)(threads=torch.get_num_threads(), **arguments)
