"""Jobs whose ranks have different environments."""

from __future__ import annotations

from collections.abc import Sequence

from hpcgnn.launch import mpiexec


def line(
    program: Sequence[object], variables: Sequence[dict[str, str]], wrapped: Sequence[object] = ()
) -> list[object]:
    """The launcher's command line for one rank with each of ``variables``. wrapped: words before the program of the last rank."""
    launcher = mpiexec.command(1, 1)
    words: list[object] = []
    for rank, own in enumerate(variables):
        words += launcher if rank == 0 else [":", "-n", 1]
        words += ["env", *(f"{name}={value}" for name, value in own.items())]
        words += [*(wrapped if rank == len(variables) - 1 else ()), *program]
    return words
