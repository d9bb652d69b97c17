"""METIS through its C interface, from pymetis' extension module or from a system library.

``pymetis.part_graph`` accepts only one weight for each node, and has no objective ``volume`` with several weights. So METIS is
called directly: pymetis' wheels contain METIS and export its C functions. If pymetis does not, a system ``libmetis.so.5`` is
used.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
from collections.abc import Iterator

import numpy as np

from hpcgnn.base.errors import HpcgnnError

_NUM_OPTIONS = 40
_OPTION_OBJECTIVE, _OPTION_SEED = 1, 8
_OBJECTIVES = {"cut": 0, "volume": 1}
_ERRORS = {-2: "it rejected its input", -3: "it ran out of memory", -4: "it gave no reason"}
SYSTEM_NAMES = ("libmetis.so.5", "libmetis.so", "libmetis.dylib")


def index_dtype(library: ctypes.CDLL) -> np.dtype:
    """The ``idx_t`` with which a library that contains METIS was built. Its default options consist of that many
    bytes of 0xff.
    """
    options = np.zeros(4 * _NUM_OPTIONS, dtype=np.int32)
    library.METIS_SetDefaultOptions(options.ctypes.data_as(ctypes.c_void_p))
    return np.dtype(np.int64 if np.count_nonzero(options) > _NUM_OPTIONS else np.int32)


class Metis:
    """A loaded METIS library. index: its integer dtype."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.index = index_dtype(library)

    def partition(
        self,
        graph: tuple[np.ndarray, np.ndarray],
        weights: np.ndarray,
        num_parts: int,
        *,
        objective: str,
        tolerance: float,
        seed: int,
    ) -> np.ndarray:
        """Parts (N,) of a symmetric graph without self-loops.

        graph: ``(indptr (N+1), indices (nnz))``. weights: (N, constraints). Arrays of dtype :attr:`index` need no copy. No part
        should weigh more than ``tolerance`` times the mean. The k-way method is always used: recursive bisection cuts about as
        many edges, but its imbalance grows with every bisection (to 1.2 and more at 16 parts with two constraints), and it has
        no objective ``volume``.
        """
        indptr, indices = (np.ascontiguousarray(array, dtype=self.index) for array in graph)
        weights = np.ascontiguousarray(weights, dtype=self.index)
        options = np.full(_NUM_OPTIONS, -1, dtype=self.index)
        options[_OPTION_OBJECTIVE] = _OBJECTIVES[objective]
        options[_OPTION_SEED] = seed % (1 << 31)
        limits = np.full(weights.shape[1], tolerance, dtype=np.float32)
        parts = np.zeros(indptr.size - 1, dtype=self.index)
        sizes = [np.array([value], dtype=self.index) for value in (indptr.size - 1, weights.shape[1], num_parts, 0)]
        nodes, constraints, count, value = (_pointer(array) for array in sizes)
        self._library.METIS_PartGraphKway.restype = ctypes.c_int
        status = self._library.METIS_PartGraphKway(
            nodes, constraints, _pointer(indptr), _pointer(indices), _pointer(weights), None, None,
            count, None, _pointer(limits), _pointer(options), value, _pointer(parts),
        )  # fmt: skip
        if status != 1:
            raise HpcgnnError(f"METIS failed ({_ERRORS.get(status, f'status {status}')}): try --method ldg")
        return parts


def load_metis(largest: int) -> Metis | None:
    """The METIS library with the narrowest integers that hold ``largest``, else the one with the widest integers; None if there
    is none.

    METIS needs several times the memory of the graph, so 32-bit integers save half of it if they suffice.
    """
    builds = []
    for path in _candidates():
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            if hasattr(library, "METIS_PartGraphKway"):
                builds.append(Metis(library))
    builds.sort(key=lambda metis: metis.index.itemsize)
    fitting = [metis for metis in builds if largest <= np.iinfo(metis.index).max]
    return next(iter(fitting + builds[-1:]), None)


def _candidates() -> Iterator[str]:
    try:
        spec = importlib.util.find_spec("pymetis._internal")
    except ImportError:
        spec = None
    if spec is not None and spec.origin:
        yield spec.origin
    yield from SYSTEM_NAMES


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)
