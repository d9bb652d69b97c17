"""The C++ kernels, loaded with ctypes. :func:`load` answers None where the package was built without a compiler."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch  # torch's OpenMP runtime must be in the process before ours is looked up, so that there is only one

from hpcgnn.kernels.csr import Csr

_ABI_VERSION = 1
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_REAL = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


@functools.cache
def load() -> ctypes.CDLL | None:
    """The native library, or None if there is none that this version can use."""
    for path in sorted(Path(__file__).parent.glob("_native*.so")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        if library.hpcgnn_abi_version() == _ABI_VERSION:
            return library
    return None


def spmm(csr: Csr, rows: tuple[int, int], weight: torch.Tensor | None, x: torch.Tensor, out: torch.Tensor) -> None:
    """Add rows ``[rows[0], rows[1])`` of ``csr @ x`` to the same rows of ``out``."""
    _spmm(csr, rows, weight, x, out, accumulate=True)


def spmm_overwrite(
    csr: Csr, rows: tuple[int, int], weight: torch.Tensor | None, x: torch.Tensor, out: torch.Tensor
) -> None:
    """As :func:`spmm`, but the rows of ``out`` are set: saves clearing and reading them."""
    _spmm(csr, rows, weight, x, out, accumulate=False)


def _spmm(
    csr: Csr,
    rows: tuple[int, int],
    weight: torch.Tensor | None,
    x: torch.Tensor,
    out: torch.Tensor,
    *,
    accumulate: bool,
) -> None:
    first, last = rows
    width = x.shape[1]
    _function("spmm", x.dtype)(
        ctypes.c_int64(last - first),
        ctypes.c_void_p(csr.indptr.data_ptr() + 8 * first),
        ctypes.c_void_p(csr.indices.data_ptr()),
        ctypes.c_void_p(0 if weight is None else weight.data_ptr()),
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_int64(width),
        ctypes.c_void_p(out.data_ptr() + out.element_size() * width * first),
        ctypes.c_int(accumulate),
        ctypes.c_int(torch.get_num_threads()),
    )


def dropout(x: torch.Tensor, ids: torch.Tensor, key: int, threshold: int, scale: float, out: torch.Tensor) -> None:
    """``out = x * scale`` where kept, else 0; the mask is a function of (key, id, column)."""
    _function("dropout", x.dtype)(
        ctypes.c_int64(x.shape[0]),
        ctypes.c_int64(x.shape[1]),
        ctypes.c_void_p(ids.data_ptr()),
        ctypes.c_uint64(key),
        ctypes.c_uint32(threshold),
        _REAL[x.dtype](scale),
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_int(torch.get_num_threads()),
    )


@functools.cache
def _function(name: str, dtype: torch.dtype):  # type: ignore[no-untyped-def]  # a ctypes function pointer
    library = load()
    assert library is not None, "the dispatcher calls native kernels only where the library was loaded"
    function = getattr(library, f"hpcgnn_{name}_{_SUFFIX[dtype]}")
    function.restype = None
    return function
