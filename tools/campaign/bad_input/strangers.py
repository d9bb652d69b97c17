"""Valid files that belong to something else: checkpoints of another model, of other sizes, or of another graph."""

from __future__ import annotations

import shutil
from pathlib import Path

from campaign.mutations import readers
from campaign.mutations.case import Case
from campaign.mutations.fork import Task
from campaign.mutations.more_cases import command
from campaign.mutations.mutation import FREE, REFUSE, Mutation

_GROUP = "files of another run"
_RUNS = ("run-sage", "run-wide", "run-deep", "run-other", "run-link", "run2")


def tasks(inputs: Path) -> list[Task]:
    """The tasks of this group."""
    one, two = ((("plain-1.h5", "parts.h5"), ("run", "run")), (("plain-2.h5", "parts.h5"), ("run2", "run")))
    last, best = "run/checkpoints/last.pt", "run/checkpoints/best.pt"
    resume = Case("last.pt", readers.RESUME, one, last, ())
    threads = Case("last.pt", readers.RESUME_THREADS, two, last, ())
    predict = Case("best.pt", readers.PREDICT, one, best, ())
    found = []
    for run in _RUNS:
        checkpoint = inputs / run / "checkpoints" / "last.pt"
        if run != "run2":
            found.append(_task(threads, f"last.pt of {run}", checkpoint, REFUSE))
        found.append(_task(resume, f"last.pt of {run}", checkpoint, FREE if run == "run2" else REFUSE))
        # A checkpoint determines its own model, which may be used if the number of features is the same.
        found.append(_task(predict, f"best.pt of {run}", checkpoint, REFUSE if run == "run-other" else FREE))
    for name, other in (("2-0.pt", "2-1.pt"), ("2-1.pt", "2-0.pt")):
        case = Case(f"messages/{name}", readers.RESUME_THREADS, two, f"run/checkpoints/messages/{name}", ())
        found.append(_task(case, f"{other} in place of {name}", inputs / "run2/checkpoints/messages" / other, REFUSE))
        found.append(_task(case, f"last.pt in place of {name}", inputs / "run2/checkpoints/last.pt", REFUSE))
    return found + _other_graphs(inputs)


def _other_graphs(inputs: Path) -> list[Task]:
    """The right run with another graph or other parts."""
    run = ("run", "run")
    resume = Case("parts.h5", readers.RESUME, (("plain-1.h5", "parts.h5"), run), "parts.h5", ())
    predict = Case("parts.h5", readers.PREDICT, (("plain-1.h5", "parts.h5"), run), "parts.h5", ())
    train = Case("parts.h5", readers.TRAIN, (("plain-1.h5", "parts.h5"),), "parts.h5", ())
    partition = Case("graph.h5", readers.PARTITION, (("plain-graph.h5", "graph.h5"),), "graph.h5", ())
    check = Case("graph.h5", command("check", "graph.h5", "--quiet"), (("plain-graph.h5", "graph.h5"),), "graph.h5", ())
    found = [
        _task(resume, "parts.h5 made again", inputs / "again-1.h5", FREE),
        _task(train, "graph.h5 in place of parts.h5", inputs / "plain-graph.h5", REFUSE),
        _task(partition, "parts.h5 in place of graph.h5", inputs / "plain-1.h5", REFUSE),
        _task(check, "parts.h5 under the name of graph.h5", inputs / "plain-1.h5", FREE),
        _task(train, "a checkpoint in place of parts.h5", inputs / "run/checkpoints/last.pt", REFUSE),
        _task(partition, "a checkpoint in place of graph.h5", inputs / "run/checkpoints/last.pt", REFUSE),
    ]
    for name, expects in (
        ("sparse-1.h5", REFUSE),
        ("multi-1.h5", FREE),
        ("large-1.h5", REFUSE),
        ("plain-graph.h5", REFUSE),
    ):
        found.append(_task(resume, f"{name} in place of parts.h5", inputs / name, expects))
        found.append(_task(predict, f"{name} in place of parts.h5", inputs / name, expects))
    return found


def _task(case: Case, what: str, source: Path, expects: str) -> Task:
    def swap(folder: Path) -> Mutation:
        shutil.copyfile(source, folder / case.target)
        # Both files are valid, so the sentence may be about either.
        return Mutation(what, expects, names=(Path(case.target).name, "checkpoint", "parts.h5", "run"))

    return Task(case, f"{case.name}: {what}", swap, _GROUP)
