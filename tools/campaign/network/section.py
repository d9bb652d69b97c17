"""The cases: all combinations of settings, phases of a run, and kinds of faults."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import small_graphs

from campaign import processes
from campaign.network import verdict
from campaign.network.faults import RATE, Kind, Victim, kinds
from campaign.network.settings import COMMON, PHASES, SETTINGS, by_phase
from campaign.processes import HPCGNN
from campaign.rank_job import Job, Outcome, Place
from campaign.section import FAILED, LEFT_OUT, REFUSED, RIGHT, Case, Section, Session
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import plan_store
from hpcgnn.lab.virtual import cluster as virtual_cluster
from hpcgnn.lab.virtual.network import Network

_HOSTS = 4
_LONGEST_RUN_SECONDS = 120.0
# For computation, for waiting for the sentences of other ranks, and for the launcher to end the ranks.
_BEYOND_TIMEOUT_SECONDS = 30.0
_SHORT_SETTINGS = ("32 bits", "2 bits, delta", "pipeline, 2 bits", "pipeqs, late")
_SHORT_PHASES = ("start", "forward", "backward", "evaluation", "checkpoint")


@dataclass(frozen=True)
class Planned:
    """A planned case: its settings, the phase of the fault, and the fault. number: distinguishes cases that are otherwise
    equal.
    """

    settings: str
    phase: str
    kind: Kind
    number: int = 0

    @property
    def name(self) -> str:
        """The name by which the case can be run again."""
        again = f" ({self.number})" if self.number else ""
        return f"{self.settings}: {self.phase}: {self.kind.name}{again}"


@dataclass
class Lab:
    """The cluster, its job, and the undisturbed runs. waits: the waits of rank 0 in the undisturbed run of some settings."""

    session: Session
    network: Network
    parts: Path
    job: Job | None = None
    waits: dict[str, dict[str, int]] = field(default_factory=dict)
    jobs: int = 0
    hit: Counter[str] = field(default_factory=Counter)
    longest_end: float = 0.0

    def fresh_job(self) -> Job:
        """The present job, or a new one."""
        if self.job is None:
            self.jobs += 1
            started = [*HPCGNN, "cluster", "run", "--name", self.network.name, "-n", _HOSTS, "-t", 1, "--"]
            folder = self.session.new_folder(f"job {self.jobs}")
            self.job = Job(lambda program: [*started, *program], folder, _HOSTS)
        return self.job

    def arguments(self, settings: str, run: Path, timeout: float, *more: object) -> list[object]:
        """The arguments of `hpcgnn train`."""
        return ["train", self.parts, "--out", run, *COMMON, *SETTINGS[settings], "--timeout", timeout, *more]

    def train(self, settings: str, run: Path, *more: object) -> Outcome:
        """Train without a fault."""
        outcome = self.fresh_job().run(
            self.arguments(settings, run, _LONGEST_RUN_SECONDS, *more), seconds=_LONGEST_RUN_SECONDS
        )
        if outcome.ended is not None:
            self.job = None
            raise RuntimeError(f"an undisturbed run ended: {outcome.ended.stderr[-800:]}")
        return outcome

    def undisturbed(self, settings: str) -> Path:
        """The undisturbed run of some settings."""
        run = self.session.folder / f"undisturbed {settings}"
        if settings not in self.waits:
            self.waits[settings] = self.train(settings, run).waits
        return run

    def alike(self, settings: str, run: Path) -> Path | None:
        """An undisturbed run with the decisions of ``run``, which may depend on the clock; None if that run has no complete
        epoch.
        """
        decisions, usual = run / "decisions.jsonl", self.undisturbed(settings)
        if not (usual / "decisions.jsonl").exists():
            return usual
        epochs = min(len(verdict.numbers(run)), decisions.read_text().count("\n") if decisions.exists() else 0)
        if not epochs:
            return None
        again = self.session.new_folder(f"again {run.name}")
        self.train(settings, again, "--replay", decisions, "--epochs", epochs)
        return again

    def close(self) -> None:
        """End the job."""
        if self.job is not None:
            self.job.close()
            self.job = None


def run(session: Session) -> Iterator[Case]:
    """Yield the cases of the section."""
    if reason := _lacking():
        yield Case("all", "all", LEFT_OUT, reason)
        return
    planned = [case for case in _planned(session) if session.wants(case.name)]
    parts = _parts(session)
    with _cluster() as network:
        lab = Lab(session, network, parts)
        try:
            for case in planned:
                if session.has_time():
                    yield _tried(lab, case)
            if session.has_time() and session.wants("the end of MPI"):
                yield _cut_at_the_very_end(lab)
        finally:
            lab.close()
            _add_facts(lab)


def _lacking() -> str:
    try:
        virtual_cluster.check_rights()
    except HpcgnnError as error:
        return str(error)
    told = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True, check=False).stdout
    return "" if "Open MPI" in told or "OpenRTE" in told else "virtual hosts need Open MPI"


def _planned(session: Session) -> list[Planned]:
    """The cases in random order, so that even a short time tries something of everything. Cases that end the job do not follow
    each other.
    """
    draw = session.generator("order")
    every = kinds(3.0 if session.short else 20.0)
    if session.short:
        short = [kind for kind in every if kind.name != "paused for long"]
        lasting = [kind for kind in short if not kind.ends_job]
        cases = [
            Planned(settings, phase, lasting[number % len(lasting)])
            for number, (settings, phase) in enumerate(
                zip(itertools.cycle(_SHORT_SETTINGS), _SHORT_PHASES, strict=False)
            )
        ]
        return [*cases, *(Planned("32 bits", "forward", kind) for kind in short if kind.ends_job)]
    cases = [
        Planned(settings, phase, kind)
        for settings in SETTINGS
        for phase in PHASES
        for kind in every
        if kind.name != "paused for long" and (phase != "policy" or "adaqp" in settings)
    ]
    cases += [Planned(settings, "forward", kind) for settings in SETTINGS for kind in every if "long" in kind.name]
    order = draw.permutation(len(cases)).tolist()
    ending = [index for index in order if cases[index].kind.ends_job]
    lasting_cases = [index for index in order if not cases[index].kind.ends_job]
    share = max(1, len(lasting_cases) // max(len(ending), 1))
    mixed = []
    for number, index in enumerate(ending):
        mixed += [*lasting_cases[number * share : (number + 1) * share], index]
    mixed += lasting_cases[len(ending) * share :]
    return [cases[index] for index in mixed]


def _parts(session: Session) -> Path:
    path = session.folder / "parts.h5"
    graph = small_graphs.even_graph(nodes=3000, edges=15_000)
    small_graphs.write_parts(path, graph, small_graphs.random_parts(graph.num_nodes, _HOSTS), _HOSTS)
    plan_store.store_plans(path, ["hybrid"])
    return path


@contextlib.contextmanager
def _cluster() -> Iterator[Network]:
    name = f"campaign{os.getpid()}"
    network = Network(name)
    try:
        network.build(_HOSTS, ipaddress.IPv4Network(virtual_cluster.DEFAULT_SUBNET), RATE, lambda: None)
        network.keep()
        yield network
    finally:
        virtual_cluster.destroy(network)


def _tried(lab: Lab, planned: Planned) -> Case:
    started = time.monotonic()
    made = partial(Case, planned.kind.name, planned.name)
    lab.undisturbed(planned.settings)
    draw = lab.session.generator(planned.name)
    places = by_phase(lab.waits[planned.settings]).get(planned.phase)
    if not places:
        return made(LEFT_OUT, f"such a run has no phase {planned.phase!r}")
    what = places[int(draw.integers(len(places)))]
    place = Place(0 if what.startswith("the disk") else int(draw.integers(_HOSTS)), what, 1)
    most = lab.waits[planned.settings][what]
    place = Place(place.rank, what, 1 + int(draw.integers(most)))
    outcome, run = _disturbed(lab, planned, place, host=int(draw.integers(_HOSTS)), share=float(draw.random()))
    if not outcome.reached and outcome.ended is None:
        return made(LEFT_OUT, f"a run with these settings does not always reach the chosen phase, {planned.phase!r}")
    lab.hit[planned.phase] += outcome.reached
    wrong = _wrong(lab, planned, outcome, run)
    end = FAILED if wrong else RIGHT if outcome.ended is None else REFUSED
    where = f" ({what}, {place.count} of {most}, rank {place.rank})"
    return made(end, wrong + where if wrong else "", time.monotonic() - started)


def _disturbed(lab: Lab, planned: Planned, place: Place, *, host: int, share: float) -> tuple[Outcome, Path]:
    kind, job = planned.kind, lab.fresh_job()
    run = lab.session.folder / f"run {planned.name}".replace("/", " in a ")
    low, high = kind.seconds
    victim = Victim(lab.network, host, job.pids[host])
    outcome = job.run(
        lab.arguments(planned.settings, run, kind.timeout_seconds),
        place=place,
        fault=lambda go: kind.happens(victim, go, low + share * (high - low)),
        seconds=2 * kind.timeout_seconds + _BEYOND_TIMEOUT_SECONDS,
    )
    victim.heal()
    if outcome.ended is not None:
        lab.job = None
    return outcome, run


def _wrong(lab: Lab, planned: Planned, outcome: Outcome, run: Path) -> str:
    """A phrase about the defect of a disturbed run; empty if there is none."""
    if outcome.ended is None:
        undisturbed = lab.alike(planned.settings, run)
        assert undisturbed is not None
        return verdict.wrong_weights(outcome) or verdict.wrong_result(run, undisturbed)
    if not planned.kind.ends_job:
        return f"ended, though it was over before --timeout: {outcome.ended.stderr[-500:]}"
    lab.longest_end = max(lab.longest_end, outcome.seconds)
    silent = range(_HOSTS) if "paused" in planned.kind.name else ()
    most = 2 * planned.kind.timeout_seconds + _BEYOND_TIMEOUT_SECONDS
    if wrong := verdict.wrong_stop(outcome, ranks=_HOSTS, silent=silent, most_seconds=most):
        return wrong
    if not run.exists():  # the run had not begun
        return ""
    looked = processes.run([*HPCGNN, "check", run]) if (run / "metrics.jsonl").exists() else None
    if looked is not None and looked.exit != 0:
        return f"what the run has left is damaged: {looked.stderr}"
    undisturbed = lab.alike(planned.settings, run)
    if undisturbed is None:
        return ""
    mine, wanted = verdict.numbers(run), verdict.numbers(undisturbed)
    return verdict.wrong_beginning(mine, wanted, replayed=undisturbed != lab.undisturbed(planned.settings))


def _cut_at_the_very_end(lab: Lab) -> Case:
    """Cut a link after a run has written everything, when ranks only have to exit."""
    started = time.monotonic()
    victim = Victim(lab.network, 2, lab.fresh_job().pids[2])
    lab.undisturbed("32 bits")
    job, lab.job = lab.fresh_job(), None
    victim.cut()
    ended = job.end(_BEYOND_TIMEOUT_SECONDS)
    victim.heal()
    said = "" if ended.exit in (0, 1) else f"exit code {ended.exit}: {ended.stderr[-500:]}"
    return Case("cut for good", "the end of MPI", FAILED if said else RIGHT, said, time.monotonic() - started)


def _add_facts(lab: Lab) -> None:
    lab.session.add_fact("longest time from a permanent fault to the end of the job", lab.longest_end, "s")
    for phase, count in lab.hit.items():
        lab.session.add_fact(f"faults in the phase {phase!r}", count)


_ABOUT = """\
Four ranks train on four virtual hosts of one machine, with links of 50 Mbit/s, every staleness policy and several bit-widths.
One rank stops just before it waits for something in a chosen phase. Then one of these faults is made, and the rank continues:

- a link is cut for good, or for up to 1.5 s, or it fails and recovers repeatedly;
- all links are limited to 1 Mbit/s for up to 2 s;
- a rank is stopped for 0.3 to 20 s.

The phases are the start (reading the graph and its plan), the forward and backward passes, the reduction of gradients, the
exchange of an epoch's times, evaluations, checkpoints, the decisions of policies, and the end.

A run whose fault is over before `--timeout` must finish. If the fault lasts longer, the run may also end with exit code 1 and one
sentence from each rank. All losses, metrics and weights, and all epochs recorded before an early end, must equal those of an
undisturbed run bit for bit (policies that depend on the clock replay their observations). Everything else is a failure, and so
is a hang.
"""

SECTION = Section("network", "The network", _ABOUT, run, share=2.0)
