"""Epochs in a tracker of experiments: Weights & Biases, offline here, through the Trainer's `on_epoch`.

    pip install wandb
    hpcgnn convert digits digits.h5
    hpcgnn partition digits.h5 digits-2.h5 --parts 2
    mpirun -n 2 python -m mpi4py examples/tracker.py digits-2.h5 && wandb sync wandb/offline-run-*

To try it on a small generated graph: `mpirun -n 2 python -m mpi4py examples/tracker.py --small`.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import wandb
from small_graph import arguments, parts_of

import hpcgnn
from hpcgnn.exchange import Messages

QUIET = wandb.Settings(silent=True)
LOGGED = ("loss", "train_metric", "val_metric", "test_metric", "seconds", "bytes_sent")


def main(parts: Path, epochs: int, folder: Path) -> None:
    """Train; log each epoch on rank 0, and print the test accuracy."""
    graph = hpcgnn.load(parts)
    run = hpcgnn.RunConfig.from_settings({"hidden": 32, "layers": 2, "epochs": epochs, "eval_every": 5, "bits": 2})
    is_first, logged = graph.world.rank == 0, 0
    tracked = (
        wandb.init(project="hpcgnn", config=run.settings(), mode="offline", dir=folder, settings=QUIET)
        if is_first
        else None
    )

    def log(record: dict[str, Any]) -> None:
        """Pass an epoch on to the tracker. Records are the same on all ranks, so that one of them logs."""
        nonlocal logged
        if tracked is not None:
            tracked.log({name: record[name] for name in LOGGED if record.get(name) is not None}, step=record["epoch"])
            logged += 1

    model = hpcgnn.build_model(run.model, graph, messages=Messages(graph.world, run.messages))
    summary = hpcgnn.Trainer(model, graph, run.train, on_epoch=log).fit()
    if tracked is not None:
        tracked.summary.update({"test_metric_at_best_val": summary["test_metric_at_best_val"]})
        tracked.finish()
        print(f"tracked {logged} epochs: test accuracy {summary['test_metric_at_best_val']:.3f}")


if __name__ == "__main__":
    given = arguments(__doc__, epochs=100)
    # The offline runs of --small are not for keeping.
    with parts_of(given) as file, tempfile.TemporaryDirectory() if given.small else contextlib.nullcontext(".") as here:
        main(file, given.epochs, Path(here))
