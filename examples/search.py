"""A search for hyperparameters with Optuna: rank 0 asks for each trial's values, and all ranks train it together.

    pip install optuna
    hpcgnn convert digits digits.h5
    hpcgnn partition digits.h5 digits-2.h5 --parts 2
    mpirun -n 2 python -m mpi4py examples/search.py digits-2.h5

To try it on a small generated graph: `mpirun -n 2 python -m mpi4py examples/search.py --small`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from small_graph import arguments, parts_of

import hpcgnn

TRIALS = 6


def main(parts: Path, epochs: int) -> None:
    """Train with the values of each trial, and print the best ones."""
    graph = hpcgnn.load(parts)
    is_first = graph.world.rank == 0
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    for _ in range(TRIALS):
        trial = study.ask() if is_first else None
        values = graph.world.broadcast(asked(trial) if trial else None)  # the other ranks do not ask
        run = hpcgnn.RunConfig.from_settings({"layers": 2, "epochs": epochs, "eval_every": 5, **values})
        model = hpcgnn.build_model(run.model, graph)
        summary = hpcgnn.Trainer(model, graph, run.train).fit()
        if trial:
            trial.set_user_attr("test", summary["test_metric_at_best_val"])
            study.tell(trial, summary["best_val_metric"])
    if is_first:
        best = study.best_trial
        print(f"best of {TRIALS} trials: test accuracy {best.user_attrs['test']:.3f} with {best.params}")


def asked(trial: optuna.Trial) -> dict[str, Any]:
    """The settings of `hpcgnn train` that are searched."""
    return {
        "lr": trial.suggest_float("lr", 1e-3, 1e-1, log=True),
        "hidden": trial.suggest_categorical("hidden", [16, 32, 64]),
        "dropout": trial.suggest_float("dropout", 0.0, 0.6),
    }


if __name__ == "__main__":
    given = arguments(__doc__, epochs=100)
    with parts_of(given) as file:
        main(file, given.epochs)
