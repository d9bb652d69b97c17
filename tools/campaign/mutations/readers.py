"""The commands and functions that read files, with their arguments and results. They run in a process that is forked for each
task.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from campaign.mutations.digests import digest, of_graph_file, of_hdf5, of_run
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import StopRequest
from hpcgnn.cli.main import main
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.local_graph import load
from hpcgnn.nn import ModelConfig, build_model
from hpcgnn.policy import PolicyConfig
from hpcgnn.policy.clock import Clock, read_log
from hpcgnn.train.config import TrainConfig
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.train.trainer import Trainer
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank

RESULTS = ("out.h5", "p.h5")
"""Files that commands write as a whole, so that none exists after a refusal."""
SMALL = ("--epochs", "2", "--hidden", "8", "--layers", "2", "--model", "gcn")  # gcn uses edge weights


@dataclass(frozen=True)
class Reader:
    """A reader. run: runs in the folder with the files, and returns the exit code. result: returns a digest of the result.
    reads: whether the part of a file with this name is read. ranks: the folder of each rank, if it runs under mpirun.
    may_refuse: it may refuse the valid files as well, because it must not do anything that takes long. reads_files: memory is
    compared with that for the valid files; otherwise values determine the amount of work, and the address space is limited.
    """

    name: str
    run: Callable[[], int]
    result: Callable[[], str]
    reads: Callable[[str], bool] = lambda touched: True
    ranks: tuple[str, ...] = ()
    may_refuse: bool = False
    reads_files: bool = True


def command(arguments: list[str]) -> int:
    """Run ``hpcgnn`` in this process, and return its exit code."""
    sys.argv = ["hpcgnn", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def called(function: Callable[[], object]) -> int:
    """Run a Python function as the command runs its own: return the exit code, and print an error to stderr."""
    try:
        function()
    except HpcgnnError as error:
        print(f"hpcgnn: error: {error}", file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def hpcgnn(*arguments: str, result: Callable[[], str], reads: Callable[[str], bool] = lambda touched: True) -> Reader:
    """A command line as a reader."""
    name = f"{arguments[0]}{''.join(a for a in arguments[2:] if a in ('--resume', '--replay', '--config', 'last', 'post'))}"
    return Reader(name, lambda: command(list(arguments)), result, reads)


def convert(kind: str, name: str) -> Reader:
    """A conversion from one source."""
    return hpcgnn("convert", f"{kind}:{name}", "out.h5", "--quiet", result=lambda: of_graph_file(Path("out.h5")))


PARTITION = hpcgnn("partition", "graph.h5", "out.h5", "--parts", "2", "--quiet", result=lambda: of_hdf5(Path("out.h5")))
PLAN = hpcgnn(
    "plan", "parts.h5", "--json", result=lambda: _plan_told(),
    reads=lambda touched: touched.startswith(("@", "parts/", "plan/hybrid/recv")),
)  # fmt: skip
PLAN_POST = hpcgnn(
    "plan", "parts.h5", "--strategy", "post", "--json", result=lambda: _plan_told(),
    reads=lambda touched: touched.startswith(("@", "parts/", "edges/i")),
)  # fmt: skip
TRAIN = hpcgnn("train", "parts.h5", "--out", "new", *SMALL, "--quiet", result=lambda: of_run(Path("new")))
CONFIG = hpcgnn(
    "train", "parts.h5", "--out", "new", "--config", "config.toml", "--quiet", result=lambda: of_run(Path("new"))
)
RESUME = hpcgnn(
    "train", "parts.h5", "--out", "run", "--resume", "--epochs", "4", "--quiet", result=lambda: of_run(Path("run"))
)
PREDICT = hpcgnn(
    "predict", "parts.h5", "run", "--out", "p.h5", "--quiet", result=lambda: of_hdf5(Path("p.h5")),
    reads=lambda touched: touched not in ("parts_uuid", "task"),
)  # fmt: skip
PREDICT_ANY = replace(  # on one rank from two parts, so that the plan is computed and not read
    PREDICT, reads=lambda touched: not touched.startswith("plan")
)
PREDICT_LAST = hpcgnn(
    "predict", "parts.h5", "run", "--out", "p.h5", "--checkpoint", "last", "--quiet", result=lambda: of_hdf5(Path("p.h5")),
    reads=lambda touched: touched in ("model_config", "model", "next_epoch", "version", "", "record", "bytes"),
)  # fmt: skip


def under_mpirun(reader: Reader, *, apart: bool) -> Reader:
    """A command on two ranks. apart: each rank has a folder with its own files, as on two nodes."""
    name = f"{reader.name}, mpirun{' apart' if apart else ''}"
    return replace(reader, name=name, ranks=(".", "other" if apart else "."))


ADAQP = (
    *("--model", "gcn", "--layers", "2", "--hidden", "8"),
    *("--bits", "adaqp", "--staleness", "pipeline", "--timeout", "20"),
)
RESUME_ADAQP = hpcgnn(
    "train", "parts.h5", "--out", "run", "--resume", "--epochs", "4", *ADAQP, "--quiet", result=lambda: of_run(Path("run"))
)  # fmt: skip


def _load(any_ranks: bool) -> None:
    graph = load("parts.h5", one_rank(), any_ranks=any_ranks)
    x = graph.x
    parts = [] if x is None else [x.to_dense() if x.is_sparse_csr else x]
    parts += [graph.original_ids, graph.indptr, graph.indices, *graph.masks.values()]
    parts += [other for other in (graph.y, graph.edge_weight) if other is not None]
    Path("loaded").write_text(digest(*parts, graph.meta.num_classes, graph.meta.task))


LOAD = Reader(
    "hpcgnn.load", lambda: called(lambda: _load(True)), lambda: Path("loaded").read_text(),
    lambda touched: not touched.startswith("plan"),
)  # fmt: skip
TRAIN_THREADS = Reader(
    "train, two threads", lambda: called(lambda: on_two_threads(Path("parts.h5"), Path("new"), epochs=2)),
    lambda: of_run(Path("new")),
)  # fmt: skip
RESUME_THREADS = Reader(
    "resume, two threads", lambda: called(lambda: on_two_threads(Path("parts.h5"), Path("run"), epochs=4, resume=True)),
    lambda: of_run(Path("run")),
)  # fmt: skip
REPLAY_THREADS = Reader(
    "replay, two threads",
    lambda: called(lambda: on_two_threads(Path("parts.h5"), Path("new"), epochs=2, log=Path("decisions.jsonl"))),
    lambda: of_run(Path("new")),
)  # fmt: skip


def on_two_threads(parts: Path, out: Path, *, epochs: int, resume: bool = False, log: Path | None = None) -> None:
    """Train with policies of bits and of staleness, on two ranks that are threads of this process."""
    costs = out / "link_costs.json"

    def program(world: World) -> None:
        graph = load(parts, world)
        messages = Messages(world, MessageConfig(bits=8))
        model = build_model(ModelConfig("gcn", layers=2, hidden=8), graph, messages=messages)
        config = TrainConfig(epochs=epochs, policy=PolicyConfig("adaqp", "pipeline", link_costs=costs))
        clock = Clock(None if log is None else read_log(world, log))
        trainer = Trainer(model, graph, config, run=RunFolder(out), stop=StopRequest(), clock=clock)
        if resume:
            trainer.resume()
        trainer.fit()

    on_threads(2, program)


def _plan_told() -> str:
    told = json.loads(Path("stdout").read_text())
    return digest(sorted(told["strategies"].items()), sorted(told["pairs"].items()))


def warm_up(folder: Path) -> None:
    """Compile and import everything that readers need, without MPI, so that it is done only once."""
    for name in ("convert", "partition", "plan", "predict", "train"):
        importlib.import_module(f"hpcgnn.cli.{name}")
    from hpcgnn.partition import PartitionOptions, partition
    from hpcgnn.sources import npz, text  # noqa: F401
    from hpcgnn.sources.convert import ConvertOptions, convert

    graph = folder / "warm.h5"
    convert("sbm:nodes=60,blocks=3,degree=4,features=4", graph, ConvertOptions(undirected=True))
    partition(one_rank(), str(graph), str(folder / "warm-parts.h5"), PartitionOptions(1))
    for used in (graph, folder / "warm-parts.h5"):
        used.unlink()
