"""``python -m campaign.numbers.program FOLDER`` under mpirun: runs the trainings of ``FOLDER/choices.json``, and writes the
outcomes to ``told.json``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from unittest import mock

import torch

from campaign.numbers.ranks import small_products_in_bfloat16, train
from campaign.numbers.settings import Choice
from hpcgnn.world import MpiWorld


def main(folder: Path) -> None:
    """Run all trainings, one after another, on all ranks."""
    torch.set_num_threads(1)
    told = []
    with small_products_in_bfloat16():
        for number, chosen in enumerate(json.loads((folder / "choices.json").read_text())):
            choice = Choice(tuple((name, value) for name, value in chosen))
            nodes = {"HPCGNN_RANKS_PER_NODE": "2"} if choice["node_aware"] == "on" else {}
            with mock.patch.dict(os.environ, nodes):
                world = MpiWorld(timeout_seconds=60)
                found = train(world, folder / f"{number}.h5", choice.config(), str(choice["arithmetic"]))
            told.append({"refused": found.refused, "losses": found.losses, "metrics": found.metrics})
    if world.rank == 0:
        (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
