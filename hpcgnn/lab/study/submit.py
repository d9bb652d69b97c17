"""A study on Slurm: one job array for each number of nodes, ranks on a node and threads, all from the same job template. Each
task of an array runs one configuration with ``hpcgnn study run ... --only KEY``; all nodes must see the study's folder."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study.prepare import check_parts
from hpcgnn.lab.study.records import short_hash
from hpcgnn.lab.study.specification import Run, Specification
from hpcgnn.launch import mpiexec

FOLDER = "slurm"


@dataclass(frozen=True)
class Array:
    """A job array. keys: of its runs, one for each task. keys_path: the file from which tasks read their keys."""

    nodes: int
    keys: tuple[str, ...]
    keys_path: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]

    def in_words(self) -> str:
        """The command line as a user would type it."""
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.environment.items())
        return f"{settings} {shlex.join(self.command)}"


def arrays(specification: Specification, folder: Path, runs: Iterable[Run], options: Sequence[str] = ()) -> list[Array]:
    """The job arrays of ``runs``, in ascending order of nodes. options: further options of sbatch, such as ``--time=30``, which
    override others. Raises HpcgnnError for runs on virtual hosts, and for more ranks than a graph has nodes."""
    runs = list(runs)
    check_parts(runs)
    by_shape: dict[tuple[int, int, int], list[Run]] = {}
    for run in runs:
        if run.place.hosts:
            raise HpcgnnError(
                f"{specification.path} has runs on virtual hosts (rate or hosts), which cannot be submitted to Slurm: {run.key}"
            )
        shape = (run.place.nodes, run.place.ranks_per_node, run.place.threads or 1)
        by_shape.setdefault(shape, []).append(run)
    folder = folder.resolve()
    script, beside = str(mpiexec.job_script(mpiexec.SLURM)), Path(sys.executable).with_name("hpcgnn")
    hpcgnn = os.environ.get("HPCGNN") or (str(beside) if beside.exists() else "hpcgnn")
    found = []
    for (nodes, per_node, threads), each in sorted(by_shape.items()):
        # Its name depends on its contents, so that later submissions do not change the file of an array that still waits.
        name = f"{nodes}-nodes-{per_node}-ranks-{threads}-threads-{short_hash([run.key for run in each])}.keys"
        keys = folder / FOLDER / name
        command = ["sbatch", "--parsable", f"--job-name={specification.name}", f"--array=0-{len(each) - 1}"]
        command += [f"--nodes={nodes}", f"--ntasks={nodes * per_node}", f"--ntasks-per-node={per_node}"]
        output = str(folder / FOLDER).replace("%", "%%")  # sbatch replaces words that begin with %
        command += [f"--cpus-per-task={threads}", f"--output={output}/%A_%a.out", *options, script]
        environment = {"STUDY": str(folder), "KEYS": str(keys), "HPCGNN": hpcgnn}
        found.append(Array(nodes, tuple(run.key for run in each), keys, tuple(command), environment))
    return found


def submit(array: Array) -> str:
    """Submit an array to Slurm; return the number of its job. Raises HpcgnnError with Slurm's own words if Slurm refuses it."""
    if shutil.which("sbatch") is None:
        raise HpcgnnError(
            "sbatch cannot be found: submit from a login node with Slurm, or run the study here with `hpcgnn study run`"
        )
    try:
        array.keys_path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HpcgnnError(f"cannot make {array.keys_path.parent}: {error.strerror}") from error
    with whole_file.replacing(array.keys_path) as temporary:
        temporary.write_text("".join(f"{key}\n" for key in array.keys))
    environment = os.environ | array.environment
    result = subprocess.run(array.command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        said = " ".join(result.stderr.split()) or f"exit code {result.returncode}"
        raise HpcgnnError(f"sbatch refused the job array for {array.nodes} nodes: {said}")
    return result.stdout.strip().partition(";")[0]
