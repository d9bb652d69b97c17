"""The calls that fail in each command, and the checks of the results."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from campaign.disk import mounts
from campaign.disk.client import NO_FAULT, SHORT, Call, Fault, Server, build
from campaign.disk.commands import COMMANDS, ON_RANKS, PREPARATION, Command, raw
from campaign.kills.jobs import OF_TRAINED_EPOCHS
from campaign.processes import Ended, wrong_end
from campaign.section import FAILED, LEFT_OUT, REFUSED, RIGHT, Case, Session
from campaign.whole import is_temporary, not_whole

_WRITES = ("write", "pwrite", "writev", "pwritev", "sendfile", "copy_file_range")
_READS = ("read", "pread", "readv", "preadv")
_NEED_ROOM = (*_WRITES, "create", "mkdir", "ftruncate", "fallocate", "fsync", "fdatasync", "rename", "close")
_MOST_OF_A_KIND = 60
_SHORT_CASES = 2  # for each command, in the short form
_ON_RANKS_CASES = 8


@dataclass
class Bench:
    """Objects that all cases share. inputs: the folder with the commands' inputs. alone: the undisturbed run of each command."""

    session: Session
    server: Server
    inputs: Path
    alone: dict[str, Alone] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Alone:
    """An undisturbed run of a command: the digests of its results, the names that it leaves, and its calls on files, by rank."""

    made: dict[str, str]
    names: set[str]
    calls: list[list[Call]]


def run(session: Session) -> Iterator[Case]:
    """Yield the cases of the section."""
    library = build(session.folder)
    if library is None:
        yield Case("calls that fail once", "all", LEFT_OUT, "there is no C compiler")
        return
    with Server(library, session.new_folder("printed")) as server:
        bench = Bench(session, server, session.new_folder("inputs"))
        for words in PREPARATION:
            _check(server.run(words, bench.inputs))
        yield from _one_process(bench)
        yield from mounts.cases(bench)
        if not session.short:
            yield from _on_ranks(bench)
        session.add_fact("system calls on files, by kind", ", ".join(f"{n} {k}" for k, n in bench.met.items()))


def _check(ended: Ended) -> None:
    if ended.exit != 0:
        raise RuntimeError(f"an undisturbed command ended with {ended.exit}: {ended.stderr}")


def new_folder(bench: Bench, command: Command, folder: Path | None = None) -> Path:
    """A folder with the inputs of a command."""
    folder = folder or bench.session.new_folder("case")
    for source, name in command.found.items():
        if (bench.inputs / source).is_dir():
            shutil.copytree(bench.inputs / source, folder / name)
        else:
            shutil.copyfile(bench.inputs / source, folder / name)
    return folder


def alone(bench: Bench, command: Command) -> Alone:
    """The run of a command without a fault."""
    if command.name not in bench.alone:
        calls = []
        for rank in (0, 1) if command in ON_RANKS else (-1,):
            folder = new_folder(bench, command)
            _check(_start(bench, command.words, folder, rank, NO_FAULT))
            calls.append(bench.server.calls())
        bench.met.update(call.kind for each in calls for call in each)
        bench.alone[command.name] = Alone(command.made(folder), names(folder), calls)
    return bench.alone[command.name]


def _start(bench: Bench, words: Sequence[str], folder: Path, rank: int, fault: Fault) -> Ended:
    """Start a command. rank: the rank that meets the fault; -1 for a process without a launcher."""
    if rank < 0:
        return bench.server.run(words, folder, fault)
    return bench.server.run_on_ranks(words, folder, rank, fault)


def names(folder: Path) -> set[str]:
    """The relative names of all files and folders below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def faults(calls: list[Call]) -> list[Fault]:
    """The faults to try for these calls. For kinds with very many calls, a limited number of them, evenly spread.

    The first calls of each kind on each file come first, so that a run with little time tries the calls that differ most.
    """
    found: list[tuple[int, Fault]] = []
    of_file: Counter[tuple[str, str]] = Counter()
    # For each call of a kind, the number of earlier calls of that kind on the same file.
    of_kind: dict[str, list[int]] = {}
    for call in (call for call in calls if call.process == calls[0].process):
        of_kind.setdefault(call.kind, []).append(of_file[call.kind, call.path])
        of_file[call.kind, call.path] += 1
    for kind, places in of_kind.items():
        tried = min(len(places), _MOST_OF_A_KIND)
        errors = [errno.EIO] + [errno.ENOSPC] * (kind in _NEED_ROOM) + [SHORT] * (kind in (*_WRITES, *_READS))
        for number in (n * len(places) // tried for n in range(tried)):
            found += [(places[number], Fault(kind, number + 1, error)) for error in errors]
    return [fault for _, fault in sorted(found, key=lambda each: each[0])]


def _one_process(bench: Bench) -> Iterator[Case]:
    """Cases of a process without ranks. Commands alternate, so that a run with little time tries each of them."""
    session, of_commands = bench.session, []
    for command in COMMANDS:
        whole = session.wants(f"{command.name} in one process")
        if not whole and not _is_named(session, command, -1):
            continue
        chosen = faults(alone(bench, command).calls[0])
        if not whole:
            chosen = [fault for fault in chosen if _is_named(session, command, -1, fault)]
        elif session.short:
            chosen = [fault for fault in chosen if fault.kind not in _READS]
            picked = session.generator(command.name).choice(len(chosen), _SHORT_CASES, replace=False)
            chosen = [chosen[k] for k in sorted(picked)]
        of_commands.append([(command, fault) for fault in chosen])
    for turn in itertools.zip_longest(*of_commands):
        for each in turn:
            if each is not None and session.has_time():
                yield try_fault(bench, *each)


def _on_ranks(bench: Bench) -> Iterator[Case]:
    """Cases with two ranks: a few faults on each."""
    for command in ON_RANKS:
        for rank in (0, 1):
            whole = bench.session.wants(command.name)
            if not whole and not _is_named(bench.session, command, rank):
                continue
            chosen = faults(alone(bench, command).calls[rank])
            if rank == 0:  # rank 0 makes the same calls as a process alone, too
                chosen = [fault for fault in chosen if fault.kind in _WRITES]
            picked = bench.session.generator(command.name, rank).permutation(len(chosen))[:_ON_RANKS_CASES]
            for k in picked:
                if bench.session.has_time() and (whole or _is_named(bench.session, command, rank, chosen[k])):
                    yield try_fault(bench, command, chosen[k], rank)


def _is_named(session: Session, command: Command, rank: int, fault: Fault | None = None) -> bool:
    """Return whether a word names exactly one case of this command, which must be a known fault; with ``fault``, this very
    case.
    """
    start = f"{command.name}{_of_rank(rank)}: " + (f"{fault.kind} {fault.number} {_reason(fault)} (" if fault else "")
    return any(word.startswith(start) for word in session.only)


def _of_rank(rank: int) -> str:
    return f", rank {rank}" if rank >= 0 else ""


def _reason(fault: Fault) -> str:
    return "short" if fault.error == SHORT else errno.errorcode[fault.error]


def try_fault(bench: Bench, command: Command, fault: Fault, rank: int = -1) -> Case:
    """Run a command that meets one fault, and then the same command without it."""
    started, folder = time.monotonic(), new_folder(bench, command)
    before = raw(folder)
    ended = _start(bench, command.words, folder, rank, fault)
    path = next((call.path for call in bench.server.calls() if call.failed), "")
    reason = _reason(fault)
    where = without_process(os.path.relpath(path, folder)) if path else "never reached"
    wrong = _wrong(bench, command, folder, before, ended, fault, path, rank)
    group = f"{command.name}: {'short transfers' if fault.error == SHORT else reason}"
    name = f"{command.name}{_of_rank(rank)}: {fault.kind} {fault.number} {reason} ({where})"
    shutil.rmtree(folder)
    end = FAILED if wrong else RIGHT if ended.exit == 0 else REFUSED
    return Case(group, name, end, wrong or ended.stderr.strip()[:300], time.monotonic() - started)


def without_process(name: str) -> str:
    """A temporary name without the host and the process in it, which differ between runs."""
    return ".".join("" if word.isdecimal() or word == os.uname().nodename else word for word in name.split("."))


def _wrong(
    bench: Bench,
    command: Command,
    folder: Path,
    before: dict[str, str],
    ended: Ended,
    fault: Fault,
    path: str,
    rank: int,
) -> str:
    """A phrase about the defect; empty if there is none."""
    if not path and rank < 0:
        return f"the fault was not met, and the command ended with {ended.exit}: {ended.stderr[-300:]}"
    said = wrong_end(ended, names=_words_for(path, folder, command), ranks=2 if rank >= 0 else 0)
    if not said and ended.exit != 0 and fault.error == SHORT:
        said = f"refused where the call could be continued: {ended.stderr.strip()[-300:]}"
    if not said and ended.exit != 0 and os.strerror(fault.error) not in ended.stderr:
        said = f"does not say {os.strerror(fault.error)}: {ended.stderr.strip()[-300:]}"
    return said or wrong_files(bench, command, folder, before, ended, rank)


def wrong_files(
    bench: Bench, command: Command, folder: Path, before: dict[str, str], ended: Ended, rank: int = -1
) -> str:
    """A phrase about a wrong file in the folder, after the failed command and after the next one; empty if there is none."""
    wanted = alone(bench, command)
    if ended.exit == 0:
        if other := _other(command, folder, wanted):
            return f"ends with exit code 0, but {other}"
        if names(folder) == wanted.names:
            return ""
    elif broken := _broken(command, folder, before, wanted):
        return broken
    again = _start(bench, command.words_again(), folder, rank, NO_FAULT)
    if again.exit != 0 and not (again.exit == 1 and "exists: choose another name" in again.stderr):
        return f"the next command ends with {again.exit}: {again.stderr.strip()[-400:]}"
    if other := _other(command, folder, wanted):
        return f"after the next command {other}"
    left, missing = sorted(names(folder) - wanted.names), sorted(wanted.names - names(folder) - OF_TRAINED_EPOCHS)
    if left or missing:
        return f"after the next command there is {left} too much, and no {missing}"
    return ""


def _broken(command: Command, folder: Path, before: dict[str, str], wanted: Alone) -> str:
    """A phrase about a file that is neither the complete old file nor the complete new one."""
    after = raw(folder)
    for name in before.keys() - after.keys():
        return f"{name} is gone"
    for name in (name for name, digest in after.items() if before.get(name) != digest):
        if name in wanted.made:
            try:
                made = command.made(folder)
            except Exception as error:  # libraries raise errors of many types
                return f"{name} is neither the old one nor the new one: {error!r}"
            if made[name] != wanted.made[name]:
                return f"{name} is neither the old one nor the new one"
        elif problem := not_whole(folder / name):
            return problem
    return ""


def _other(command: Command, folder: Path, wanted: Alone) -> str:
    try:
        made = command.made(folder)
    except Exception as error:  # libraries raise errors of many types
        return f"what was made cannot be read: {error!r}"
    other = [name for name, value in wanted.made.items() if made.get(name) != value]
    return f"what was made differs: {', '.join(other)}" if other else ""


def _words_for(path: str, folder: Path, command: Command) -> list[str]:
    """The words by which a sentence may name the file: its name, the final name of a temporary file, or a folder that the user
    named.
    """
    if not path:
        return []
    found: list[str] = []
    if path.endswith(_UNNAMED):
        return [command.words[2]]
    for part in Path(os.path.relpath(path, folder)).parts:
        found += [part] if not is_temporary(part) else [name for name in _FINAL if part.startswith(f".{name}")]
    return found or [command.words[2]]


_UNNAMED = " (deleted)"  # suffix of a file that no longer has a name, or never had one
_FINAL = ("graph.h5", "parts.h5", "scores.h5", "page.html", "last.pt", "best.pt", "config.toml", "summary.json", "ranks.json",
          "metrics.jsonl", "decisions.jsonl")  # fmt: skip
