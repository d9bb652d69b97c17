"""One rank of a pool (tests/rank_pool.py), started by ``mpiexec python -m rank_worker SOCKET``.

It waits on a socket, not in MPI, so that idle ranks take no processor time from the tests that run meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import reprlib
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import torch
from covered_by import count_for
from rank_pool import Answer, Work

from hpcgnn.cli.main import main as command_line
from hpcgnn.world import MpiWorld, job

TESTS = str(Path(__file__).parent)
TIMEOUT_SECONDS = 120.0


def described(error: BaseException) -> str:
    """The traceback, and the values of all local variables at the innermost line of a test's program."""
    lines = "".join(traceback.format_exception(error))
    frame = _innermost(error.__traceback__)
    if frame is None:
        return lines
    show = reprlib.Repr()
    show.maxstring = show.maxother = 400
    show.maxlist = show.maxdict = show.maxarray = 20
    values = [f"    {name} = {show.repr(value)}" for name, value in frame.tb_frame.f_locals.items()]
    where = f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}"
    return lines + "\n".join([f"values in {frame.tb_frame.f_code.co_name} ({where}):", *values])


def _innermost(frame: TracebackType | None) -> TracebackType | None:
    found = None
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.startswith(TESTS) and frame.tb_frame.f_code.co_filename != __file__:
            found = frame
        frame = frame.tb_next
    return found


def ran(work: Work) -> Answer:
    """Run the work, as if this rank had been started for it."""
    torch.manual_seed(0)
    torch.set_num_threads(work.threads)
    count_for(work.test)
    output, problems = io.StringIO(), io.StringIO()
    os.environ["OMP_NUM_THREADS"] = str(work.threads)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(problems):
        answer = _done(work)
    gc.collect()  # frees objects with communicators now, and on all ranks at the same time
    return Answer(answer.value, answer.problem, answer.code, output.getvalue(), problems.getvalue())


def _done(work: Work) -> Answer:
    try:
        if work.program is not None:
            return Answer(work.program(MpiWorld(timeout_seconds=TIMEOUT_SECONDS), *work.arguments))
        rank = str(job.launcher_rank())
        sys.argv = ["hpcgnn", *(word.replace("{rank}", rank) for word in work.command or ())]
        command_line()
    except SystemExit as end:
        return Answer(code=end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException as error:
        return Answer(problem=described(error))


def main(address: str) -> None:
    link = socket.socket(socket.AF_UNIX)
    link.connect(address)
    pool = Connection(link.detach())
    pool.send(job.launcher_rank())
    MpiWorld()  # starts MPI, because ranks that never did could not end together
    while True:
        try:
            work = pickle.loads(pool.recv_bytes())
        except (EOFError, ConnectionError):
            return
        pool.send_bytes(pickle.dumps(ran(work)))


if __name__ == "__main__":
    main(sys.argv[1])
