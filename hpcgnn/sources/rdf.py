"""``rdf:FILE[?inverse=yes&train=FILE&val=FILE&test=FILE&label=COLUMN]``: triples of RDF in N-Triples, plain or compressed.

Every triple is an edge from its subject to its object, whose type is its predicate. IRIs and blank nodes are nodes, and so is
each literal, with its language or type, as in the data sets of R-GCN (Schlichtkrull et al., 2018); equal literals are one node.
Nodes are numbered in the order in which they are first seen, types in the order of their IRIs. ``inverse=yes`` adds the reverse
of each edge with a type of its own, as R-GCN needs. RDF has no repeated triples; if a file repeats some, ``--drop-duplicates``
merges them.

``train``, ``val`` and ``test`` are tables, separated by tabs, as those of R-GCN's data sets: a line of names of columns, of which
one that begins with ``label`` is the class, and a column of IRIs of the graph's nodes. Classes are numbered in the order of their
names. The file is read once; memory is bounded but for the table of names (:mod:`hpcgnn.sources.triples`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.data.names import CLASSES
from hpcgnn.data.schema import MASKS, SINGLE_LABEL
from hpcgnn.sources.base import SOURCES, Spec, existing_file, reading
from hpcgnn.sources.edges import EdgeChunk
from hpcgnn.sources.text import blocks, open_text
from hpcgnn.sources.triples import NameTable, SpooledEdges, take_yes

_LONGEST_TRIPLE = 1 << 22  # characters; literals may be long texts
# The grammar of https://www.w3.org/TR/n-triples, with absolute IRIs, as it demands.
_HEX, _NO_SURROGATE = "[0-9A-Fa-f]", "(?![Dd][89A-Fa-f])"  # half of a pair of UTF-16 is no character
_UCHAR = rf"\\u{_NO_SURROGATE}{_HEX}{{4}}|\\U0000{_NO_SURROGATE}{_HEX}{{4}}|\\U00(?:0[1-9A-Fa-f]|10){_HEX}{{4}}"
_IRI = rf"<[A-Za-z][A-Za-z0-9+.\-]*:(?:[^\x00-\x20<>\"{{}}|^`\\]|{_UCHAR})*>"
_BLANK = r"_:[\w:](?:[\w:.\-\u00b7]*[\w:\-\u00b7])?"
_STRING = rf'"(?:[^"\\\r\n]|\\[tbnrf"\'\\]|{_UCHAR})*"'
_LITERAL = rf"{_STRING}(?:\^\^{_IRI}|@[A-Za-z]+(?:-[A-Za-z0-9]+)*)?"
_TRIPLE = re.compile(
    rf"[ \t]*({_IRI}|{_BLANK})[ \t]*({_IRI})[ \t]*({_IRI}|{_BLANK}|{_LITERAL})[ \t]*\.[ \t]*(?:#.*)?", re.DOTALL
)
_ESCAPE = re.compile(rf"{_UCHAR}|\\.")
_ESCAPED = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f"}


def _unescaped(match: re.Match[str]) -> str:
    code = match[0][1:]
    return chr(int(code[1:], 16)) if code[0] in "uU" else _ESCAPED.get(code, code)


def _name(term: str) -> str:
    """The name of a term, the same for all ways to write it: an IRI without its brackets, others as they are."""
    if term[0] == '"':
        text, mark, rest = term.rpartition('"')
        term = text + mark + (rest.lower() if rest.startswith("@") else rest)
    elif term[0] == "<":
        term = term[1:-1]
    return _ESCAPE.sub(_unescaped, term) if "\\" in term else term


@SOURCES.register("rdf")
class _Triples(SpooledEdges):
    """Triples of a file, with labels from other files."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        path = existing_file(spec.name, "rdf")
        tables = {mask: spec.take(mask.removesuffix("_mask")) for mask in MASKS}
        label = spec.take("label")
        super().__init__(folder, inverse=take_yes(spec, "inverse"))
        self.nodes, self.types, self._y = NameTable(), NameTable(), np.empty(0, np.int64)
        with reading(path, "N-Triples"), open_text(path) as file:
            line_number = 1
            for lines in blocks(file, _LONGEST_TRIPLE):
                self._add(lines, line_number, path, self.nodes, self.types)
                line_number += len(lines)
        literals = sum(name.startswith('"') for name in self.nodes)
        self.finish(str(path), 0, (f"{path}: {literals:,} nodes are literals",))
        if given := {mask: existing_file(name, "rdf") for mask, name in tables.items() if name is not None}:
            self._label({mask: list(_labels(table, label, self.nodes)) for mask, table in given.items()})
        elif label is not None:
            raise HpcgnnError(
                f"{spec.text}: label={label} is a column of the tables train, val and test, which are missing"
            )

    def _add(self, lines: list[str], line_number: int, path: Path, nodes: NameTable, types: NameTable) -> None:
        found: list[tuple[str, ...]] = []
        for number, line in enumerate(lines, line_number):
            triple = _TRIPLE.fullmatch(line)
            if triple:
                found.append(triple.groups())
            elif line.strip(" \t\r") and not line.lstrip(" \t").startswith("#"):
                raise HpcgnnError(
                    f"{path}, line {number}: {quoted(line.strip()[:80])} is not a triple of N-Triples, <subject> <predicate> "
                    "<object> . with absolute IRIs: other forms of RDF can be written so by `riot --output=nt FILE`, or by rdflib"
                )
        if found:
            ends = nodes.numbers([_name(term) for subject, _, other in found for term in (subject, other)]).reshape(
                -1, 2
            )
            kinds = types.numbers([_name(predicate) for _, predicate, _ in found])
            self.append(EdgeChunk(ends[:, 0], ends[:, 1], None, kinds))

    def _label(self, tables: dict[str, list[tuple[int, str, str]]]) -> None:
        """Keep the labels and masks of some nodes. tables: by mask, ``(node, label, place in the file)``."""
        names = sorted({label for rows in tables.values() for _, label, _ in rows})
        classes = {name: number for number, name in enumerate(names)}
        self._y = np.full(self.info.num_nodes, -1)
        self._masks = {mask: np.zeros(self.info.num_nodes, bool) for mask in MASKS}
        for mask, rows in tables.items():
            for node, label, place in rows:
                if self._y[node] not in (-1, classes[label]):
                    raise HpcgnnError(f"{place}: its node has the label {quoted(names[self._y[node]])} in another line")
                self._y[node], self._masks[mask][node] = classes[label], True
        self.names = {**self.names, CLASSES: names}
        self.info = replace(self.info, num_classes=len(names), task=SINGLE_LABEL, has_masks=True)

    def labels(self, first: int, last: int) -> np.ndarray | None:
        return self._y[first:last] if self._y.size else None

    def masks(self, first: int, last: int) -> dict[str, np.ndarray] | None:
        return {name: mask[first:last] for name, mask in self._masks.items()} if self._y.size else None


def _labels(path: Path, column: str | None, nodes: NameTable) -> Iterator[tuple[int, str, str]]:
    """``(node, label, place in the file)`` of each line of a table. column: the name of the column of labels, None for the one
    whose name begins with ``label``."""
    with reading(path, "a table of labels"), open_text(path) as file:
        rows = csv.reader(file, delimiter="\t")
        names = [name.strip() for name in next(rows, [])]
        fitting = [
            at for at, name in enumerate(names) if (name.startswith("label") if column is None else name == column)
        ]
        if len(fitting) != 1:
            wanted = "whose name begins with label" if column is None else f"named {quoted(column)}"
            raise HpcgnnError(
                f"{path} has {len(fitting)} columns {wanted}; it has {', '.join(map(quoted, names)) or 'none'}: choose one by "
                "label=COLUMN"
            )
        node_column = None
        for row in rows:
            place = f"{path}, line {rows.line_num}"
            if not row:
                continue
            if len(row) != len(names):
                raise HpcgnnError(f"{place} has {len(row)} columns, but its first line has {len(names)}")
            if node_column is None:
                node_column = next((at for at, text in enumerate(row) if at != fitting[0] and text in nodes), None)
            if node_column is None or row[node_column] not in nodes:
                told = row if node_column is None else [row[node_column]]
                raise HpcgnnError(f"{place}: no node of the graph has the name {' or '.join(map(quoted, told))}")
            yield nodes[row[node_column]], row[fitting[0]], place
