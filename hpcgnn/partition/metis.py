"""METIS, ParMETIS and PT-Scotch through ctypes.

``pymetis.part_graph`` accepts only one weight for each node, so METIS is called directly: pymetis' wheels contain METIS and
export its C functions. If pymetis does not, a system ``libmetis.so.5`` is used.

ParMETIS and PT-Scotch both provide ``ParMETIS_V3_PartKway``. ParMETIS' licence covers research and not-for-profit use, so it is
used if the machine has it, but never required. Each of these libraries is linked with one MPI library, and a build for another
MPI than mpi4py's would crash in its first call. This is detected before: after the smallest of its libraries is loaded, there
must not be a second ``libmpi`` in the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import system_text
from hpcgnn.partition.problem import TOLERANCE, Problem
from hpcgnn.world import World, raise_on_all_ranks

_NUM_OPTIONS = 40
_OPTION_OBJECTIVE, _OPTION_SEED = 1, 8
_OBJECTIVES = {"cut": 0, "volume": 1}
_ERRORS = {-2: "it rejected its input", -3: "it ran out of memory", -4: "it gave no reason"}
SYSTEM_NAMES = ("libmetis.so.5", "libmetis.so", "libmetis.dylib")


def index_dtype(library: ctypes.CDLL) -> np.dtype:
    """The ``idx_t`` with which a library that contains METIS was built. Its default options are that many bytes of 0xff."""
    options = np.zeros(4 * _NUM_OPTIONS, dtype=np.int32)
    library.METIS_SetDefaultOptions(_pointer(options))
    return np.dtype(np.int64 if np.count_nonzero(options) > _NUM_OPTIONS else np.int32)


class Metis:
    """A loaded METIS library. index: its integer dtype."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.index = index_dtype(library)

    def assign(self, problem: Problem) -> np.ndarray:
        """Parts (N,) int32 of all nodes, in a job of one rank."""
        graph, options = problem.neighbours(self.index), problem.options
        objective = "cut" if options.objective == "cut" else "volume"
        parts = self.partition(graph, problem.weights(), options.num_parts, objective, options.seed)
        return parts.astype(np.int32, copy=False)

    def partition(
        self, graph: tuple[np.ndarray, np.ndarray], weights: np.ndarray, num_parts: int, objective: str, seed: int
    ) -> np.ndarray:
        """Parts (N,) of a symmetric graph without self-loops. graph: ``(indptr (N+1), indices (nnz))``. weights: (N,
        constraints). Arrays of dtype :attr:`index` need no copy.

        The k-way method is always used: recursive bisection cuts about as many edges, but its imbalance grows with every
        bisection (to 1.2 and more at 16 parts with two constraints), and it has no objective ``volume``.
        """
        indptr, indices, weights = (np.ascontiguousarray(array, dtype=self.index) for array in (*graph, weights))
        options = np.full(_NUM_OPTIONS, -1, dtype=self.index)
        options[_OPTION_OBJECTIVE] = _OBJECTIVES[objective]
        options[_OPTION_SEED] = seed % (1 << 31)
        limits = np.full(weights.shape[1], TOLERANCE, dtype=np.float32)
        parts = np.zeros(indptr.size - 1, dtype=self.index)
        status = _call(
            self._library.METIS_PartGraphKway, self.index, parts.size, weights.shape[1], indptr, indices, weights,
            None, None, num_parts, None, limits, options, 0, parts,
        )  # fmt: skip
        if status != 1:
            raise HpcgnnError(f"METIS failed ({_ERRORS.get(status, f'status {status}')}): try --method ldg")
        return parts


def load_metis(largest: int) -> Metis:
    """The METIS library with the narrowest integers that hold ``largest``, as these take least memory, else with the widest.
    Raises :class:`NotFound` if there is none."""
    builds = []
    for path in _candidates():
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            if hasattr(library, "METIS_PartGraphKway"):
                builds.append(Metis(library))
    if not builds:
        raise NotFound("is not installed (pip install pymetis)")
    builds.sort(key=lambda metis: metis.index.itemsize)
    return next((metis for metis in builds if largest <= np.iinfo(metis.index).max), builds[-1])


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


def _call(function: Any, index: np.dtype, *arguments: Any) -> int:
    """The status of a C function that takes pointers to ``arguments``: arrays, and integers of type ``index``."""
    held = [np.array([value], dtype=index) if isinstance(value, int) else value for value in arguments]
    function.restype = ctypes.c_int
    with stdout_to_stderr():
        return int(function(*(_pointer(value) if isinstance(value, np.ndarray) else value for value in held)))


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect the output of C libraries to stderr, because stdout may have to be one JSON object."""
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


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

    def assign(self, problem: Problem) -> np.ndarray:
        """Parts (n,) int32 of this rank's slab, which has at least one node. Collective."""
        world, options = problem.world, problem.options
        (indptr, indices), weights = problem.neighbours(self.index), problem.weights()
        if weights.shape[1] > self.max_constraints:
            weights = problem.balance.combined(weights, problem.reader.meta.num_nodes)
        constraints, num_parts, seed = weights.shape[1], options.num_parts, options.seed % (1 << 31)
        indices = indices if indices.size else np.zeros(1, dtype=self.index)  # null pointers are rejected
        arrays = (problem.slab.bounds, indptr, indices, weights)
        bounds, indptr, indices, weights = (np.ascontiguousarray(array, dtype=self.index) for array in arrays)
        shares = np.full(num_parts * constraints, 1.0 / num_parts, dtype=np.float32)
        limits = np.full(constraints, TOLERANCE, dtype=np.float32)
        parts = np.zeros(indptr.size - 1, dtype=self.index)
        if self.seeder is not None:
            self.seeder.SCOTCH_randomSeed((ctypes.c_int64 if self.index.itemsize == 8 else ctypes.c_int32)(seed))
            self.seeder.SCOTCH_randomReset()
        weighted, first_id, edge_cut = 2, 0, 0  # 2: nodes have weights, edges have none
        status = _call(
            self.library.ParMETIS_V3_PartKway, self.index, bounds, indptr, indices, weights, None, weighted, first_id,
            constraints, num_parts, shares, limits, np.array([1, 0, seed], dtype=self.index), edge_cut, parts,
            ctypes.byref(_communicator(world)),
        )  # fmt: skip
        with raise_on_all_ranks(world, "partition"):
            if status != 1:
                raise HpcgnnError(f"{self.name} failed on rank {world.rank} (status {status}): try --method ldg")
        return parts.astype(np.int32, copy=False)


def load_parmetis(_: int) -> PartKway:
    """Load ParMETIS. Raises :class:`Unusable` where it is missing, or belongs to another MPI."""
    library = _load_for_this_mpi(PARMETIS_NAMES)
    if not (hasattr(library, "ParMETIS_V3_PartKway") and hasattr(library, "METIS_SetDefaultOptions")):
        raise Unusable("was found, but without ParMETIS_V3_PartKway in it")
    return PartKway("ParMETIS", library, index_dtype(library), max_constraints=64)


def load_ptscotch(largest: int) -> PartKway:
    """Load PT-Scotch, like :func:`load_parmetis`; its build with 64-bit integers if 32 bits do not hold ``largest``. One
    process can use only one of the two builds, because both define the same names."""
    wide = largest > np.iinfo(np.int32).max
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
    return set(re.findall(r"\S+/libmpi(?:ch)?\.so\S*", system_text("/proc/self/maps")))
