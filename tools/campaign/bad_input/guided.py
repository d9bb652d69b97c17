"""``python -m campaign.bad_input.guided REQUEST``: texts of one format, changed towards code that was not reached before.

Atheris (libFuzzer) records the bytecode of the parsers that each text runs, and keeps texts that reach new bytecode, to change
them further. This helps only for parsers in Python: HDF5, npz and checkpoints are parsed by C libraries, which it does not see.
REQUEST is a JSON object with the fields of a :class:`Request`. The last line of stdout is a JSON object with counts and
failures.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType

import atheris
import numpy as np

from campaign.mutations import oracles
from campaign.mutations.digests import of_graph_file
from campaign.mutations.mutation import pick
from campaign.mutations.text import CHANGES
from hpcgnn.base import settings, typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study import axes, catalogue, specification
from hpcgnn.policy import clock, link_costs
from hpcgnn.sources import slabs, text
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.train import run_config
from hpcgnn.world.thread_world import one_rank

_GUIDES: tuple[ModuleType, ...] = (
    *(slabs, text, typed, settings, clock, link_costs, run_config),
    *(axes, catalogue, specification),
)
_MOST_FAILURES, _MOST_BYTES = 20, 8192


@dataclass(frozen=True)
class Request:
    """inputs: the folder with valid files. folder: an empty folder. runs, seconds: limits, of which the first that is reached
    ends the process.
    """

    kind: str
    inputs: str
    folder: str
    seed: int
    runs: int
    seconds: float


@dataclass(frozen=True)
class Format:
    """A format. seeds: valid files to begin with. read: a function that gives the digest of a file's content. oracle: a second
    parser, where there is one.
    """

    seeds: tuple[str, ...]
    read: Callable[[Path], str]
    oracle: Callable[[bytes], str | None] | None = None


def _graph(kind: str) -> Callable[[Path], str]:
    def read(path: Path) -> str:
        out = path.parent / "out.h5"
        convert(f"{kind}:{path}", out, ConvertOptions())
        found = of_graph_file(out)
        out.unlink()
        return found

    return read


def _said_nothing(read: Callable[[Path], object]) -> Callable[[Path], str]:
    def told(path: Path) -> str:
        read(path)
        return ""

    return told


FORMATS = {
    "edge list": Format(("edges.txt", "weights.txt", "commas.txt"), _graph("edgelist"), oracles.edge_list),
    "METIS": Format(("plain.graph", "weights.graph"), _graph("metis"), oracles.metis),
    "MatrixMarket": Format(("real.mtx", "pattern.mtx"), _graph("mtx"), oracles.matrix_market),
    "settings": Format(
        ("config.toml",), _said_nothing(lambda path: run_config.check_file(run_config.read_file(path), str(path)))
    ),
    "link costs": Format(("run2/link_costs.json",), _said_nothing(link_costs.LinkCosts.load)),
    "decisions": Format(("run2/decisions.jsonl",), _said_nothing(lambda path: clock.read_log(one_rank(), path))),
    "study": Format(("study.toml",), _said_nothing(specification.read)),
}


@dataclass
class Fuzzer:
    """Tries texts of one format, one after another."""

    request: Request
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.format, self.path = FORMATS[self.request.kind], Path(self.request.folder) / "fuzzed"

    def one(self, content: bytes) -> None:
        """Try a text that libFuzzer has made."""
        wrong = self.wrong(content)
        if wrong:
            self.ends["failed"] += 1
            self.failures.append({"said": wrong, "text": repr(content[:200])})
        if self.ends.total() >= self.request.runs or self._is_over() or len(self.failures) >= _MOST_FAILURES:
            self.tell()

    def wrong(self, content: bytes) -> str:
        """A phrase about the defect in an outcome; empty, and counted, if there is none."""
        self.path.write_bytes(content)
        expects = self.format.oracle(content) if self.format.oracle else ""
        try:
            found = self.format.read(self.path)
        except HpcgnnError as error:
            said = str(error)
            if "\n" in said or self.path.name not in said:
                return f"not one sentence that names the file: {said[:300]}"
            if len(os.listdir(self.path.parent)) != 1:
                return f"it leaves {', '.join(sorted(os.listdir(self.path.parent)))}"
            self.ends["refused"] += 1
            return ""
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:300]}"
        if found != expects:
            return "accepted what the format forbids" if expects is None else "another result than the file's"
        self.ends["right"] += 1
        return ""

    def _is_over(self) -> bool:
        return time.monotonic() - self.started > self.request.seconds

    def tell(self) -> None:
        """Print the last line and exit, because libFuzzer's own exit does not run Python's cleanup."""
        print(json.dumps({"ends": self.ends, "failures": self.failures}), flush=True)
        os._exit(0)


def changed(data: bytes, most: int, seed: int) -> bytes:
    """Change the text: half of the changes are libFuzzer's changes of bytes, the others are changes of words and lines."""
    rng = np.random.default_rng(seed)
    if rng.random() < 0.5 and data:
        with contextlib.suppress(ValueError):  # the text is not UTF-8, or too short
            return pick(rng, CHANGES)(data, rng)[0][:most]  # type: ignore[operator]
    return atheris.Mutate(data, most)


def instrument() -> None:
    """Instrument the functions of the parsers, but not those around them, some of which numba compiles."""
    for module in _GUIDES:
        owners = [vars(module), *(vars(kind) for kind in vars(module).values() if isinstance(kind, type))]
        for value in [value for owner in owners for value in owner.values()]:
            function = getattr(value, "__func__", value)  # for class methods
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                atheris.instrument_func(function)


def main() -> None:
    """Try texts until the runs or seconds of the request are used up."""
    request = Request(**json.loads(sys.argv[1]))
    corpus = Path(request.folder) / "corpus"
    (Path(request.folder) / "work").mkdir()
    corpus.mkdir()
    for number, name in enumerate(FORMATS[request.kind].seeds):
        (corpus / f"{number}").write_bytes((Path(request.inputs) / name).read_bytes())
    flags = [
        f"-seed={request.seed + 1}",
        f"-max_len={_MOST_BYTES}",
        "-timeout=30",
        "-rss_limit_mb=4096",
        "-len_control=0",
    ]
    flags += [f"-artifact_prefix={request.folder}/"]
    instrument()
    fuzzer = Fuzzer(Request(**vars(request) | {"folder": f"{request.folder}/work"}))
    atheris.Setup([sys.argv[0], *flags, str(corpus)], fuzzer.one, custom_mutator=changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
