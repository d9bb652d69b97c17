"""``hpcgnn show`` and ``hpcgnn check``: the contents of a file or a run, and their verification."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli import console
from hpcgnn.cli.options import AS_JSON, FILE, QUIET
from hpcgnn.data import h5, whole_check
from hpcgnn.data.graph_file import GRAPH_KIND, PARTS_KIND, SlabReader, reader_of
from hpcgnn.data.h5 import HDF5
from hpcgnn.data.whole_check import contents

_ZIP = b"PK\x03\x04"  # the first bytes of files of torch

Facts = dict[str, Any]
Rows = Iterator[tuple[str, object]]


def _facts_of(
    path: Path,
    of_checkpoint: Callable[[Path], Facts],
    count_steps: Callable[[SlabReader], int],
    of_graph: Callable[[SlabReader, Callable[[int], object]], Facts],
    *,
    title: str,
    quiet: bool,
) -> Facts:
    """The result of the reader for this kind of file: ``of_graph``, for graphs and parts, has a progress bar of ``count_steps``
    steps. Raises HpcgnnError for a file of another kind, or a damaged one."""
    if not path.is_file():
        raise HpcgnnError(f"{path} does not exist or is not a file: give an existing file or run folder")
    try:
        is_archive, is_hdf5 = (h5.begins_with(path, signature) for signature in (_ZIP, HDF5))
    except OSError as error:
        raise HpcgnnError(f"cannot read {path}: {error.strerror or error}") from error
    if is_archive:
        return of_checkpoint(path)
    if not is_hdf5:
        raise HpcgnnError(
            f"{path} is not a file of hpcgnn, or its first bytes are damaged: it is neither an HDF5 file nor a checkpoint"
        )
    kind = h5.kind_of(path)
    if kind not in (GRAPH_KIND, PARTS_KIND):
        from hpcgnn.train import owned_rows, predict  # here, as they import torch

        if kind == predict.PREDICTIONS_KIND:
            return predict.look_at_predictions(path)
        if kind == owned_rows.ROWS_KIND:
            return owned_rows.look_at_rows(path)
    with reader_of(path)(path) as reader, console.progress(title, count_steps(reader), quiet=quiet) as advance:
        return of_graph(reader, advance)


@click.command(epilog="\b\nExamples\n  hpcgnn check parts.h5\n  hpcgnn check run/checkpoints/last.pt --json")
@click.argument("file", type=FILE)
@QUIET
@AS_JSON
def check(file: Path, quiet: bool, as_json: bool) -> None:
    """Verify every value and every checksum of FILE, and print its contents in short.

    FILE is graph.h5, parts.h5 with its plans, a predictions file, a checkpoint, or a run folder. If something is damaged, the
    error names the array and the part, and the exit code is 1. No file is changed.

    One process reads the whole file in slabs, so start it without mpirun. If each node has its own copy of the file, run it on
    each node.
    """
    facts = _verified_run(file) if file.is_dir() else _verified_file(file, quiet=quiet or as_json)
    facts = {"file": str(file)} | facts
    if as_json:
        print(json.dumps(facts))
    elif not quiet:
        console.table("checked: nothing is damaged", _rows_of(facts | {"checksums": _about_checksums(facts)}))


def _verified_file(path: Path, *, quiet: bool) -> Facts:
    count, verify = whole_check.count_steps, whole_check.verify
    return _facts_of(path, _verified_checkpoint, count, verify, title="checking", quiet=quiet)


def _verified_checkpoint(path: Path) -> Facts:
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
    digest = {} if "model" in content else {"digest": archive.digest_of(content)}
    return (
        facts | digest | {name: content[name] for name in ("parts_uuid", "next_epoch", "node_rows") if name in content}
    )


def _verified_run(path: Path) -> Facts:
    """Verify the text files of a run against their declared types, and all its checkpoints."""
    from hpcgnn.train import checkpoint, owned_rows, run_config, run_files, run_folder

    run_files.check_folder(path)
    looked_at, of_file = list(_texts(path)), dict[str, Facts]()
    facts: Facts = {"kind": "run", "files": looked_at, "arrays": 0, "bytes": 0, "checksums": True}
    checkpoints = checkpoint.folder(path)
    for each in sorted(
        [*checkpoints.glob("*.pt"), *checkpoints.glob("*.h5"), *(checkpoints / checkpoint.MESSAGES).glob("*.pt")]
    ):
        found = of_file[each.name] = _verified_file(each, quiet=True)
        looked_at.append(str(each.relative_to(path)))
        facts |= {name: facts[name] + found[name] for name in ("arrays", "bytes")}
    if run_config.RECORDS in looked_at and checkpoint.LAST in of_file:
        records, count = path / run_config.RECORDS, of_file[checkpoint.LAST]["next_epoch"]
        run_folder.check_records(run_folder.RunFolder(path).records(), count, records)
    for kind in ("last", "best"):
        about = of_file.get(f"{kind}.pt", {})
        if wanted := about.get("node_rows", {}).get(kind):
            rows = f"{kind}-{about['next_epoch']}.h5"
            owned_rows.check_digest(checkpoints / rows, of_file.get(rows, {}).get("digest", "none"), wanted)
    if wanted := of_file.get(checkpoint.LAST, {}).get("node_rows", {}).get(checkpoint.MESSAGES):
        of_ranks = f"{of_file[checkpoint.LAST]['next_epoch']}-"
        total = sum(int(each["digest"][:16], 16) for name, each in of_file.items() if name.startswith(of_ranks))
        owned_rows.check_digest(checkpoints / checkpoint.MESSAGES, f"{total % 2**64:016x}", wanted)
    return facts


def _texts(path: Path) -> Iterator[str]:
    """Verify the text files that exist, and yield their names."""
    from hpcgnn.policy.clock import Decision
    from hpcgnn.train import run_config, run_folder
    from hpcgnn.train.rank_report import Ranks
    from hpcgnn.train.run_config import check_file, read_file

    kinds = {
        run_config.CONFIG: None,
        run_config.RECORDS: run_folder.Record,
        run_config.DECISIONS: Decision,
        run_config.SUMMARY: dict[str, Any],
        run_config.RANKS: Ranks,
    }
    for name, kind in kinds.items():
        file = path / name
        if not file.exists():
            continue
        if kind is None:
            check_file(read_file(file), str(file))
        elif file.suffix == ".jsonl":
            typed.check_epochs(typed.read_lines(file, kind), file)
        else:
            found = typed.read_json(file, kind)
            if isinstance(found, Ranks) and not found.is_whole:
                raise HpcgnnError(f"{file} is damaged: its lists do not have the same length")
        yield name


def _about_checksums(facts: Facts) -> str:
    if not facts["checksums"]:
        return "none in a file of this version; its values were verified, but changed bytes may remain unnoticed"
    if without := facts.get("plans_without_checksums"):
        return f"correct; plan {', '.join(without)} has none, so only its values were verified"
    return "all correct"


_MOST = 16  # rows and numbers of one fact that are printed
_NOT_PRINTED = ("path", "settings", "plans_without_checksums", "node_rows", "digest")


@click.command(
    epilog="\b\nExamples\n  hpcgnn show parts.h5\n  hpcgnn show run/checkpoints/best.pt\n  hpcgnn show run --json"
)
@click.argument("path", metavar="FILE|RUN", type=FILE)
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@AS_JSON
def show(path: Path, quiet: bool, as_json: bool) -> None:
    """Print a summary of graph.h5, parts.h5, a predictions file, a checkpoint, or a run folder.

    For a graph: nodes, edges, degrees, features, labels and splits. For parts: their balance, the edges between them, and the
    number of rows that each stored plan sends. For a checkpoint: its model, weights and best metric. For a run: its state,
    its settings and its best epoch. Epochs are counted from 0, as in metrics.jsonl.

    One process reads the file in slabs, so start it without mpirun. `hpcgnn check` verifies values and checksums instead.
    """
    facts: Facts = {"path": str(path)} | (_run(path) if path.is_dir() else _file(path, quiet=quiet or as_json))
    if as_json:
        print(json.dumps(facts))
        return
    if names := facts.pop("edge_type_names", None):
        facts["edge_types"] = dict(zip(names, facts["edge_types"], strict=True))
    console.table(str(path), _rows_of(facts))


def _file(path: Path, *, quiet: bool) -> Facts:
    facts = _facts_of(path, _checkpoint, lambda reader: reader.num_slabs, contents, title="reading", quiet=quiet)
    return facts | {"file_bytes": path.stat().st_size}


def _checkpoint(path: Path) -> Facts:
    from hpcgnn.train import checkpoint

    content = checkpoint.look_at(path)
    if "model" not in content:
        raise HpcgnnError(
            f"{path} holds the messages that one rank keeps beside a checkpoint, not a checkpoint: give last.pt or best.pt"
        )
    weights = {name: list(values.shape) for name, values in content["model"].items()}
    named = ("version", "next_epoch", "parts_uuid", "data", "task", "metric", "seed", "compute", "best")
    facts = {name: content[name] for name in named if content.get(name) is not None}
    return facts | {
        "kind": "checkpoint",
        "model_config": content["model_config"],
        "policies": (content.get("policies") or {}).get("names", []),
        "has_optimiser": "optimiser" in content,
        "parameters": sum(values.numel() for values in content["model"].values()),
        "weights": weights,
    }


def _run(path: Path) -> Facts:
    from hpcgnn.train import checkpoint
    from hpcgnn.train.run_files import read_run

    run = read_run(path)
    best = run.best()
    figures = ("epoch", "loss", "train_metric", "val_metric", "test_metric")
    return {
        "kind": "run",
        "state": run.state,
        "ranks": run.num_ranks,
        "epochs": len(run.records),
        "metric": run.metric,
        "best": {name: best.get(name) for name in figures} if best else None,
        "last_loss": run.records[-1].get("loss") if run.records else None,
        "seconds_of_an_epoch_median": run.median("seconds"),
        "seconds_of_an_epoch_mean": run.mean("seconds"),
        "bytes_sent_per_epoch": run.mean("bytes_sent"),
        "rows_sent_per_exchange": run.ranks.total("rows_sent") if run.ranks else None,
        "settings": run.settings,
        "settings_changed": {name: value for name, value, default in run.compared_settings() if value != default},
        "checkpoints": {each.name: each.stat().st_size for each in sorted(checkpoint.folder(path).glob("*.pt"))},
        "notes": list(run.notes),
    }


def _rows_of(facts: Facts, before: str = "") -> Rows:
    """The facts that say something, a row each, under the names that ``--json`` prints. The texts of a list and the first facts
    of a nested table have a row each."""
    for key, value in facts.items():
        name = before + key
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = {each["name"]: {word: each[word] for word in each if word != "name"} for each in value}
        if key in _NOT_PRINTED or value in (None, "", [], {}):
            continue
        if isinstance(value, dict):
            yield from _rows_of(dict(islice(value.items(), _MOST)), f"{name}: ")
            if len(value) > _MOST:
                yield f"{name}: others", len(value) - _MOST
        elif isinstance(value, list) and isinstance(value[0], str):
            yield from ((name, each) for each in value)
        elif isinstance(value, list):
            told = ", ".join(f"{each:,}" if isinstance(each, int) else str(each) for each in value[:_MOST])
            yield name, f"{told} and {len(value) - _MOST:,} more" if len(value) > _MOST else told
        elif isinstance(value, bool):
            yield name, "yes" if value else "no"
        elif "bytes" in key:
            yield name, console.size(round(value))
        else:
            yield name, f"{value:.6g}" if isinstance(value, float) else value
