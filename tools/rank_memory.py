"""The memory of a rank before it has a part: private memory after each step of the imports of `hpcgnn train`.

usage: hpcgnn launch -n 2 -t 1 -- python tools/rank_memory.py

Private memory is memory that no other process has mapped. All ranks meet after each step, so that pages of libraries, which
ranks share, do not count; with a single rank they would. Rank 0 prints its own memory as a table.
"""

from __future__ import annotations

import importlib

from mpi4py import MPI

from hpcgnn.base.process import private_memory_bytes

STEPS = {
    "Python and MPI": (),
    "NumPy": ("numpy",),
    "torch": ("torch",),
    "h5py, msgspec, click, rich": ("h5py", "msgspec", "click", "rich.progress", "rich.table", "tomli_w"),
    "hpcgnn": ("hpcgnn.cli.train", "hpcgnn.train.trainer", "hpcgnn.nn.models", "hpcgnn.kernels.library"),
}


def main() -> None:
    """Import the modules and print the table."""
    world, before, rows = MPI.COMM_WORLD, 0, []
    for name, modules in STEPS.items():
        for module in modules:
            importlib.import_module(module)
        world.Barrier()
        held = private_memory_bytes()
        world.Barrier()
        rows.append([name, f"{(held - before) / 2**20:.1f}", f"{held / 2**20:.1f}"])
        before = held
    if world.rank == 0:
        for cells in (["imported", "MiB", "MiB in all"], ["---"] * 3, *rows):
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
