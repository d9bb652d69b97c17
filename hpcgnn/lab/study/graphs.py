"""The graphs of a study: sources of ``hpcgnn convert``, perhaps with options, or graph files that exist already."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study.axes import CombinationError
from hpcgnn.lab.study.formulas import filled, names_in
from hpcgnn.lab.study.records import short_hash

_TEXTS, _FLAGS = (
    ("source", "split", "features", "labels"),
    ("undirected", "self_loops", "row_normalise", "drop_duplicates"),
)
DATA = "$DATA"  # stands in a source for the folder of `--data`, so that no result depends on the place of the files
_SOURCE = re.compile(r"[a-z]+:.+|digits")


@dataclass(frozen=True)
class GraphSource:
    """The source of a graph. name: name of its files. options: flags of ``convert``. file: a graph.h5 that is used as it is.
    formulas: names in its formulas, which tell whether the graph grows."""

    name: str
    source: str
    options: tuple[str, ...] = ()
    file: Path | None = None
    formulas: str = ""


def check_options(name: str, options: Any) -> None:
    """Raise CombinationError unless ``options`` is a valid table ``[graphs.NAME]``."""
    if not isinstance(options, dict):
        raise CombinationError(f"graphs.{name} must be a table with the key source")
    for key, value in options.items():
        if key not in (*_TEXTS, *_FLAGS):
            raise CombinationError(
                f"graphs have no option {key}: their options are {', '.join((*_TEXTS, *_FLAGS))}", key
            )
        if not isinstance(value, bool if key in _FLAGS else str):
            raise CombinationError(
                f"{key} must be {'true or false' if key in _FLAGS else 'a text'}, not {value!r}", key
            )
    if "source" not in options:
        raise CombinationError(f"graphs.{name} has no source")


def graph_source(graph: str | None, named: Mapping[str, dict[str, Any]], numbers: Mapping[str, int]) -> GraphSource:
    """The graph of a run.

    Args:
        graph: the specification's value: a source, a file, or one of ``named``.
        named: tables of options by name.
        numbers: the names that formulas may use, and their values.

    Raises:
        CombinationError: if it is none of these.
    """
    if not graph:
        raise CombinationError("graph is missing: name a source of `hpcgnn convert`, or a graph.h5", "graph")
    options = named.get(graph, {"source": graph})
    text = " ".join(str(options[key]) for key in _TEXTS if key in options)
    try:
        full = {key: filled(value, numbers) if key in _TEXTS else value for key, value in options.items()}
    except HpcgnnError as error:
        raise CombinationError(f"graph {graph!r}: {error}", "graph") from error
    source = full["source"]
    formulas = " ".join(sorted(names_in(text)))
    if source.endswith(".h5"):
        return _file(graph, source, full, formulas)
    if not _SOURCE.fullmatch(source):
        said = (
            f"graph {graph!r} is no source of `hpcgnn convert` (such as digits, npz:FILE, rmat:...), no graph.h5 and not in "
            "[graphs]"
        )
        raise CombinationError(said, "graph")
    flags = [word for key in _TEXTS[1:] if key in full for word in (f"--{key}", full[key])]
    flags += [f"--{key.replace('_', '-')}" for key in _FLAGS if full.get(key)]
    label = graph if graph in named else source
    return GraphSource(_file_name(label, [source, flags, _state(source)]), source, tuple(flags), formulas=formulas)


def _file(graph: str, source: str, options: Mapping[str, Any], formulas: str) -> GraphSource:
    if len(options) > 1:
        raise CombinationError(
            f"graph {graph!r} is a file that was converted already, so options have no effect: remove them", "graph"
        )
    path = Path(source)
    if not path.is_file():
        raise CombinationError(f"graph {graph!r}: there is no file {path}", "graph")
    return GraphSource(
        _file_name(path.stem, [str(path.resolve()), _state(source)]), source, file=path, formulas=formulas
    )


def _file_name(label: str, made_of: list[Any]) -> str:
    text = re.sub(r"[^\w.-]+", "_", label.rpartition("/")[2])[:60]
    return f"{text}-{short_hash(made_of)}"


def _state(source: str) -> list[int]:
    """The size and time of the file that a source names, if it names one: a file that was written again is another graph."""
    if DATA in source:
        return []
    path = Path(source.partition(":")[2].partition("?")[0] if ":" in source else source)
    if not path.is_file():
        return []
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]
