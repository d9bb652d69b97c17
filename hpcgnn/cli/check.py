"""``hpcgnn check``: verification of a file or a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli import console
from hpcgnn.cli.kinds_of_files import check_run, facts_of
from hpcgnn.data import whole_check

_KINDS = {"checkpoint": "a checkpoint", "messages": "the messages that a rank keeps beside a checkpoint"}


@click.command(epilog="\b\nExamples\n  hpcgnn check parts.h5\n  hpcgnn check run/checkpoints/last.pt --json")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of a table.")
def check(file: Path, quiet: bool, as_json: bool) -> None:
    """Verify every value and every checksum of FILE, and print its contents in short.

    FILE is graph.h5, parts.h5 with its plans, a predictions file, a checkpoint, or a run folder. If something is damaged, the
    error names the array and the part, and the exit code is 1. No file is changed.

    One process reads the whole file in slabs, so start it without mpirun. If each node has its own copy of the file, run it on
    each node.
    """
    facts = _folder(file) if file.is_dir() else _file(file, quiet=quiet or as_json)
    facts = {"file": str(file)} | facts
    if as_json:
        print(json.dumps(facts))
    elif not quiet:
        console.table("checked: nothing is damaged", _rows(facts))


def _file(path: Path, *, quiet: bool) -> dict[str, Any]:
    return facts_of(path, _checkpoint, whole_check.count_steps, whole_check.verify, title="checking", quiet=quiet)


def _checkpoint(path: Path) -> dict[str, Any]:
    from hpcgnn.train import archive, checkpoint

    content = checkpoint.look_at(path)
    tensors = archive.tensors_in(content)
    facts = {
        "kind": "checkpoint" if "model" in content else "messages",
        "version": content.get("version", content.get("format", 1)),
        "arrays": len(tensors),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "checksums": True,
    }
    return facts | {name: content[name] for name in ("parts_uuid", "next_epoch") if name in content}


def _folder(path: Path) -> dict[str, Any]:
    """Verify the text files of a run against their declared types, and all its checkpoints."""
    from hpcgnn.train import checkpoint

    check_run(path)
    looked_at = list(_texts(path))
    facts: dict[str, Any] = {"kind": "run", "files": looked_at, "arrays": 0, "bytes": 0, "checksums": True}
    checkpoints = checkpoint.folder(path)
    for each in sorted([*checkpoints.glob("*.pt"), *(checkpoints / checkpoint.MESSAGES).glob("*.pt")]):
        found = _file(each, quiet=True)
        looked_at.append(str(each.relative_to(path)))
        facts |= {name: facts[name] + found[name] for name in ("arrays", "bytes")}
    return facts


def _texts(path: Path) -> Iterator[str]:
    """Verify the text files that exist, and yield their names."""
    from hpcgnn.policy.clock import Decision
    from hpcgnn.train import run_config, run_folder
    from hpcgnn.train.rank_report import Ranks
    from hpcgnn.train.run_config import check_file, read_file

    def lines(file: Path, kind: type) -> None:
        typed.check_epochs(typed.read_lines(file, kind), file)

    def ranks(file: Path) -> None:
        if not typed.read_json(file, Ranks).is_whole:
            raise HpcgnnError(f"{file} is damaged: its lists do not have the same length")

    looks = {
        run_config.CONFIG: lambda file: check_file(read_file(file), str(file)),
        run_config.RECORDS: lambda file: lines(file, run_folder.Record),
        run_config.DECISIONS: lambda file: lines(file, Decision),
        run_config.SUMMARY: lambda file: typed.read_json(file, dict[str, Any]),
        run_config.RANKS: ranks,
    }
    for name, look in looks.items():
        if (path / name).exists():
            look(path / name)
            yield name


def _rows(facts: dict[str, Any]) -> list[tuple[str, object]]:
    """The rows of the table."""
    rows: list[tuple[str, object]] = []
    for name, value in facts.items():
        if name == "bytes":
            rows.append((name, console.size(value)))
        elif name == "checksums":
            rows.append((name, _about_checksums(facts)))
        elif name == "kind":
            rows.append((name, _KINDS.get(value, value)))
        elif value != [] and name != "plans_without_checksums":
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            rows.append((name.replace("_", " "), shown))
    return rows


def _about_checksums(facts: dict[str, Any]) -> str:
    if not facts["checksums"]:
        return "none in a file of this version; its values were verified, but changed bytes may remain unnoticed"
    if without := facts.get("plans_without_checksums"):
        return f"correct; plan {', '.join(without)} has none, so only its values were verified"
    return "all correct"
