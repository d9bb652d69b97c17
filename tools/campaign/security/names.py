"""Names of files that are dangerous in shell scripts, tried with every command that takes a name."""

from __future__ import annotations

import html.parser
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from campaign import processes
from campaign.processes import HPCGNN, Ended
from campaign.run import ROOT
from campaign.section import FAILED, LEFT_OUT, RIGHT, Case, Session

MARK = "marker-of-a-shell"
NAMES = {
    "plain": "plain",
    "spaces": "  a  b ",
    "quotes": "a'b\"c`touch marker-of-a-shell`d",
    "substitution": "$(touch marker-of-a-shell)${HOME}~",
    "separators": "a;touch marker-of-a-shell&b|c>d",
    "a hyphen": "-rf --help",
    "newlines": "a\ntouch marker-of-a-shell\nb",
    "unicode": "Ünï-图-\u202e🙂",
    "200 characters": "x" * 200,
    "brackets": "[bold]{0}%j%s<script>alert(1)</script>".replace("/", "\u2215"),
    "escapes": "a\x1b]0;title\x07b\x9b2J",
    "bytes": "a\udcffb",
}
_SRUN = """#!/usr/bin/env bash
# Stands in for Slurm's: one rank, here.
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
_SBATCH = """#!/usr/bin/env bash
printf '%s\\0' "$STUDY" "$KEYS" "$HPCGNN" "$@" > "$TOLD"
echo 7
"""
_STUDY = """name = "names"
kind = "train"
seeds = [0]
[axes]
graph = "digits"
[settings]
epochs = 1
hidden = 4
ranks = 1
"""


@dataclass
class Place:
    """The place where a chain of commands runs. name: of its files and of its folder. losses: the losses that the training must
    have, once known.
    """

    label: str
    folder: Path
    name: str
    programs: Path
    losses: list[float] = field(default_factory=list)

    def file(self, suffix: str) -> Path:
        """A file in this place."""
        return self.folder / f"{self.name}{suffix}"

    def run(self, *command: object, seconds: float = 300, **variables: str) -> Ended:
        """Run a command in this place."""
        path = os.pathsep.join([str(self.programs), os.environ["PATH"]])
        return processes.run(command, folder=self.folder, variables={"PATH": path} | variables, seconds=seconds)


_EXACT = ("--compute", "float32")  # the default depends on a measurement
_FOUND = {"convert", "partition"}  # commands whose files other commands read
_MADE = _FOUND | {"launch and train"}  # the training's losses are compared


def cases(session: Session) -> Iterator[Case]:
    """Yield a case for each name and command. A plain name comes first, and determines the losses of the training."""
    programs = session.new_folder("programs")
    _write_programs(programs)
    losses: list[float] = []
    chosen = ("substitution",) if session.short else tuple(NAMES)
    commands = _COMMANDS[:2] if session.short else _COMMANDS
    for label in chosen:
        wanted = {name for name, _ in commands if session.wants(f"{name}, {label}")}
        if label != "plain" and not wanted:
            continue
        wanted |= _MADE if label == "plain" else _FOUND
        folder = session.new_folder("names") / NAMES[label]
        folder.mkdir()
        place = Place(label, folder, NAMES[label], programs, losses)
        for name, command in commands:
            if name in wanted and session.has_time():
                yield _case(place, name, command)
        shutil.rmtree(folder, ignore_errors=True)


def _case(place: Place, name: str, command: Callable[[Place], str]) -> Case:
    started = time.monotonic()
    said = command(place)
    if not said and (left := marks(place.folder)):
        said = f"a shell has run part of the name: {left}"
    end = LEFT_OUT if said.startswith("left out: ") else FAILED if said else RIGHT
    return Case(
        "names of files", f"{name}, {place.label}", end, said.removeprefix("left out: "), time.monotonic() - started
    )


def marks(folder: Path) -> str:
    """The file that a shell would have created from the name, if it exists."""
    home = Path.home() / MARK
    found = next((path for path in (*folder.rglob(MARK), home) if path.exists() or path.is_symlink()), None)
    return str(found) if found else ""


def wrong(ended: Ended) -> str:
    """A phrase about the end of a command that must succeed, or about its output; empty if both are right."""
    if ended.exit != 0:
        return f"exit code {ended.exit}: {' | '.join(ended.stderr.strip().splitlines()[-4:])[-400:]}"
    return "an escape sequence is printed" if "\x1b" in ended.stdout + ended.stderr else ""


# -- the commands ------------------------------------------------------------------------------------------------------


def _convert(place: Place) -> str:
    source = place.file(".txt")
    source.write_text("".join(f"{i} {(i * 7 + 1) % 40}\n" for i in range(40)))
    said = wrong(place.run(*HPCGNN, "convert", f"edgelist:{source}", place.file("-edges.h5")))
    return said or wrong(place.run(*HPCGNN, "convert", "digits", place.file(".h5")))


def _partition(place: Place) -> str:
    return wrong(place.run(*HPCGNN, "partition", place.file(".h5"), place.file("-parts.h5"), "--parts", 2))


def _plan(place: Place) -> str:
    return wrong(place.run(*HPCGNN, "plan", place.file("-parts.h5")))


def _train(place: Place) -> str:
    return _trained(place, "run", *HPCGNN, "launch", "-n", 2, "--", *HPCGNN, "train")


def _trained(place: Place, suffix: str, *command: object) -> str:
    words = (*command, place.file("-parts.h5"), "--out", place.file(suffix), "--epochs", 2, "--hidden", 8, *_EXACT)
    return wrong(place.run(*words)) or wrong_losses(place, place.file(suffix))


def wrong_losses(place: Place, run: Path) -> str:
    """A phrase about a run of 2 epochs whose losses differ from those of the run with a plain name; empty if they do not."""
    found = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    if place.label == "plain" and not place.losses:
        place.losses.extend(found)
    return "" if found == place.losses and len(found) == 2 else f"losses {found}, they should be {place.losses}"


def _predict(place: Place) -> str:
    return wrong(
        place.run(*HPCGNN, "predict", place.file("-parts.h5"), place.file("run"), "--out", place.file("-scores.h5"))
    )


def _report(place: Place) -> str:
    said = wrong(place.run(*HPCGNN, "report", place.file("run"), "--out", place.file(".html")))
    return said or page_problem(place.file(".html").read_text(errors="replace"))


class _Page(html.parser.HTMLParser):
    """Collects everything that a page runs or fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fetched = [value for name, value in attrs if name in ("src", "href", "xlink:href", "action") and value]
        if tag in ("script", "iframe", "object", "embed", "link", "base", "form", "foreignobject"):
            self.found.append(f"<{tag}>")
        self.found += [f"{tag} of {value[:60]}" for value in fetched if not value.startswith(("#", "data:image/"))]
        self.found += [f"{name} of {tag}" for name, _ in attrs if name.startswith("on")]


def page_problem(text: str) -> str:
    """A phrase about code that a page runs, or resources that it fetches; empty if there are none."""
    page = _Page()
    page.feed(text)
    return f"the page has {', '.join(page.found[:5])}" if page.found else ""


def _mpirun_job(place: Place) -> str:
    folder = place.folder / "job"
    folder.mkdir()
    settings = {
        "HPCGNN": str(Path(sys.executable).with_name("hpcgnn")),
        "SOURCE": "digits",
        "DATA": place.name,
        "RUN": f"{place.name}/run",
        "RANKS": "2",
        "TRAIN_FLAGS": " ".join(("--epochs 2 --hidden 8 --quiet", *_EXACT)),
    }
    ended = place.run("env", "-C", folder, ROOT / "jobs" / "mpirun.sh", **settings)
    return wrong(ended) or wrong_losses(place, folder / place.name / "run")


def _slurm_job(place: Place) -> str:
    folder = place.folder / "slurm"
    folder.mkdir()
    source = place.file(".npz")
    _write_npz(source)
    settings = {
        "HPCGNN": str(Path(sys.executable).with_name("hpcgnn")),
        "SOURCE": f"npz:{source}",
        "DATA": place.name,
        "RUN": f"{place.name}/run",
        "SLURM_NTASKS": "1",
        "SLURM_JOB_ID": "1",
        "TRAIN_FLAGS": " ".join(("--epochs 2 --hidden 8 --quiet", *_EXACT)),
    }
    ended = place.run("env", "-C", folder, "bash", ROOT / "jobs" / "slurm.sbatch", **settings)
    finished = folder / place.name / "run" / "summary.json"
    return wrong(ended) or ("" if '"finished": true' in finished.read_text() else "it has not finished")


def _write_npz(path: Path) -> None:
    import numpy as np

    ids = np.arange(12)
    with path.open("wb") as file:
        arrays = {"num_nodes": np.int64(12), "edge_index": np.stack([ids, (ids + 1) % 12]), "y": ids % 3}
        masks = {"train_mask": ids < 6, "val_mask": (ids >= 6) & (ids < 9), "test_mask": ids >= 9}
        np.savez(file, x=np.eye(12, 3, dtype=np.float32), **arrays, **masks)


def _study(place: Place) -> str:
    specification = place.file(".toml")
    specification.write_text(_STUDY)
    return wrong(place.run(*HPCGNN, "study", "run", specification, "--out", place.file("-study"), "--quiet"))


def _submit(place: Place) -> str:
    told = place.folder / "told"
    specification, folder = place.file(".toml"), place.file("-submitted")
    specification.write_text(_STUDY)
    said = wrong(place.run(*HPCGNN, "study", "submit", specification, "--out", folder, TOLD=str(told)))
    if said:
        return said
    study, keys, command, *words = told.read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
    output = next(word for word in words if word.startswith("--output="))
    if output != f"--output={folder}/slurm/%A_%a.out".replace("%", "%%").replace("%%A_%%a", "%A_%a"):
        return f"sbatch is told {output}"
    if study != str(folder):
        return f"sbatch is told that the study is in {study}"
    settings = {"STUDY": study, "KEYS": keys, "HPCGNN": command, "SLURM_ARRAY_TASK_ID": "0", "SLURM_NTASKS": "1"}
    return wrong(place.run("bash", words[-1], **settings))


def _virtual_hosts(place: Place) -> str:
    if os.geteuid() or not shutil.which("ip"):
        return "left out: virtual hosts need root and iproute2"
    launch = (*HPCGNN, "launch", "-n", 2, "--hosts", 2, "--name", "names")
    return _trained(place, "-hosts", *launch, "--", *HPCGNN, "train")


_COMMANDS: tuple[tuple[str, Callable[[Place], str]], ...] = (
    ("convert", _convert),
    ("partition", _partition),
    ("plan", _plan),
    ("launch and train", _train),
    ("predict", _predict),
    ("report", _report),
    ("jobs/mpirun.sh", _mpirun_job),
    ("jobs/slurm.sbatch", _slurm_job),
    ("study run", _study),
    ("study submit", _submit),
    ("launch on virtual hosts", _virtual_hosts),
)


def _write_programs(folder: Path) -> None:
    for name, text in (("srun", _SRUN), ("sbatch", _SBATCH), ("scontrol", "#!/bin/sh\nexit 1\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
