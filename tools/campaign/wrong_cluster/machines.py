"""Ranks with other instruction sets, and with clocks that differ by hours, compared with equal ranks: the bits must be the
same.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from campaign.network import verdict
from campaign.network.faults import paused_rank
from campaign.rank_job import Job, Outcome, Place
from campaign.run import ROOT
from campaign.section import FAILED, LEFT_OUT, REFUSED, RIGHT, Case, Session
from campaign.wrong_cluster import ranks
from hpcgnn.kernels import library

_SIZES = ("--hidden", 16, "--layers", 2)  # sgc does not have these settings
_COMMON = ("--epochs", 4, "--eval-every", 2, "--checkpoint-every", 2, "--quiet")
_SETTINGS: dict[str, tuple[object, ...]] = {
    "sage": (),
    "sage, 2 bits": ("--bits", 2),
    "gcn, 2 bits, delta": ("--model", "gcn", "--bits", 2, "--message-coding", "delta", "--dropout", 0),
    "sage, int8": ("--compute", "int8-always"),
    "gcn, int8, 8 bits": ("--model", "gcn", "--compute", "int8-always", "--bits", 8),
    "gat, 1 bit": ("--model", "gat", "--heads", 2, "--bits", 1),
    "gatv2": ("--model", "gatv2", "--heads", 2),
    "gin, 4 bits": ("--model", "gin", "--bits", 4),
    "appnp": ("--model", "appnp", "--hops", 3),
    "dagnn": ("--model", "dagnn", "--hops", 3),
    "gcnii": ("--model", "gcnii"),
    "jknet, 16 bits": ("--model", "jknet", "--bits", 16),
    "sgc": ("--model", "sgc"),
    "pipeline, 2 bits": ("--staleness", "pipeline", "--bits", 2),
}
_SHORT = ("sage, 2 bits", "gcn, int8, 8 bits")
_SECONDS, _TIMEOUT_SECONDS = 60.0, 4.0
_ALIKE = [{}, {}]


class Lab:
    """Runs of some settings by equal ranks, and by different ones."""

    def __init__(self, session: Session, parts: Path) -> None:
        self.session, self.parts = session, parts
        self._alike: Job | None = None
        self._done: dict[str, Path] = {}

    def arguments(self, settings: str, run: Path, *more: object) -> list[object]:
        """The arguments of `hpcgnn train`."""
        compute = () if "--compute" in _SETTINGS[settings] else ("--compute", "float32")
        sizes = () if settings == "sgc" else _SIZES
        return ["train", self.parts, "--out", run, *_COMMON, *sizes, *compute, *_SETTINGS[settings], *more]

    def alike(self, settings: str) -> Path:
        """The run of equal ranks."""
        if self._alike is None:
            self._alike = Job(lambda program: ranks.line(program, _ALIKE), self.session.new_folder("alike"), 2)
        if settings not in self._done:
            run = self.session.folder / f"alike {settings}"
            outcome = self._alike.run(self.arguments(settings, run), seconds=_SECONDS)
            if outcome.ended is not None:
                raise RuntimeError(f"a run of ranks that are alike ended: {outcome.ended.stderr[-800:]}")
            self._done[settings] = run
        return self._done[settings]

    def close(self) -> None:
        """End the job."""
        if self._alike is not None:
            self._alike.close()


def cases(session: Session, parts: Path) -> Iterator[Case]:
    """Yield all cases."""
    lab = Lab(session, parts)
    try:
        yield from _instruction_sets(lab)
        yield from _clocks(lab)
    finally:
        lab.close()


# -- instruction sets --------------------------------------------------------------------------------------------------


def _instruction_sets(lab: Lab) -> Iterator[Case]:
    names = library.isas()
    pairs = [(names[0], names[-1])] if lab.session.short else [(one, names[-1]) for one in names[:-1]]
    if len(names) < 2:
        yield Case("instruction sets", "all", LEFT_OUT, f"this machine has {', '.join(names)} alone")
        return
    wanted = [name for name in _SETTINGS if not lab.session.short or name in _SHORT]
    for one, other in pairs:
        own = [{"HPCGNN_ISA": one}, {"HPCGNN_ISA": other}]
        yield from _compared(lab, "instruction sets", f"{one} and {other}", wanted, own)
    if not lab.session.short:
        own = [{}, {"ATEN_CPU_CAPABILITY": "avx2"}]
        yield from _compared(lab, "torch's instruction sets", "its own and avx2", wanted, own, may_differ=True)


def _compared(
    lab: Lab,
    group: str,
    what: str,
    wanted: list[str],
    own: list[dict[str, str]],
    *,
    wrapped: tuple[object, ...] = (),
    may_differ: bool = False,
) -> Iterator[Case]:
    """Run all settings in one job of different ranks. may_differ: results may differ in the last bits from those of equal
    ranks, but not between these ranks.
    """
    wanted = [settings for settings in wanted if lab.session.wants(f"{what}: {settings}")]
    job: Job | None = None
    for settings in wanted:
        if not lab.session.has_time():
            break
        started = time.monotonic()
        undisturbed, run = lab.alike(settings), lab.session.folder / f"{what} {settings}"
        if job is None:
            job = Job(lambda program: ranks.line(program, own, wrapped), lab.session.new_folder(what), 2)
        outcome = job.run(lab.arguments(settings, run), seconds=_SECONDS)
        wrong = _wrong(outcome, run, undisturbed, may_differ=may_differ)
        yield Case(group, f"{what}: {settings}", FAILED if wrong else RIGHT, wrong, time.monotonic() - started)
        if outcome.ended is not None:
            job = None
    if job is not None:
        job.close()


def _wrong(outcome: Outcome, run: Path, undisturbed: Path, *, may_differ: bool) -> str:
    if outcome.ended is not None:
        return f"ended: {outcome.ended.stderr[-500:]}"
    return verdict.wrong_weights(outcome) or ("" if may_differ else verdict.wrong_result(run, undisturbed))


# -- clocks ------------------------------------------------------------------------------------------------------------


def _clocks(lab: Lab) -> Iterator[Case]:
    compiler = shutil.which("cc")
    if compiler is None or subprocess.run(["unshare", "--time", "true"], capture_output=True, check=False).returncode:
        yield Case("clocks", "all", LEFT_OUT, "a C compiler and time namespaces are needed")
        return
    shim = lab.session.folder / "shifted_clock.so"
    source = ROOT / "tools" / "campaign" / "shifted_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
    shifts = (5 * 3600,) if lab.session.short else (5 * 3600, -3 * 86400)
    for seconds in shifts:
        own = [{}, {"LD_PRELOAD": str(shim), "SHIFTED_CLOCK_SECONDS": str(seconds)}]
        wrapped = ("unshare", "--time", "--monotonic", 100_000, "--boottime", 100_000)
        what = f"one {seconds / 3600:+.0f} h"
        wanted = ["sage, 2 bits"] if lab.session.short else ["sage, 2 bits", "gcn, 2 bits, delta", "pipeline, 2 bits"]
        yield from _compared(lab, "clocks", what, wanted, own, wrapped=wrapped)
        if not lab.session.short:
            yield from _resumed(lab, what, own, wrapped)
            yield from _timed_out(lab, what, own, wrapped)


def _resumed(lab: Lab, what: str, own: list[dict[str, str]], wrapped: tuple[object, ...]) -> Iterator[Case]:
    """Stop a run after two epochs, leave a file as a killed writer leaves it, and resume the run."""
    settings, started = "gcn, 2 bits, delta", time.monotonic()
    name = f"{what}: resumed"
    if not lab.session.wants(name):
        return
    run, undisturbed = lab.session.folder / name, lab.alike(settings)
    job = Job(lambda program: ranks.line(program, own, wrapped), lab.session.new_folder(name), 2)
    outcome = job.run(lab.arguments(settings, run, "--epochs", 2), seconds=_SECONDS)
    if outcome.ended is None:
        outcome = job.run(["train", lab.parts, "--out", run, "--resume", "--epochs", 4, "--quiet"], seconds=_SECONDS)
    wrong = _wrong(outcome, run, undisturbed, may_differ=False)
    if (
        wrong.startswith("epoch 1 ") and "metric" in wrong
    ):  # the second epoch is the last of two and is evaluated; so is the second of four
        wrong = f"resumed: {wrong}"
    yield Case("clocks", name, FAILED if wrong else RIGHT, wrong, time.monotonic() - started)
    if outcome.ended is None:
        job.close()


def _timed_out(lab: Lab, what: str, own: list[dict[str, str]], wrapped: tuple[object, ...]) -> Iterator[Case]:
    """Stop a rank for longer than ``--timeout``, by its own clock and by the clocks of the others."""
    name = f"{what}: --timeout"
    if not lab.session.wants(name):
        return
    job = Job(lambda program: ranks.line(program, own, wrapped), lab.session.new_folder(name), 2)
    run = lab.session.folder / name
    outcome = job.run(
        lab.arguments("sage", run, "--timeout", _TIMEOUT_SECONDS),
        place=Place(0, "gradients", 2),
        fault=lambda go: paused_rank(job.pids[0], go, 4 * _TIMEOUT_SECONDS),
        seconds=_SECONDS,
    )
    wrong = verdict.wrong_stop(outcome, ranks=2, silent=[0], most_seconds=_SECONDS)
    yield Case("clocks", name, FAILED if wrong else REFUSED, wrong, outcome.seconds)
