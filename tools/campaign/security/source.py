"""Things that hpcgnn's source must not do with input from outside, found in its syntax trees and by shellcheck."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from campaign.run import ROOT
from campaign.section import FAILED, LEFT_OUT, RIGHT, Case, Session

RUNS_CODE = "modules and functions that run what they read"
LOADS = "files of numpy and torch hold values only"
SHELL = "no shell between a name and a command"
LIBRARIES = "libraries that are loaded"
TEMPORARY = "temporary files"
RULES = (RUNS_CODE, LOADS, SHELL, LIBRARIES, TEMPORARY)
_MODULES = {
    "pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "code", "codeop",
}  # fmt: skip
_FUNCTIONS = {"eval", "exec", "compile", "__import__", "runpy.run_path", "runpy.run_module", "torch.jit.load"}
_LOADERS = {"CDLL", "PyDLL", "LoadLibrary", "dlopen", "load_library"}
_SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "commands.getoutput"}
_TEMPORARY = {"tempfile.mktemp", "os.tempnam", "os.tmpnam", "tempfile.gettempdir"}
_PLACES = ("/tmp", "/dev/shm", "/var/tmp", "/run")


@dataclass(frozen=True)
class Offence:
    """A violation of a rule. rule: of ``RULES``. text: the expression as Python code. line: in its module."""

    rule: str
    text: str
    line: int


ALLOWED = {
    ("world/world.py", "import pickle"): "World.broadcast: between ranks of one job, over MPI",
    ("world/world.py", "pickle.loads"): "the same",
    ("partition/methods.py", "ctypes.CDLL(None)"): "the C library that Python runs on",
    ("partition/library_run.py", "ctypes.CDLL(None)"): "the same",
    ("base/process.py", "ctypes.CDLL(None)"): "the same",
    ("world/job.py", "ctypes.CDLL(None)"): "the same",
    ("lab/bench/worker.py", "ctypes.CDLL(None)"): "the same",
    ("world/transport.py", "ctypes.CDLL(mpi.__file__)"): "mpi4py, which is imported already",
    ("kernels/library.py", "ctypes.CDLL(str(path))"): "_native*.so of the package's own folder",
    ("partition/metis.py", "ctypes.CDLL(path)"): "METIS: pymetis' own, or by names of the system's",
    (
        "partition/metis.py",
        "ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)",
    ): "ParMETIS, by names of the system's",
    ("partition/metis.py", "ctypes.CDLL(name)"): "the same",
    ("partition/symmetric_file.py", "tempfile.gettempdir"): "of a file without a name",
    ("world/node_memory.py", "/dev/shm"): "only its size is asked for",
    ("doctor/folders.py", "/dev/shm"): "the same",
    ("doctor/folders.py", "tempfile.gettempdir"): "told to the user; what is written there has no name",
    ("lab/virtual/cluster.py", "/run"): "root's own, in which a folder with mode 0700 is made",
    ("lab/virtual/network.py", "/run/netns"): "where iproute2 keeps network namespaces",
}
"""The expressions that are allowed in a file, by reason. One that no file contains any more is a failure as well."""


def cases(session: Session) -> Iterator[Case]:
    """Yield a case for each rule, and for each shell script."""
    files = {str(path.relative_to(ROOT / "hpcgnn")): path for path in sorted((ROOT / "hpcgnn").rglob("*.py"))}
    found = {name: offences(path.read_text()) for name, path in files.items()}
    for rule in RULES:
        if session.wants(rule):
            yield _case(rule, judged(found, rule))
    if session.wants("exceptions"):
        met = {(name, each.text) for name, of_file in found.items() for each in of_file}
        yield _case(
            "each exception stands somewhere", [f"{name}: {text}" for name, text in ALLOWED if (name, text) not in met]
        )
    session.add_fact("modules searched", len(found))
    yield from _scripts(session)


def _case(name: str, found: list[str]) -> Case:
    return Case("source", name, FAILED if found else RIGHT, "; ".join(found)[:400])


def judged(found: dict[str, list[Offence]], rule: str) -> list[str]:
    """The violations of the rule that are not allowed, as ``FILE:LINE: TEXT``."""
    return [
        f"{name}:{each.line}: {each.text}"
        for name, of_file in found.items()
        for each in of_file
        if each.rule == rule and (name, each.text) not in ALLOWED
    ]


def offences(text: str) -> list[Offence]:
    """All places of a module that concern the rules."""
    return [offence for node in ast.walk(ast.parse(text)) for offence in _of_node(node)]


def _of_node(node: ast.AST) -> Iterator[Offence]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
        for name in names:
            if name.partition(".")[0] in _MODULES:
                yield Offence(RUNS_CODE, f"import {name}", node.lineno)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value.startswith(_PLACES) and " " not in node.value:
            yield Offence(TEMPORARY, node.value, node.lineno)
    elif isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node) in _TEMPORARY:
        yield Offence(TEMPORARY, ast.unparse(node), node.lineno)
    elif isinstance(node, ast.Call):
        yield from _of_call(node, ast.unparse(node.func))


def _of_call(node: ast.Call, called: str) -> Iterator[Offence]:
    given = {each.arg: ast.unparse(each.value) for each in node.keywords}
    module, _, name = called.rpartition(".")
    if called in _FUNCTIONS or (name in ("load", "loads", "Unpickler") and module in _MODULES):
        yield Offence(RUNS_CODE, called, node.lineno)
    if called in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
        yield Offence(LOADS, ast.unparse(node), node.lineno)
    if "allow_pickle" in given and given["allow_pickle"] != "False":
        yield Offence(LOADS, ast.unparse(node), node.lineno)
    if called == "torch.load" and given.get("weights_only") != "True":
        yield Offence(LOADS, ast.unparse(node), node.lineno)
    if called in _SHELLS or given.get("shell", "False") != "False":
        yield Offence(SHELL, ast.unparse(node), node.lineno)
    if name in _LOADERS:
        yield Offence(LIBRARIES, ast.unparse(node), node.lineno)


# -- shell scripts -----------------------------------------------------------------------------------------------------


def _scripts(session: Session) -> Iterator[Case]:
    checker = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    names = ["jobs/mpirun.sh", "jobs/slurm.sbatch", ".ci/run"]
    names += sorted(
        str(path.relative_to(ROOT)) for folder in ("tools", "hpcgnn") for path in (ROOT / folder).rglob("*.sh")
    )
    for name in names:
        if session.wants(name):
            started = time.monotonic()
            found = script_problems(ROOT / name, checker)
            end = FAILED if found else RIGHT if checker else LEFT_OUT
            said = found or ("" if checker else "shellcheck is not installed")
            yield Case("shell scripts", name, end, said, time.monotonic() - started)


def script_problems(path: Path, checker: str | None) -> str:
    """The complaints of bash about a script, and of shellcheck if it is installed; empty if there are none."""
    commands = [["bash", "-n", path], *([[checker, "--severity=style", path]] if checker else [])]
    for command in commands:
        ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if ended.returncode:
            return " ".join((ended.stdout + ended.stderr).split())[:400]
    return ""
