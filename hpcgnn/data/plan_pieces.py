"""Pieces of a plan: files with the plan of one receiver each, so that several processes can plan, and a later one can continue.

    256 bytes: b"hpcgnn-plan-pc 1", uuid of the parts (32 bytes), strategy (16), checksum uint64, lengths of the arrays (int64)
    then the arrays of ``ARRAYS``, one after the other

A piece gets its name only when it is complete. The processes run ``python -m hpcgnn.data.plan_pieces parts.h5 STRATEGY FOLDER``,
and read a part's number from each line. They import neither torch nor numba nor MPI, so that each takes about 70 MB beside the
edges of its part. If the process that started them is killed, they end after their current part.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import checksums
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.plan import plan_receiver
from hpcgnn.plan.plan import offsets_of
from hpcgnn.plan.relations import BY_TYPE, RelationRows

# `entries` has the number of entries in each peer's rows of S; `lengths`, `sources` and `edges` are those rows.
ARRAYS = MappingProxyType(
    {f"{m}_{name}": kind for m in "LR" for name, kind in (("indptr", "<i8"), ("indices", "<i4"), ("edges", "<i8"))}
    | dict.fromkeys(("peers", "post", "pre", "entries", "lengths"), "<i8")
    | {"sources": "<i4", "edges": "<i8"}
)
_MAGIC = b"hpcgnn-plan-pc 1"
_HEADER = np.dtype(
    [("magic", "S16"), ("uuid", "S32"), ("strategy", "S16"), ("checksum", "<u8"), ("lengths", "<i8", len(ARRAYS))]
)
_HEADER_BYTES = 256
_READ_BYTES = 1 << 20
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_EDGES_A_PROCESS = 1 << 21  # for fewer edges, starting another process takes longer than it saves
# Memory of a planning process without edges, and for each edge of its part.
_PROCESS_BYTES, _BYTES_AN_EDGE = 80 << 20, 120


def path_of(folder: Path, strategy: str, part: int) -> Path:
    """The path of the piece of ``part``."""
    return folder / f"{strategy}.{part}.piece"


def make(parts: PartsFile, strategy: str, folder: Path, part: int) -> None:
    """Plan the rows that ``part`` receives, and write the piece into ``folder``. Takes O(edges of the part) memory and time."""
    edges, rows = parts.edges(*parts.part(part), part), None
    if strategy.endswith(BY_TYPE):
        types = parts.of_edges("type", int(edges[0][0]), int(edges[0][-1]), part)
        nodes = np.arange(edges[0].size - 1)
        if types is None:
            raise HpcgnnError(f"{parts.path} has no types of edges: convert a graph with edge_type")
        rows = RelationRows.of(types, np.repeat(nodes, np.diff(edges[0])), nodes.size, parts.meta.num_edge_types).rows
    mean_edges = parts.meta.num_edges / parts.num_parts
    plan = plan_receiver(*edges, parts.node_offsets, part, strategy.removesuffix(BY_TYPE), rows, mean_edges)
    received, wanted = plan.receive_from, plan.wanted
    entry_ends = offsets_of(wanted.lengths)[offsets_of(received.rows)]
    matrices = {f"{m}_{name}": getattr(each, name) for m, each in (("L", plan.local), ("R", plan.receive))
                for name in ("indptr", "indices", "edges")}  # fmt: skip
    tables = {"peers": received.peers, "post": received.post, "pre": received.pre, "entries": np.diff(entry_ends)}
    values = matrices | tables | vars(wanted)
    arrays = [np.ascontiguousarray(values[name], dtype=kind) for name, kind in ARRAYS.items()]
    _write(path_of(folder, strategy, part), parts.uuid, strategy, arrays)


def _write(path: Path, uuid: str, strategy: str, arrays: list[np.ndarray]) -> None:
    lengths = np.array([array.size for array in arrays], dtype="<i8")
    header = np.zeros((), dtype=_HEADER)
    header["magic"], header["uuid"], header["strategy"], header["lengths"] = _MAGIC, uuid, strategy, lengths
    header["checksum"] = checksums.of_arrays([lengths, *arrays])
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(header.tobytes().ljust(_HEADER_BYTES, b"\0"))
        for array in arrays:
            file.write(array.data)
    os.replace(temporary, path)


def remove(folder: Path, strategy: str) -> None:
    """Remove all pieces of the plan for ``strategy``, complete or not."""
    for path in folder.glob(f"{strategy}.*.piece*"):
        path.unlink(missing_ok=True)


def is_whole(path: Path, uuid: str, strategy: str) -> bool:
    """Return whether ``path`` is a complete piece of this plan whose checksum is right; all of it is read."""
    try:
        with Piece(path, uuid, strategy) as piece:
            return piece.has_its_checksum()
    except (OSError, HpcgnnError):
        return False


class Piece:
    """An open piece. lengths: of its arrays. offsets: the byte of the file at which each array begins. Construction raises
    HpcgnnError if the file is not a complete piece of this plan, and OSError."""

    def __init__(self, path: Path, uuid: str, strategy: str) -> None:
        self.path, self._file = path, path.open("rb")
        header = np.frombuffer(self._file.read(_HEADER_BYTES).ljust(_HEADER_BYTES, b"\0"), _HEADER, 1)[0]
        self._checksum, self.lengths = (
            int(header["checksum"]),
            dict(zip(ARRAYS, header["lengths"].tolist(), strict=True)),
        )
        sizes = [self.lengths[name] * np.dtype(kind).itemsize for name, kind in ARRAYS.items()]
        *begins, end = np.cumsum([_HEADER_BYTES, *sizes]).tolist()
        self.offsets = dict(zip(ARRAYS, begins, strict=True))
        known = (header["magic"], header["uuid"], header["strategy"]) == (_MAGIC, uuid.encode(), strategy.encode())
        if not known or min(sizes) < 0 or os.fstat(self._file.fileno()).st_size != end:
            self._file.close()
            raise HpcgnnError(f"{path} is not a complete piece of this plan: remove it")

    def __enter__(self) -> Piece:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, name: str, first: int = 0, last: int | None = None) -> np.ndarray:
        """Elements ``[first, last)`` of the array ``name``; all of them by default."""
        out = np.empty((self.lengths[name] if last is None else last) - first, ARRAYS[name])
        self._file.seek(self.offsets[name] + first * out.itemsize)
        if self._file.readinto(out.view(np.uint8).data) < out.nbytes:
            raise HpcgnnError(f"{self.path} was truncated while it was read: start again")
        return out

    def has_its_checksum(self) -> bool:
        """Return whether the checksum in the header is that of the lengths and arrays."""
        self._file.seek(_HEADER_BYTES)
        lengths = np.array(list(self.lengths.values()), dtype="<i8").tobytes()
        pieces = itertools.chain([lengths], iter(lambda: self._file.read(_READ_BYTES), b""))
        return checksums.of_pieces(np.frombuffer(piece, np.uint8) for piece in pieces) == self._checksum


def fitting_jobs(num_edges: int, num_parts: int) -> int:
    """The number of planning processes if the user gives none, so that they fit into half of the machine's memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    room = memory // (_PROCESS_BYTES + _BYTES_AN_EDGE * num_edges // num_parts)
    return max(min(len(os.sched_getaffinity(0)), 1 + num_edges // _EDGES_A_PROCESS, room), 1)


def make_pieces(
    path: Path, strategy: str, folder: Path, parts: Sequence[int], jobs: int, advance: Callable[[int], object]
) -> None:
    """Write the plans of ``parts`` into ``folder`` with ``jobs`` processes; ``advance`` is called once a part. Raises
    HpcgnnError where one of the processes fails or is killed."""
    jobs = min(jobs, len(parts))
    if jobs <= 1:
        with PartsFile(path) as file:
            for part in parts:
                make(file, strategy, folder, part)
                advance(1)
        return
    left, lock, problems = iter(parts), threading.Lock(), list[BaseException]()

    def serve() -> None:
        try:
            with _Worker(path, strategy, folder) as worker:
                while not problems:
                    with lock:
                        part = next(left, None)
                    if part is None:
                        return
                    worker.make(part)
                    with lock:
                        advance(1)
        except BaseException as error:  # raised again below, in the thread that waits
            problems.append(error)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


class _Worker:
    def __init__(self, path: Path, strategy: str, folder: Path) -> None:
        home = str(Path(__file__).resolve().parents[2])
        search = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hpcgnn.data.plan_pieces", str(path), strategy, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": search} | dict.fromkeys(_THREADS, "1"),
        )

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None, None, None)  # closes its stdin, by which it ends, and waits

    def make(self, part: int) -> None:
        """Let the process plan a part, and wait for it. Raises HpcgnnError where it fails or ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(part, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer == "\n":
            return
        if answer:
            raise HpcgnnError(answer.strip())
        code = self._process.wait()
        ended = f"signal {-code}" if code < 0 else f"exit status {code}"
        raise HpcgnnError(
            f"a process that planned part {part} ended ({ended}): if memory is short, take fewer --jobs or more --parts"
        )


def main() -> None:
    """Plan the part in each line of stdin; answer with an empty line, or with the sentence of an error."""
    path, strategy, folder = sys.argv[1:]
    try:
        with PartsFile(path) as parts:
            for line in sys.stdin:
                make(parts, strategy, Path(folder), int(line))
                print(flush=True)
    except (BrokenPipeError, KeyboardInterrupt):  # the process that asked is gone
        pass
    except HpcgnnError as error:
        print(str(error).replace("\n", " "), flush=True)
    except OSError as error:
        print(f"cannot write the plan to {folder}: {error.strerror or error}", flush=True)


if __name__ == "__main__":
    main()
