"""``python -m campaign.disk.server``: a process that has imported everything, and forks a child for each command named by a
line of stdin.

It is started with the library of ``faults.c`` in LD_PRELOAD, which a child activates for itself. A child ends as other programs
do, so that the cleanup of libraries runs.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
from typing import Any

_IMPORTS = (
    "torch",
    "scipy.sparse",
    *(f"hpcgnn.cli.{name}" for name in ("convert", "partition", "plan", "train", "predict")),
    "hpcgnn.lab.cli.report",
    "hpcgnn.world.devices",
    "hpcgnn.sources.generators",
    "hpcgnn.graph.local_graph",
    "hpcgnn.nn",
    "hpcgnn.lab.report.drawing",
    "hpcgnn.train.predict",
)
_POLL_SECONDS = 0.003


def redirect(stdout: str, stderr: str) -> None:
    """Close stdin, and write stdout and stderr to these files from now on."""
    for name, descriptor, flags in ((os.devnull, 0, os.O_RDONLY), (stdout, 1, os.O_WRONLY), (stderr, 2, os.O_WRONLY)):
        opened = os.open(name, flags | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)


def main() -> int:
    """Serve until stdin ends. Returns the exit code; in a child, that of its command."""
    for name in _IMPORTS:
        importlib.import_module(name)
    from hpcgnn.cli.main import main as command

    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(task)
            command()
        print(json.dumps(_outcome(pid, task["seconds"])), flush=True)
    return 0


def _become(task: dict[str, Any]) -> None:
    """Become the process of a command: enter its folder, redirect its output, and activate the fault."""
    os.setsid()
    os.chdir(task["folder"])
    redirect(task["stdout"], task["stderr"])
    os.environ["TMPDIR"] = task["temporary"]
    sys.argv = ["hpcgnn", *task["words"]]
    library = ctypes.CDLL(None)
    below, log, kind = (task[name].encode() for name in ("folder", "log", "kind"))
    library.faults_arm(below, log, kind, ctypes.c_long(task["number"]), task["error"])


def _outcome(pid: int, seconds: float) -> dict[str, Any]:
    started = time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return {"exit": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - started}
        if time.monotonic() > started + seconds:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"exit": None, "seconds": seconds}
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
