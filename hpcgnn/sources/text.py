"""Edges in text files: edge lists, MatrixMarket and METIS. Lines are read in blocks of bounded size, also from compressed files.

``edgelist:FILE``: an edge on each line, ``src dst [weight]``, separated by blanks or commas; ids count from 0. A first line
without any number names the columns, and so does a comment above the data with as many words, if it names both the source and the
target. ``?source=COLUMN``, ``?target=COLUMN``, ``?weight=COLUMN``, ``?type=COLUMN`` and ``?attr=COLUMN,COLUMN`` (features of
edges) choose columns by their names, or, in a file without names, by their places from 1. Columns whose names begin with ``attr``
or ``feat`` are features, in the order of the file. The number of nodes follows from the largest id, or is ``?nodes=N``, which is
required where most ids have no edges.

If neither end of the first edge is a number, or with ``?names=yes``, ends are names (:mod:`hpcgnn.sources.triples`), separated by
tabs, commas or blanks. Without names of columns, three columns of names are a head, a relation and a tail. Types that are not
whole numbers are names, too. ``?inverse=yes`` adds the reverse of each edge, of a type of its own.

``edgelist:FOLDER``: the files ``train.*``, ``valid.*`` and ``test.*`` (txt, tsv or csv, compressed or not) of a folder, as
FB15k-237 and WN18RR are published. All have the columns of the first, and the links keep their sets.

``mtx:FILE[?nodes=N]``: a square MatrixMarket matrix in coordinates; entry (i, j) is the edge i -> j, its value the weight. An
entry of a symmetric matrix gives edges in both directions. SciPy's parser is not used, because it allocates memory for as many
entries as the header announces, cannot open names that are not UTF-8, and ends the process where it gets a stream.

``metis:FILE``: a METIS ``.graph``, an undirected graph that lists every edge at both of its ends; ids count from 1. The first
line is ``nodes edges [fmt [ncon]]``; each node has one of the next lines. The digits of ``fmt`` tell whether there are node
sizes, node weights (``ncon`` of them), which are skipped, and edge weights.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.data.h5 import BZIP2, GZIP, OTHER_COMPRESSED, UTF8_MARK, UTF16_MARKS, XZ, begins_with
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, Source, SourceInfo, Spec, agreed_nodes, existing_file, reading
from hpcgnn.sources.edges import EdgeChunk, EdgeForm
from hpcgnn.sources.triples import NameTable, SpooledEdges, take_yes

LONGEST_LINE = 1 << 16  # characters of a line in a file with one edge on each line
_FIRST_CHARACTERS, _BLOCK_CHARACTERS = 1 << 20, 1 << 24
_MODULES = {GZIP: "gzip", BZIP2: "bz2", XZ: "lzma"}  # imported on use: a Python may be built without the last two


def open_unpacked(path: Path) -> Any:
    """Open ``path`` for reading its bytes, plain or compressed by gzip, bzip2 or xz. Raises HpcgnnError for files that another
    program has compressed."""
    for signature, (name, command) in OTHER_COMPRESSED.items():
        if begins_with(path, signature):
            raise HpcgnnError(
                f"{path} is compressed by {name}: unpack it first (`{command} FILE`), or compress it by gzip"
            )
    module = next((name for signature, name in _MODULES.items() if begins_with(path, signature)), "io")
    return import_module(module).open(path, "rb")


def open_text(path: Path) -> TextIO:
    """Open ``path`` as text in UTF-8, with or without a byte order mark, compressed or not. Raises HpcgnnError as
    :func:`open_unpacked`, and for UTF-16."""
    stream = open_unpacked(path)
    try:
        first = stream.peek(len(UTF8_MARK))
        if first.startswith(UTF16_MARKS):
            raise HpcgnnError(f"{path} is text in UTF-16: make it UTF-8 with `iconv -f UTF-16 -t UTF-8 FILE`")
        if first.startswith(UTF8_MARK):
            stream.read(len(UTF8_MARK))
    except BaseException:
        stream.close()
        raise
    return io.TextIOWrapper(stream, encoding="utf-8")


def blocks(file: TextIO, longest: int, size: int = _BLOCK_CHARACTERS) -> Iterator[list[str]]:
    """The lines of ``file``, without their ends, in blocks of at most about ``size`` characters. Raises ``ValueError`` for a line
    of more than about ``longest`` characters. As a small compressed file may have a line of any length, the first blocks are
    smaller."""
    rest, most, size = "", size, min(size, _FIRST_CHARACTERS)
    while text := file.read(size):
        *lines, rest = (rest + text).split("\n")
        if len(rest) > max(longest, size):
            raise ValueError(f"a line has more than {longest:,} characters")
        if lines:
            yield lines
        size = min(2 * size, most)
    if rest:
        yield [rest]


# -- columns of an edge list -------------------------------------------------------------------------------------------

SOURCE, TARGET, WEIGHT, TYPE, ATTR, LEFT_OUT = "source", "target", "weight", "type", "attr", ""
PLAIN_ROLES = (SOURCE, TARGET, WEIGHT)
ROLES = (*PLAIN_ROLES, TYPE)  # each is of one column; features, ATTR, are of several
# Names in lower case, of letters and digits only.
USUAL_NAMES = {
    SOURCE: (
        "source",
        "src",
        "from",
        "u",
        "sourceid",
        "srcid",
        "fromid",
        "fromnodeid",
        "sourcenode",
        "head",
        "subject",
        "h",
    ),
    TARGET: (
        "target",
        "dst",
        "to",
        "v",
        "targetid",
        "dstid",
        "toid",
        "tonodeid",
        "targetnode",
        "dest",
        "destination",
        "tail",
        "object",
        "t",
    ),
    WEIGHT: ("weight", "w", "edgeweight", "weights"),
    TYPE: ("type", "edgetype", "etype", "relation", "rel", "relationtype", "reltype", "predicate", "r"),
}
_WORDS = {SOURCE: "the source", TARGET: "the target", WEIGHT: "the weight", TYPE: "the type", ATTR: "a feature"}
_FEATURE = re.compile(r"(edge_?)?(attr|feat)", re.IGNORECASE)
_GEPHI = ("directed", "undirected")  # in a column that Gephi names Type
_UNNAMED = ("", "unnamed0")  # of an index that pandas, or R, has written as the first column
_KINDS: dict[str, Any] = {SOURCE: np.int64, TARGET: np.int64, WEIGHT: np.float64, TYPE: np.int64, ATTR: np.float64}


@dataclass(frozen=True)
class EdgeColumns:
    """The role of each column, LEFT_OUT for those that are not read. names: of the columns, empty for a file without names.
    delimiter: None for blanks. has_header: whether the names are the first line of the data. named: the roles whose values are
    names, and not numbers."""

    roles: tuple[str, ...]
    delimiter: str | None
    names: tuple[str, ...] = ()
    has_header: bool = False
    named: tuple[str, ...] = ()

    @property
    def weighted(self) -> bool:
        """Return whether a column holds weights."""
        return WEIGHT in self.roles

    def note(self) -> str:
        """A phrase for users that says what each column was taken for."""
        columns = [
            f"column {quoted(name)}" if name else f"column {place}" + (" (no name)" if self.names else "")
            for place, name in enumerate(self.names or [""] * len(self.roles), 1)
        ]
        taken = [f"{name} is {_WORDS[role]}" for name, role in zip(columns, self.roles, strict=True) if role]
        left = [name for name, role in zip(columns, self.roles, strict=True) if not role]
        return ", ".join(taken) + (f"; not read: {', '.join(left)}" if left else "")


def _fields(line: str, delimiter: str | None) -> list[str]:
    """The fields of a line, without blanks and quotes around them."""
    fields = next(csv.reader([line.strip("\r\n")])) if delimiter == "," else line.split(delimiter)
    return [each.strip().strip("\"'") for each in fields]


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _find_columns(
    lines: Sequence[str], comment: str, asked: Mapping[str, str | None], path: Path, *, all_names: bool
) -> EdgeColumns:
    """The columns of a file from the first two lines of its data, or one, and the comment before it, or "". asked: the user's
    names or places by role. all_names: ids and types are names, also if they look like numbers."""
    line, delimiter = lines[0], _delimiter(lines[0])
    _check_quotes(lines, delimiter, path)
    fields, after = _fields(line, delimiter), _fields(lines[1], delimiter) if len(lines) > 1 else []
    has_header = not any(map(_is_number, fields))
    if has_header and after and not any(map(_is_number, after)):  # words, which may be names of nodes
        has_header = {SOURCE, TARGET} <= columns_by_name(fields, asked, path).keys()
    names = fields if has_header else _fields(comment.lstrip("#%"), delimiter)
    if not has_header and (
        len(names) != len(fields) or not {SOURCE, TARGET} <= columns_by_name(names, asked, path).keys()
    ):
        names = []
    first = (after or [""] * len(fields)) if has_header else fields
    roles = _roles(names, asked, path) if names else _roles_by_place(first, asked, path, line)
    at = {role: first[place] for place, role in enumerate(roles) if role and place < len(first)}
    if names and at.get(TYPE, "").lower() in _GEPHI and asked.get(TYPE) is None:
        roles = tuple(LEFT_OUT if role == TYPE else role for role in roles)
    named: tuple[str, ...] = ()
    words = [at[role] for role in (SOURCE, TARGET) if not _is_number(at[role])]
    if all_names or (len(words) == 2 and not (has_header and not after)):
        named = (SOURCE, TARGET)
    elif len(words) == 1 and (after or not has_header):
        raise HpcgnnError(
            f"{path}: node id {words[0]!r} is not a whole number, but the other end of its edge is: if ids are names, add "
            "?names=yes"
        )
    if TYPE in roles and (all_names or not _is_id(at[TYPE])):
        named += (TYPE,)
    return EdgeColumns(roles, delimiter, tuple(names), has_header, named)


def _delimiter(line: str) -> str | None:
    """Tabs come first, because names may have commas and blanks; but numbers may have blanks beside tabs."""
    if "\t" in line.strip() and not all(map(_is_number, line.strip().split("\t"))):
        return "\t"
    return "," if "," in line else None


def _roles_by_place(fields: Sequence[str], asked: Mapping[str, str | None], path: Path, line: str) -> tuple[str, ...]:
    """The roles of columns without names, by the places that the user gives, and else by their order."""
    count, found = len(fields), {}
    for role, text in _asked_places(asked):
        if not text.isdecimal():
            raise HpcgnnError(
                f"{path} has no line that names its columns, so leave {role}= out, or give a place from 1"
            )
        if not 1 <= int(text) <= count:
            raise HpcgnnError(f"{path}: {role}={text} was given, but {quoted(line.strip()[:60])} has {count} columns")
        if int(text) - 1 in found:
            raise HpcgnnError(f"{path}: column {text} cannot be two of {_ALL_ROLES}")
        found[int(text) - 1] = role
    if not found and count not in (2, 3):
        raise HpcgnnError(
            f"{path}: {quoted(line.strip()[:60])} has {count} columns, but an edge list has 2 or 3, src dst [weight], "
            "or a first line that names its columns, or is told their places with ?source=1&target=2"
        )
    usual = [SOURCE, TARGET] if found else list(PLAIN_ROLES)
    if not found and count == 3 and [*map(_is_number, fields)] in ([False] * 3, [True, False, True]):
        usual = [SOURCE, TYPE, TARGET]
    missing = [role for role in usual if role not in found.values()]
    free = (place for place in range(count) if place not in found)
    found |= dict(zip(free, missing, strict=False))
    if not {SOURCE, TARGET} <= set(found.values()):
        raise HpcgnnError(f"{path}: {quoted(line.strip()[:60])} has no columns left for both ends of an edge")
    return tuple(found.get(place, LEFT_OUT) for place in range(count))


_ALL_ROLES = "source, target, weight, type and attr"


def _asked_places(asked: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """The role and the name, or the place, of each column that the user asks for."""
    for role, text in asked.items():
        if text is not None:
            yield from ((role, each) for each in (text.split(",") if role == ATTR else [text]))


def columns_by_name(names: Sequence[str], asked: Mapping[str, str | None], path: Path) -> dict[str, int]:
    """The place of each role whose column has the name that the user asks for, or one of the usual names: written as it is, or
    else with other letters. Raises HpcgnnError where a column would have two roles."""
    exact, plain = list(names), list(map(_letters, names))
    found: dict[str, int] = {}
    for role in ROLES:
        own = asked.get(role)
        usual = ((name, among) for name in USUAL_NAMES[role] for among in (exact, plain))
        tried = usual if own is None else ((own, exact),)
        place = next((among.index(name) for name, among in tried if name in among), None)
        if place is not None:
            found[role] = place
    for role in (WEIGHT, TYPE):
        others = {place for other, place in found.items() if other != role}
        if asked.get(role) is None and found.get(role) in others:
            del found[role]  # the user names a column w, or type, as another one
    if len(set(found.values())) < len(found):
        raise HpcgnnError(f"{path}: one column cannot be two of source, target, weight and type")
    return found


def feature_columns(names: Sequence[str], asked: str | None, taken: Container[int], path: Path) -> list[int]:
    """The places of the columns of edge features: those that the user asks for, or all with a name that begins with ``attr`` or
    ``feat``. taken: the places of other roles."""
    if asked is None:
        return [place for place, name in enumerate(names) if _FEATURE.match(name) and place not in taken]
    places = [names.index(name) if name in names else -1 for name in asked.split(",")]
    if -1 in places:
        told = ", ".join(name or "(no name)" for name in names)
        raise HpcgnnError(f"{path} has no column {quoted(asked.split(',')[places.index(-1)])}; it has {told}")
    if len(set(places)) < len(places) or any(place in taken for place in places):
        raise HpcgnnError(f"{path}: one column cannot be two of {_ALL_ROLES}")
    return places


def _roles(names: list[str], asked: Mapping[str, str | None], path: Path) -> tuple[str, ...]:
    found = columns_by_name(names, asked, path)
    told = ", ".join(name or "(no name)" for name in names)
    for role, name in asked.items():
        if role != ATTR and name is not None and role not in found:
            raise HpcgnnError(f"{path} has no column {quoted(name)}; it has {told}")
    features = feature_columns(names, asked.get(ATTR), found.values(), path)
    others = [at for at in range(len(names)) if at not in found.values() and at not in features]
    if others and others[0] == 0 and _letters(names[0]) in _UNNAMED:
        others = others[1:]
    if SOURCE not in found and TARGET not in found and len(others) == 2:
        found[SOURCE], found[TARGET] = others
    if missing := [role for role in (SOURCE, TARGET) if role not in found]:
        raise HpcgnnError(
            f"{path} has the columns {told}, and none of them is known to be the {missing[0]} of edges: name it with "
            f"?{missing[0]}=COLUMN"
        )
    return roles_in_order(found, features, len(names))


def roles_in_order(places: Mapping[str, int], features: Sequence[int], count: int) -> tuple[str, ...]:
    """The role of each of ``count`` columns, from the place of each role and the places of features."""
    roles = {place: role for role, place in places.items()} | dict.fromkeys(features, ATTR)
    return tuple(roles.get(at, LEFT_OUT) for at in range(count))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_id(text: str) -> bool:
    return text.lstrip("+-").isdecimal() and -(2**63) <= int(text) < 2**63


def _check_quotes(data: Sequence[str], delimiter: str | None, path: Path) -> None:
    """Raise HpcgnnError for a line of a table with commas that ends inside of quotes: numpy would leave the line break out."""
    cut = next((line for line in data if line.count('"') % 2), None) if delimiter == "," else None
    if cut is not None:
        raise HpcgnnError(
            f"{path}: the line {quoted(cut.strip()[:60])} ends inside of quotes, and a name has no line breaks"
        )


def _parse(data: Sequence[str], columns: EdgeColumns, lines: Sequence[str], line_number: int, path: Path) -> np.ndarray:
    """The n lines ``data`` as a structured array (n,), with a field for each role, and fields ``attr K`` for features: numbers,
    or str for names. ``data`` are those of ``lines``, from ``line_number`` of the file on, that are neither comments nor names of
    columns. Raises HpcgnnError for the first line that cannot be read."""
    kinds = [
        (f"{role or 'left out'} {at}" if role in (ATTR, LEFT_OUT) else role, object if role in columns.named else kind)
        for at, role in enumerate(columns.roles)
        for kind in [_KINDS.get(role, "U1")]
    ]
    _check_quotes(data, columns.delimiter, path)
    quote = '"' if columns.delimiter == "," else None
    try:
        return np.loadtxt(data, dtype=kinds, comments=None, delimiter=columns.delimiter, quotechar=quote, ndmin=1)
    except ValueError as error:
        raise HpcgnnError(_complaint(columns, data[0], lines, line_number, path) or f"{path}: {error}") from error


def _complaint(columns: EdgeColumns, begin: str, lines: Sequence[str], line_number: int, path: Path) -> str | None:
    """A sentence about the line that numpy could not read, or None if none of ours fits. begin: the first line of the data."""
    for number, line in enumerate(lines[lines.index(begin) :], line_number + lines.index(begin)):
        if not line.strip() or line.startswith(("#", "%")):
            continue
        fields, where = _fields(line, columns.delimiter), f"{path}, line {number}: {line.strip()[:60]!r}"
        if len(fields) != len(columns.roles):
            return f"{where} has {len(fields)} columns, but the lines before have {len(columns.roles)}"
        for role, field in zip(columns.roles, fields, strict=True):
            if role in columns.named and not field:
                return f"{where}: the name of {_WORDS[role]} is empty"
            if role in columns.named or role == LEFT_OUT:
                continue
            if role in (SOURCE, TARGET) and not _is_id(field):
                return f"{where}: node id {field!r} is not a whole number of at most 64 bits"
            if role == TYPE and not _is_id(field):
                return f"{where}: type {field!r} is not a whole number, as it is before; if types are names, add ?names=yes"
            if not _is_number(field):
                return f"{where}: {_WORDS[role].split()[1]} {field!r} is not a number"
    return None


@SOURCES.register("edgelist")
@SOURCES.register("arclist")
class _EdgeList(SpooledEdges):
    """Edges of a text file, which is parsed once, because its number of nodes is known only at its end."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        asked = {role: spec.take(role) for role in (*ROLES, ATTR)}
        files, all_names = _files(spec), take_yes(spec, "names")
        num_nodes = spec.take_int("nodes", 0)
        super().__init__(folder, inverse=take_yes(spec, "inverse"))
        self._set: int | None = None  # of the links of the file that is read
        self._cut = ""  # the first name with blanks around it
        columns, sizes = None, []
        for number, path in enumerate(files):
            before, self._set = self.num_read, number if len(files) > 1 else None
            columns = self._read(path, asked, columns, all_names=all_names)
            sizes.append(f"{self.num_read - before:,} links of {path.name}")
        notes = [] if columns is None else [f"{files[0]}: {columns.note()}"]
        notes += [f"{spec.name}: names are read without blanks around them, as {quoted(self._cut)}"] * bool(self._cut)
        notes += (
            [f"{spec.name}: {sizes[0]} are for training, {sizes[1]} for validation, {sizes[2]} for testing"]
            if sizes[1:]
            else []
        )
        self.finish(spec.name if sizes[1:] else str(files[0]), num_nodes, notes)

    def _read(
        self, path: Path, asked: Mapping[str, str | None], known: EdgeColumns | None, *, all_names: bool
    ) -> EdgeColumns | None:
        """Parse the file; None if it has comments only. known: the columns of the file before this one."""
        columns, comment, line_number = None, "", 1
        with reading(path, "an edge list"), open_text(path) as file:
            for lines in _with_two_of_data(blocks(file, LONGEST_LINE)):
                data = _of_data(lines)
                if columns is None:
                    before = lines[: lines.index(data[0])] if data else lines
                    comment = next((line for line in reversed(before) if line.strip()), comment)
                    if data and known:
                        is_header = known.has_header and tuple(_fields(data[0], known.delimiter)) == known.names
                        columns = replace(known, has_header=is_header)
                    elif data:
                        columns = _find_columns(data[:2], comment, asked, path, all_names=all_names)
                    data = data[columns is not None and columns.has_header :]
                if data and columns:
                    self.append(self._chunk_of(_parse(data, columns, lines, line_number, path), columns))
                    if "" in (self.nodes or ()) or "" in (self.types or ()):
                        raise HpcgnnError(
                            _complaint(columns, data[0], lines, line_number, path) or f"{path}: empty name"
                        )
                line_number += len(lines)
        return columns or known

    def _chunk_of(self, table: np.ndarray, columns: EdgeColumns) -> EdgeChunk:
        if SOURCE in columns.named and self.nodes is None:
            self.nodes = NameTable()
        if TYPE in columns.named and self.types is None:
            self.types = NameTable()
        src, dst = (self._numbered(table[role], self.nodes) for role in (SOURCE, TARGET))
        types = self._numbered(table[TYPE], self.types) if TYPE in columns.roles else None
        features = [table[name] for name in table.dtype.names or () if name.startswith(f"{ATTR} ")]
        attr = np.stack(features, axis=1) if features else None
        split = None if self._set is None else np.full(src.size, self._set, np.uint8)
        return EdgeChunk(src, dst, table[WEIGHT] if columns.weighted else None, types, attr, split)

    def _numbered(self, column: np.ndarray, table: NameTable | None) -> np.ndarray:
        if table is None:
            return column
        names = [name.strip() for name in column.tolist()]
        if not self._cut and names != column.tolist():
            self._cut = next(given for given, name in zip(column, names, strict=True) if given != name)
        return table.numbers(names)


_SETS = ("train", "valid", "test")  # in the order of hpcgnn.data.schema.LINK_SETS
_ENDINGS = re.compile(r"\.(txt|tsv|csv)(\.(gz|bz2|xz))?")


def _files(spec: Spec) -> list[Path]:
    """The file, or the three files of a folder."""
    folder = Path(os.path.expanduser(spec.name))
    if not os.path.isdir(folder):
        return [existing_file(spec.name, spec.kind)]
    inside = sorted(os.listdir(folder))
    found = [
        [name for name in inside if name.startswith(each) and _ENDINGS.fullmatch(name[len(each) :])] for each in _SETS
    ]
    for each, names in zip(_SETS, found, strict=True):
        if len(names) != 1:
            told = f"it has {' and '.join(names)}" if names else "it has none"
            raise HpcgnnError(
                f"{spec.text}: a folder of links should have one file {each}.txt, .tsv or .csv, but {told}"
            )
    return [folder / names[0] for names in found]


def _of_data(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.strip() and not line.startswith(("#", "%"))]


def _with_two_of_data(pieces: Iterator[list[str]]) -> Iterator[list[str]]:
    """The blocks of lines; the first one has at least two lines of data, if there are so many, which tell the columns."""
    first: list[str] = []
    for lines in pieces:
        first += lines
        if len(_of_data(first)) > 1:
            break
    if first:
        yield first
    yield from pieces


# -- MatrixMarket ------------------------------------------------------------------------------------------------------

_CHARACTERS_PER_ENTRY = 8
_DIGITS = 19  # the number of digits of the largest int64
_FIELDS = ("pattern", "real", "double", "integer", "unsigned-integer")
_MIRRORED = {"general": 0, "symmetric": 1, "hermitian": 1, "skew-symmetric": -1}  # factor of the reverse edge's weight


@SOURCES.register("mtx")
class _MatrixMarket(Source):
    """Edges of a MatrixMarket file, which is read again by each call of :meth:`edges`."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self._path = path = existing_file(spec.name, "mtx")
        nodes = spec.take_int("nodes", 0)
        with reading(path, "MatrixMarket"), open_text(path) as file:
            field, symmetry = _banner(file.readline(LONGEST_LINE), path)
            line = _after_comments(file)[0]
            words = line.split()
            if len(words) != 3 or not all(word.isdecimal() and len(word) <= _DIGITS for word in words):
                raise ValueError(f"the line of sizes should be 'rows columns entries', but it is {line[:60].strip()!r}")
        rows, columns, self._entries = map(int, words)
        if rows != columns:
            raise HpcgnnError(f"{path} has {rows} rows and {columns} columns: a graph needs a square matrix")
        self._mirrored, self._is_whole = _MIRRORED[symmetry], "integer" in field
        self.info = SourceInfo(
            num_nodes=agreed_nodes(str(path), rows, self._entries, nodes),
            num_edges=None if self._mirrored else self._entries,
            form=EdgeForm(field != "pattern"),
            fixed_ids=True,
        )

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        found, columns = 0, EdgeColumns(PLAIN_ROLES if self.info.form.weighted else PLAIN_ROLES[:2], None)
        with reading(self._path, "MatrixMarket"), open_text(self._path) as file:
            file.readline(LONGEST_LINE)
            line_number = 2 + _after_comments(file)[1]
            for lines in blocks(file, LONGEST_LINE, chunk_edges * _CHARACTERS_PER_ENTRY):
                data = [line for line in lines if line.strip() and not line.startswith("%")]
                if data:
                    table = _parse(data, columns, lines, line_number, self._path)
                    weight = table[WEIGHT] if columns.weighted else None
                    if weight is not None and self._is_whole:
                        self._check_whole(weight)
                    yield self._mirror(table[SOURCE] - 1, table[TARGET] - 1, weight)
                found, line_number = found + len(data), line_number + len(lines)
        if found != self._entries:
            raise HpcgnnError(f"{self._path} has {found:,} entries, but its second line announces {self._entries:,}")

    def _check_whole(self, weight: np.ndarray) -> None:
        wrong = ~(np.abs(weight.astype(np.float64)) < 2.0**63) | (weight != np.floor(weight))
        if wrong.any():
            raise HpcgnnError(
                f"{self._path} is a matrix of integers of at most 64 bits, but has {weight[wrong.argmax()]:g}"
            )

    def _mirror(self, src: np.ndarray, dst: np.ndarray, weight: np.ndarray | None) -> EdgeChunk:
        """All edges of some entries. Ids are checked here, because in the file they count from 1."""
        outside = (src < 0) | (dst < 0) | (src >= self.info.num_nodes) | (dst >= self.info.num_nodes)
        if outside.any():
            bad = int(outside.argmax())
            raise HpcgnnError(
                f"{self._path} has an entry in row {src[bad] + 1}, column {dst[bad] + 1}: these run from 1 "
                f"to {self.info.num_nodes}"
            )
        if not self._mirrored:
            return EdgeChunk(src, dst, weight)
        aside = src != dst
        both = np.concatenate([src, dst[aside]]), np.concatenate([dst, src[aside]])
        weights = None if weight is None else np.concatenate([weight, self._mirrored * weight[aside]])
        return EdgeChunk(*both, weights)


def _banner(line: str, path: Path) -> tuple[str, str]:
    """The field and the symmetry from the first line. Raises ValueError or HpcgnnError for other lines."""
    words = line.lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[4] not in _MIRRORED:
        raise ValueError(
            f"the first line should be '%%MatrixMarket matrix coordinate real general', but it is {line[:60].strip()!r}"
        )
    _, _, layout, field, symmetry = words
    if layout != "coordinate" or field not in _FIELDS:
        raise HpcgnnError(f"{path} is a {field} {layout} matrix: edges need a coordinate one of real numbers")
    return field, symmetry


def _after_comments(file: TextIO) -> tuple[str, int]:
    """The first line that is neither a comment nor empty, and the number of lines up to it."""
    count = 0
    while line := file.readline(LONGEST_LINE):
        count += 1
        if line.strip() and not line.startswith("%"):
            return line, count
    return "", count


# -- METIS -------------------------------------------------------------------------------------------------------------

_CHARACTERS_PER_EDGE = 8
_METIS_DIGITS = 18
_LONGEST_METIS_HEADER, _LONGEST_NODE = 1 << 10, 1 << 30


@SOURCES.register("metis")
class MetisSource(Source):
    """Edges of a METIS file, which is read again by each call of :meth:`edges`."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self._path = path = existing_file(spec.name, "metis")
        with reading(path, "METIS"), open_text(path) as file:
            header = _metis_header(file)
        if not 2 <= len(header) <= 4 or not all(word.isdecimal() and len(word) < _METIS_DIGITS for word in header):
            raise HpcgnnError(
                f"{path}: the first line should be 'nodes edges [fmt [ncon]]', but it is {' '.join(header)[:60]!r}"
            )
        digits = (header[2] if len(header) > 2 else "0").zfill(3)
        if len(digits) != 3 or set(digits) - {"0", "1"}:
            raise HpcgnnError(f"{path}: fmt {header[2]!r} in the first line should be up to three digits 0 or 1")
        constraints = int(header[3]) if len(header) > 3 else 1
        self._skip = int(digits[0]) + constraints * int(digits[1])
        # Each node has a line in the file, even if it is empty, and each neighbour a number, so the announced counts are compared
        # with the file before memory is allocated for them.
        self.info = SourceInfo(
            int(header[0]), 2 * int(header[1]), EdgeForm(digits[2] == "1"), both_ways=True, fixed_ids=True
        )

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        node, found = 0, 0
        with reading(self._path, "METIS"), open_text(self._path) as file:
            _metis_header(file)
            for lines in blocks(file, _LONGEST_NODE, chunk_edges * _CHARACTERS_PER_EDGE):
                rows = [line.split() for line in lines if not line.lstrip().startswith("%")]
                while rows and node + len(rows) > self.info.num_nodes and not rows[-1]:
                    rows.pop()
                chunk = self._parse(rows, node)
                node, found = node + len(rows), found + chunk.src.size
                yield chunk
        if node != self.info.num_nodes or found != self.info.num_edges:
            raise HpcgnnError(
                f"{self._path} has {node:,} node lines with {found:,} neighbours, but its first line announces "
                f"{self.info.num_nodes:,} nodes and {self.info.num_edges:,} neighbours (each edge at both ends)"
            )

    def _parse(self, rows: list[list[str]], first: int) -> EdgeChunk:
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        stride = 2 if self.info.form.weighted else 1
        short = (counts < self._skip) | ((counts - self._skip) % stride != 0)
        if short.any():
            raise HpcgnnError(
                f"{self._path}: the line of node {first + int(short.argmax()) + 1} does not fit fmt and ncon"
            )
        try:
            numbers = np.array(list(chain.from_iterable(rows)), dtype=np.int64)
        except (ValueError, OverflowError) as error:
            node, word = next(
                (node, word) for node, row in enumerate(rows, first + 1) for word in row if not _is_id(word)
            )
            raise HpcgnnError(f"{self._path}: node {node} has {word!r}, but METIS has whole numbers only") from error
        place = np.arange(numbers.size) - np.repeat(np.cumsum(counts) - counts, counts) - self._skip
        is_neighbour = (place >= 0) & (place % stride == 0)
        src = np.repeat(np.arange(first, first + len(rows)), (counts - self._skip) // stride)
        weight = numbers[(place >= 0) & (place % stride == 1)] if stride == 2 else None
        dst = numbers[is_neighbour] - 1
        outside = (dst < 0) | (dst >= self.info.num_nodes)
        if outside.any():
            bad = int(outside.argmax())
            raise HpcgnnError(
                f"{self._path}: node {src[bad] + 1} has neighbour {dst[bad] + 1}, but ids run from 1 to {self.info.num_nodes}"
            )
        return EdgeChunk(src, dst, weight)


def _metis_header(file: TextIO) -> list[str]:
    while line := file.readline(_LONGEST_METIS_HEADER):
        if not line.lstrip().startswith("%"):
            return line.split()
        while line and not line.endswith("\n"):  # a long comment
            line = file.readline(_LONGEST_METIS_HEADER)
    return []
