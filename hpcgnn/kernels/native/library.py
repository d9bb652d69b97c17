"""Finds the native library, and the instruction set to use of those that it was compiled for."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import torch  # torch's OpenMP runtime must be in the process before ours is looked up, so that there is only one

from hpcgnn.errors import HpcgnnError

_ABI_VERSION = 8
_SUFFIX = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.int8: "i8"}


@functools.cache
def load() -> ctypes.CDLL | None:
    """The native library, or None if there is none that this version can use."""
    for path in sorted(Path(__file__).parents[1].glob("_native*.so")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        if library.hpcgnn_abi_version() == _ABI_VERSION:
            library.hpcgnn_isas.restype = library.hpcgnn_last_isa.restype = ctypes.c_char_p
            library.hpcgnn_segment_entries.restype = ctypes.c_int64
            return library
    return None


def isas() -> list[str]:
    """The instruction sets that this CPU can run, the best one last; empty without a library."""
    library = load()
    return [] if library is None else library.hpcgnn_isas().decode().split()


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
    """Whether there are kernels that multiply bfloat16: the instruction set in use is AVX-512, and the CPU has AVX512_BF16."""
    library = load()
    return library is not None and isa() == "avx512" and bool(library.hpcgnn_multiplies_bf16())


def last_isa() -> str:
    """The instruction set of the native kernel that ran last; empty before the first."""
    library = load()
    return "" if library is None else library.hpcgnn_last_isa().decode()


@functools.cache
def function(name: str, dtype: torch.dtype | None = None):  # type: ignore[no-untyped-def]  # a ctypes function pointer
    """The kernel ``name`` for ``dtype`` and the instruction set in use. Pass it :func:`pointer`, c_int64, ... values."""
    library = load()
    assert library is not None, "the dispatcher calls native kernels only where the library was loaded"
    suffix = "" if dtype is None else f"_{_SUFFIX[dtype]}"
    found = getattr(library, f"hpcgnn_{isa()}_{name}{suffix}")
    found.restype = None
    return found


def pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    """Where the tensor's values start; null for None. Raises ValueError for a tensor that is not in this memory."""
    if tensor is not None and tensor.device.type != "cpu":
        raise ValueError(f"kernels take tensors on the CPU, not on {tensor.device}")
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def threads() -> ctypes.c_int:
    """As many threads as torch uses: the caller's ``torch.set_num_threads`` rules both."""
    return ctypes.c_int(torch.get_num_threads())
