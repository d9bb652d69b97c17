"""What a rank holds before it has a part: private memory, step by step through what `hpcgnn train` imports.

usage: hpcgnn launch -n 2 -t 1 -- python tools/rank_memory.py

Private memory is what no other process maps. All ranks meet after each step, so that pages of libraries, which they share, count
for none of them; with a single rank they would. Rank 0 prints its own as a table.
"""

from __future__ import annotations

import importlib

from mpi4py import MPI

from hpcgnn.footprint import private_memory_bytes

STEPS = {
    "Python and MPI": (),
    "NumPy": ("numpy",),
    "torch": ("torch",),
    "h5py, msgspec, click, rich": ("h5py", "msgspec", "click", "rich.progress", "rich.table", "tomli_w"),
    "hpcgnn": ("hpcgnn.cli.train", "hpcgnn.train.trainer", "hpcgnn.nn.models", "hpcgnn.kernels.native.interface"),
}


def main() -> None:
    """Import and print."""
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
