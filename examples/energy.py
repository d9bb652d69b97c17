"""Joules of an epoch, where the machine tells them (RAPL on CPUs, NVML and ROCm on GPUs), with perun.

    pip install hpcgnn[energy]
    hpcgnn convert digits digits.h5
    hpcgnn partition digits.h5 digits-2.h5 --parts 2
    mpirun -n 2 python -m mpi4py examples/energy.py digits-2.h5

To try it on a small generated graph: `mpirun -n 2 python -m mpi4py examples/energy.py --small`.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from perun import perun, register_callback
from perun.data_model.data import DataNode, MetricType
from small_graph import arguments, parts_of

import hpcgnn
from hpcgnn.exchange import Messages


def main(parts: Path, epochs: int, folder: Path) -> None:
    """Train while perun samples the sensors of all nodes, and print the test accuracy and, if it is known, the energy."""
    graph = hpcgnn.load(parts)
    run = hpcgnn.RunConfig.from_settings({"hidden": 32, "layers": 2, "epochs": epochs, "eval_every": 5, "bits": 2})
    model = hpcgnn.build_model(run.model, graph, messages=Messages(graph.world, run.messages))
    trainer = hpcgnn.Trainer(model, graph, run.train)

    @perun(app_name="energy", data_out=str(folder), log_lvl="ERROR", sampling_period=0.1)
    def train() -> dict[str, Any]:
        register_callback(lambda measured: tell(measured, epochs))
        return trainer.fit()

    _, summary = train()
    if graph.world.rank == 0:
        print(f"measured {epochs} epochs: test accuracy {summary['test_metric_at_best_val']:.3f}")


def tell(measured: DataNode, epochs: int) -> None:
    """Print the energy of all nodes, evaluations included, on the rank that has it."""
    energy = measured.metrics.get(MetricType.ENERGY)
    if energy is None:
        print("this machine does not tell the energy that it uses")
    else:
        print(f"{energy.sum / epochs:.1f} J an epoch")


if __name__ == "__main__":
    given = arguments(__doc__, epochs=100)
    # The results of --small are not for keeping.
    with (
        parts_of(given) as file,
        tempfile.TemporaryDirectory() if given.small else contextlib.nullcontext("perun") as here,
    ):
        main(file, given.epochs, Path(here))
