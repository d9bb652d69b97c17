"""Processes that plan parts: ``python -m hpcgnn.data.plan_worker parts.h5 STRATEGY FOLDER`` reads a part's number from each line.

They import neither torch nor numba nor MPI, so that each takes about 70 MB beside the edges of its part. If the process that
started them is killed, they end after their current part.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import plan_pieces
from hpcgnn.data.parts_file import PartsFile

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


_EDGES_A_PROCESS = 1 << 21  # for fewer edges, starting another process takes longer than it saves
# Memory of a planning process without edges, and for each edge of its part.
_PROCESS_BYTES, _BYTES_AN_EDGE = 80 << 20, 120


def fitting_jobs(num_edges: int, num_parts: int) -> int:
    """The number of planning processes if the user gives none: at most one a core, at most one for every 2 million edges, and as
    many as fit into half of the machine's memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    room = memory // (_PROCESS_BYTES + _BYTES_AN_EDGE * num_edges // num_parts)
    return max(min(len(os.sched_getaffinity(0)), 1 + num_edges // _EDGES_A_PROCESS, room), 1)


def make_pieces(
    path: Path, strategy: str, folder: Path, parts: Sequence[int], jobs: int, advance: Callable[[int], object]
) -> None:
    """Write the plans of ``parts`` into ``folder`` with ``jobs`` processes; ``advance`` is called once a part.

    Raises:
        HpcgnnError: where one of the processes fails or is killed.
    """
    jobs = min(jobs, len(parts))
    if jobs <= 1:
        with PartsFile(path) as file:
            for part in parts:
                plan_pieces.make(file, strategy, folder, part)
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
    """One planning process."""

    def __init__(self, path: Path, strategy: str, folder: Path) -> None:
        home = str(Path(__file__).resolve().parents[2])
        search = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hpcgnn.data.plan_worker", str(path), strategy, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": search} | dict.fromkeys(_THREADS, "1"),
        )

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

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
                plan_pieces.make(parts, strategy, Path(folder), int(line))
                print(flush=True)
    except (BrokenPipeError, KeyboardInterrupt):  # the process that asked is gone
        pass
    except HpcgnnError as error:
        print(str(error).replace("\n", " "), flush=True)
    except OSError as error:
        print(f"cannot write the plan to {folder}: {error.strerror or error}", flush=True)


if __name__ == "__main__":
    main()
