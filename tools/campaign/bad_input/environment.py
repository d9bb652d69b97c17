"""Environment variables that the package or its libraries read, with wrong values. Each case is a process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from campaign.processes import HPCGNN, run, wrong_end
from campaign.section import FAILED, REFUSED, RIGHT, Case, Session

_GROUP = "environment variables"
_VALUES = (
    "", " ", "x", "-1", "0", "1.5", "nan", "99999999999999999999", "a\nb", "/dev/null", "no/such/folder", "A" * 5000,
    "\u0663", "1,x",
)  # fmt: skip
_OWN = ("HPCGNN_ISA", "HPCGNN_DOT_PRODUCTS", "HPCGNN_BUFFER_POOL", "HPCGNN_RANKS_PER_NODE", "HPCGNN_DATA")
_OF_LIBRARIES = (
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "NUMBA_NUM_THREADS", "TMPDIR", "HOME", "COLUMNS", "LANG",
    "LC_ALL", "TERM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME",
    "TRITON_INTERPRET", "ONEDNN_MAX_CPU_ISA", "NUMBA_THREADING_LAYER", "NUMBA_CACHE_DIR",
)  # fmt: skip
_AT_A_TIME, _SHORT, _LONG = 2, 2, 120
_SECONDS = 120.0  # the time for making valid files


def cases(session: Session) -> Iterator[Case]:
    """Yield all cases, or some in the short form."""
    chosen = [(name, value) for name in (*_OWN, *_OF_LIBRARIES) for value in _VALUES]
    if not session.only:
        many = (len(_OWN) * len(_VALUES), _SHORT) if session.short else (len(chosen), _LONG)
        chosen = [chosen[place] for place in session.generator(_GROUP).permutation(many[0])[: many[1]]]
    chosen = [each for each in chosen if session.wants(_name(*each))]
    if not chosen:
        return
    parts = _valid_files(session.new_folder("environment"))
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        yield from pool.map(lambda each: _case(session, parts, *each), chosen)


def _name(variable: str, value: str) -> str:
    return f"variable {variable}={value[:30]!r}"


def _valid_files(folder: Path) -> Path:
    source = "sbm:nodes=60,blocks=3,degree=4,features=4"
    for words in (("convert", source, "g.h5"), ("partition", "g.h5", "parts.h5", "--parts", 1)):
        ended = run([*HPCGNN, *words, "--quiet"], folder=folder, seconds=_SECONDS)
        if ended.exit != 0:
            raise RuntimeError(f"hpcgnn {words} ended with {ended.exit}: {ended.stderr}")
    return folder / "parts.h5"


def _case(session: Session, parts: Path, variable: str, value: str) -> Case:
    name = _name(variable, value)
    folder = session.new_folder(f"{variable} {_VALUES.index(value)}")
    words = ("train", parts, "--out", "new", "--epochs", 1, "--hidden", 8, "--layers", 2, "--quiet")
    ended = run([*HPCGNN, *words], folder=folder, variables={variable: value}, seconds=_SECONDS)
    # If a variable belongs to a library, the sentence may name the library, or the consequence.
    wrong = wrong_end(ended, names=(variable,) if variable in _OWN else ())
    end = FAILED if wrong else REFUSED if ended.exit else RIGHT
    said = wrong or (ended.stderr.strip().splitlines()[-1][:300] if ended.exit and ended.stderr.strip() else "")
    return Case(_GROUP, name, end, said, ended.seconds)
