"""The seconds of tests by file and folder: ``build/durations.json``, a table after all tests, and a budget for each folder.

No test asks how long something took. Whenever a process that runs tests ends a file, it measures itself and all that it has
started in CPU seconds, on which other work of the machine has little influence. Seconds of two machines are comparable when they
are multiplied by the speed of a core. ``python tests/durations.py`` fails if the last run of all tests is over a budget; the
nightly workflow calls it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from process_tree import cpu_seconds

FILE = Path("build", "durations.json")
COLLECTING = "collecting"
# The most CPU seconds of a folder on a core of speed 1: about half as many again as measured, less for the largest.
BUDGET = {
    COLLECTING: 90,  # in three processes of a fresh checkout, which compile the files of tests
    "tests/base": 10,
    "tests/cli": 100,
    "tests/data": 130,
    "tests/doctor": 25,
    "tests/exchange": 65,
    "tests/gpu": 40,
    "tests/graph": 60,
    "tests/kernels": 220,
    "tests/lab": 580,
    "tests/large_p": 60,
    "tests/launch": 50,
    "tests/native": 240,
    "tests/nn": 680,
    "tests/partition": 135,
    "tests/plan": 5,
    "tests/policy": 65,
    "tests/project": 480,
    "tests/train": 510,
    "tests/world": 50,
}
_LOOP_SECONDS = 0.055  # of the loop of `speed`, on such a core


def speed() -> float:
    """The speed of this core when it counts in Python."""
    ends = [time.process_time()]
    for _ in range(5):
        sum(n * n for n in range(1_000_000))
        ends.append(time.process_time())
    return _LOOP_SECONDS / min(end - begin for begin, end in itertools.pairwise(ends))


def over_budget(run: Mapping[str, Any]) -> list[str]:
    """The folders of a run, the content of ``durations.json``, that are over their budget."""
    used = {name: seconds["cpu"] * run["speed"] for name, seconds in run["folders"].items()}
    return [
        f"{name} took {used[name]:.0f} s of {budget} s" for name, budget in BUDGET.items() if used.get(name, 0) > budget
    ]


def problem(path: Path) -> str:
    """The reason why the run in a file is not within all budgets, or ""."""
    run = json.loads(path.read_text())
    if not run["whole"]:
        return f"{path} is not of all tests, but of: {run['command']}"
    return "\n".join(over_budget(run))


class Durations:
    """The seconds of each file, and of collecting, in this process and in those that it has started to run tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._files: dict[str, Counter[str]] = defaultdict(Counter)
        self._last = Counter(cpu=0.0, wall=time.monotonic())

    def _lap(self, name: str) -> None:
        """Add the seconds since the last call to a file."""
        now = Counter(cpu=cpu_seconds(), wall=time.monotonic())
        self._files[name] += now - self._last  # no negative ones: a process may no longer be below this one
        self._last = now

    def pytest_collection_finish(self) -> None:
        self._lap(COLLECTING)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        done = yield
        if nextitem is None or nextitem.path != item.path:
            self._lap(item.path.relative_to(self._config.rootpath).as_posix())
        return done

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):  # of xdist
            self._config.workeroutput["durations"] = {name: dict(seconds) for name, seconds in self._files.items()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the seconds of a process that xdist has started."""
        for name, seconds in getattr(node, "workeroutput", {}).get("durations", {}).items():
            self._files[name] += Counter(seconds)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> Generator[None, None, None]:
        """Write the file and, after a run of several folders, show them below all else."""
        yield
        if self._config.option.collectonly:
            return
        run = self._run(exitstatus)
        path = self._config.rootpath / FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(run, indent=1))
        if len(run["folders"]) > 2:  # one of them is that of collecting
            terminalreporter.section("CPU seconds and share of each folder, and its budget on this core")
            total = sum(seconds["cpu"] for seconds in run["folders"].values())
            for name, seconds in run["folders"].items():
                share, budget = seconds["cpu"] / total, BUDGET.get(name, 0) / run["speed"]
                terminalreporter.write_line(f"{name:<16}{seconds['cpu']:>8.0f}{share:>7.0%}{budget:>8.0f}")
            terminalreporter.write_line("; ".join([f"{FILE} has every file", *over_budget(run)]))

    def _run(self, exitstatus: int) -> dict[str, Any]:
        option = self._config.option
        chosen = option.markexpr or option.keyword or option.deselect or os.environ.get("HPCGNN_TESTS") == "all"
        everywhere = self._config.args_source == pytest.Config.ArgsSource.TESTPATHS
        folders: dict[str, Counter[str]] = defaultdict(Counter)
        for name, seconds in self._files.items():
            folders["/".join(Path(name).parent.parts[:2]) or name] += seconds
        return {
            "command": " ".join(["pytest", *self._config.invocation_params.args]),
            "whole": everywhere and not chosen and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED),
            "speed": speed(),
            "folders": _longest_first(folders),
            "files": _longest_first(self._files),
        }


def _longest_first(seconds: Mapping[str, Counter[str]]) -> dict[str, dict[str, float]]:
    found = {name: {clock: round(each[clock], 2) for clock in ("cpu", "wall")} for name, each in seconds.items()}
    return dict(sorted(found.items(), key=lambda each: -each[1]["cpu"]))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Durations(config))


if __name__ == "__main__":
    sys.exit(problem(FILE) or 0)
