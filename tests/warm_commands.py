"""Commands that start at once: one process imports the large packages and forks for each ``python`` and each ``hpcgnn``.

``warm_commands(folder)`` starts this process, and puts programs called ``python`` and ``hpcgnn`` into a folder, which a test puts
first on its PATH. Such a program hands its words, files, environment, folder and cores to the process, forwards signals, and
ends as the fork does. Launchers, batch systems, MPI and everything behind ``main`` are the real ones. Not for virtual hosts,
whose namespaces a fork would escape.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from covered_by import count_for

# Modules that take long to import and start neither MPI nor threads.
LARGE = (
    "torch", "numba", "scipy.sparse.linalg", "sklearn.datasets", "h5py", "matplotlib.pyplot", "hpcgnn.cli.main", "hpcgnn.world",
    "hpcgnn.exchange", "hpcgnn.sources.convert", "hpcgnn.partition", "hpcgnn.train.run_config", "hpcgnn.nn", "torch_geometric.nn",
)  # fmt: skip

# The program in place of a command. It runs without site packages, which would take as long as the rest of it.
PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
if sys.argv[1:2] and sys.argv[1][0] == "-" and sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = dict(words=[os.path.basename(sys.argv[0]), *sys.argv[1:]], folder=os.getcwd(), environment=dict(os.environ),
               cores=list(os.sched_getaffinity(0)))
text = json.dumps(request).encode()
socket.send_fds(server, [len(text).to_bytes(8, "big")], [0, 1, 2])
server.sendall(text)
process = int.from_bytes(server.recv(8), "big")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: os.kill(process, number))
code = int.from_bytes(server.recv(8), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextlib.contextmanager
def warm_commands(folder: Path) -> Iterator[None]:
    """Inside the context, the programs in ``folder`` start at once."""
    address = str(folder / "socket")
    for name in ("python", "hpcgnn"):
        program = folder / name
        program.write_text(PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
    command = [sys.executable, __file__, address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        yield  # the process ends when its stdin is closed


def serve(server: socket.socket) -> dict[str, Any]:
    """Fork for each request; in the fork, return the request."""
    waiting = selectors.DefaultSelector()
    waiting.register(server, selectors.EVENT_READ)
    waiting.register(sys.stdin, selectors.EVENT_READ)
    of_client: dict[socket.socket, int] = {}
    while True:
        for key, _ in waiting.select():
            if key.fileobj is server:
                client, _ = server.accept()
                size, files, *_ = socket.recv_fds(client, 8, 3)
                request = json.loads(_received(client, int.from_bytes(size, "big")))
                process = os.fork()
                if process == 0:
                    return request | {"files": files}
                for file in files:
                    os.close(file)
                client.sendall(process.to_bytes(8, "big"))
                of_client[client] = process
                waiting.register(client, selectors.EVENT_READ)
                waiting.register(os.pidfd_open(process), selectors.EVENT_READ, client)
            elif key.fileobj is sys.stdin:
                for process in of_client.values():
                    os.kill(process, signal.SIGKILL)
                os._exit(0)
            elif key.data is None:  # the program in front of the fork has been killed
                client = key.fileobj
                if client in of_client:  # otherwise the fork has ended at the same time, and its end came first
                    waiting.unregister(client)
                    os.kill(of_client[client], signal.SIGKILL)
            else:
                _, status = os.waitpid(of_client.pop(key.data), 0)
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):
                    key.data.sendall(code.to_bytes(8, "big", signed=True))
                for each in (key.fileobj, key.data):
                    with contextlib.suppress(KeyError):
                        waiting.unregister(each)
                os.close(key.fileobj)
                key.data.close()


def _received(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += client.recv(size - len(found))
    return found


def become(request: dict[str, Any]) -> NoReturn:
    """Be the process that the request asks for, and run its program. What it starts by ``sys.executable`` starts at once, too."""
    sys.executable = str(Path(sys.argv[1]).with_name("python"))
    for number, file in enumerate(request["files"]):
        os.dup2(file, number)
        os.close(file)
    # The streams of the process that forked remember whether its own files could seek.
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    count_for(os.environ.get("PYTEST_CURRENT_TEST", ""))
    code = 1
    try:
        _run(*request["words"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    _leave(code)


def _run(name: str, *words: str) -> None:
    if name == "hpcgnn":
        sys.argv = [name, *words]
        from hpcgnn.cli.main import main

        main()
    elif words[0] == "-m":
        sys.argv, sys.path[:0] = list(words[1:]), [os.getcwd()]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = list(words), [str(Path(words[0]).resolve().parent)]
        runpy.run_path(words[0], run_name="__main__")


def _leave(code: int) -> NoReturn:
    """End without taking all modules apart, which would copy most of the memory that the fork shares."""
    threading._shutdown()
    atexit._run_exitfuncs()
    mpi = getattr(sys.modules.get("mpi4py"), "MPI", None)
    if code == 0 and mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    for module in LARGE:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy what it looks at
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        print("listening", flush=True)
        asked = serve(listening)
    become(asked)
