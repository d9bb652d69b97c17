"""The program that mpirun starts for a rank: it hands its rank to a forked child of the process that has imported everything.

usage: rank_client.py SOCKET. It ends when that child ends, and the child is ended when this process is killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import time

_GRACE_SECONDS = 2.0


def main() -> None:
    """Send the environment, and wait for the end of the child."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[1])
    server.sendall(json.dumps(dict(os.environ)).encode() + b"\n")
    answer = server.recv(4)
    code = struct.unpack("i", answer)[0] if answer else 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if code:  # mpirun kills the other ranks, which may be about to print the same
        time.sleep(_GRACE_SECONDS)
    os._exit(code)


if __name__ == "__main__":
    main()
