"""``ParMETIS_V3_PartKway`` through ctypes, as both ParMETIS and PT-Scotch provide it.

This package has its own binding, because ``pyparmetis`` is not on PyPI. ParMETIS' licence covers research and not-for-profit
use, so ParMETIS is used if the machine has it, but never required. PT-Scotch is free software.

Each of these libraries is linked with one MPI library, and a build for another MPI than mpi4py's would crash in its first call.
This is detected before: after the smallest of its libraries is loaded, there must not be a second ``libmpi`` in the process.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
from dataclasses import dataclass

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.partition.native_metis import index_dtype
from hpcgnn.world import World, raise_on_all_ranks

PARMETIS_NAMES = ("libparmetis.so.4.0", "libparmetis.so", "libparmetis.dylib")
# In the order of dependencies, because Debian's PT-Scotch libraries do not name all libraries that they need.
SCOTCH_NAMES = ("libptscotcherr", "libscotch", "libptscotch", "libptscotchparmetisv3")
SCOTCH_SUFFIXES = ("-7.0.so", ".so")
SCOTCH_64_BIT_FOLDERS = ("/usr/lib/*/scotch-int64", "/usr/lib/scotch-int64", "/usr/lib64/scotch-int64")


class Unusable(Exception):
    """The reason why a library cannot be used here, as words that follow "PT-Scotch" or "ParMETIS" in a sentence."""


class NotFound(Unusable):
    """The library is not on this machine."""


@dataclass
class PartKway:
    """A loaded ``ParMETIS_V3_PartKway``. index: its integer dtype. max_constraints: the most weights that a node can have."""

    name: str
    library: ctypes.CDLL
    index: np.dtype
    max_constraints: int
    seeder: ctypes.CDLL | None = None

    def partition(
        self,
        world: World,
        bounds: np.ndarray,
        graph: tuple[np.ndarray, np.ndarray],
        weights: np.ndarray,
        num_parts: int,
        *,
        tolerance: float,
        seed: int,
    ) -> np.ndarray:
        """Parts (n,) of this rank's slab of a symmetric graph without self-loops. Collective.

        Rank r has the nodes ``[bounds[r], bounds[r+1])``, at least one. graph: ``(indptr (n+1) from 0, indices)`` with global
        indices. weights: (n, constraints).
        """
        arrays = [np.ascontiguousarray(array, dtype=self.index) for array in (bounds, *graph, weights)]
        arrays[2] = arrays[2] if arrays[2].size else np.zeros(1, dtype=self.index)  # null pointers are rejected
        constraints = weights.shape[1]
        shares = np.full(num_parts * constraints, 1.0 / num_parts, dtype=np.float32)
        limits = np.full(constraints, tolerance, dtype=np.float32)
        options = np.array([1, 0, seed % (1 << 31)], dtype=self.index)
        cut = np.zeros(1, dtype=self.index)
        parts = np.zeros(graph[0].size - 1, dtype=self.index)
        flags = [np.array([value], dtype=self.index) for value in (2, 0, constraints, num_parts)]  # 2: weights on nodes
        if self.seeder is not None:
            self.seeder.SCOTCH_randomSeed(
                (ctypes.c_int64 if self.index.itemsize == 8 else ctypes.c_int32)(int(options[2]))
            )
            self.seeder.SCOTCH_randomReset()
        communicator = _communicator(world)
        edge_weights = ctypes.c_void_p(None)
        rest = (*flags, shares, limits, options, cut, parts)
        pointers = [*map(_pointer, arrays), edge_weights, *map(_pointer, rest)]
        self.library.ParMETIS_V3_PartKway.restype = ctypes.c_int
        status = self.library.ParMETIS_V3_PartKway(*pointers, ctypes.byref(communicator))
        with raise_on_all_ranks(world, "partition"):
            if status != 1:
                raise HpcgnnError(f"{self.name} failed on rank {world.rank} (status {status}): try --method ldg")
        return parts


def load_parmetis() -> PartKway:
    """Load ParMETIS.

    Raises:
        Unusable: where it is missing, or belongs to another MPI.
    """
    library = _load_for_this_mpi(PARMETIS_NAMES)
    if not (hasattr(library, "ParMETIS_V3_PartKway") and hasattr(library, "METIS_SetDefaultOptions")):
        raise Unusable("was found, but without ParMETIS_V3_PartKway in it")
    return PartKway("ParMETIS", library, index_dtype(library), max_constraints=64)


def load_ptscotch(*, wide: bool) -> PartKway:
    """Load PT-Scotch; its build with 64-bit integers if ``wide``. One process can use only one of the two builds, because both
    define the same names.

    Raises:
        Unusable: where it is missing, or belongs to another MPI.
    """
    # More threads would change the result from run to run, and ranks already work in parallel. A user's own setting is kept.
    os.environ.setdefault("SCOTCH_PTHREAD_NUMBER", "1")
    folders = [folder for pattern in SCOTCH_64_BIT_FOLDERS for folder in sorted(glob.glob(pattern))] if wide else [""]
    for folder in folders:
        for suffix in SCOTCH_SUFFIXES:
            paths = [os.path.join(folder, name + suffix) for name in SCOTCH_NAMES]
            try:
                _load_for_this_mpi(paths[:1])
                libraries = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in paths]
            except (OSError, NotFound):
                continue
            width = libraries[1].SCOTCH_numSizeof()
            # PT-Scotch's ParMETIS interface reads only one weight for each node.
            return PartKway("PT-Scotch", libraries[-1], np.dtype(f"i{width}"), max_constraints=1, seeder=libraries[1])
    raise NotFound("is not installed with 64-bit integers" if wide else "is not installed")


def _communicator(world: World) -> ctypes.c_void_p | ctypes.c_int:
    """The communicator as a C argument: a pointer in Open MPI, an int in MPICH."""
    handle = world.mpi_handle
    if handle is None:
        raise HpcgnnError("ParMETIS and PT-Scotch need ranks of MPI: try --method metis")
    is_pointer = handle.num_bytes == ctypes.sizeof(ctypes.c_void_p)
    return (ctypes.c_void_p if is_pointer else ctypes.c_int)(handle.value)


def _load_for_this_mpi(names: tuple[str, ...] | list[str]) -> ctypes.CDLL:
    """Load the first of ``names`` that exists, without making its symbols visible to other libraries."""
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if len(_mpi_libraries()) > 1:  # an earlier library may have loaded it, which rules out both
            raise Unusable("is installed for another MPI library than mpi4py's")
        return library
    raise NotFound("is not installed")


def _mpi_libraries() -> set[str]:
    """The MPI libraries mapped into this process; empty if /proc does not show them."""
    try:
        with open("/proc/self/maps") as maps:
            return set(re.findall(r"\S+/libmpi(?:ch)?\.so\S*", maps.read()))
    except OSError:
        return set()


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)
