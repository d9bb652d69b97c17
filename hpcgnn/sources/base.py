"""The interface of a source of graphs, the text that names one, and a source over arrays in memory."""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError, printable
from hpcgnn.base.settings import LazyEntry, Registry
from hpcgnn.data.names import Names
from hpcgnn.data.schema import FULL, HALF, LINK_SETS, MASKS, NO_TASK, EdgeType, NodeType
from hpcgnn.sources.edges import MAX_NODES, PLAIN, EdgeChunk, EdgeForm
from hpcgnn.sources.node_values import Rows, feature_array, kind_note, label_array, mask_array
from hpcgnn.sources.slabs import one_line

CHUNK_EDGES = 1 << 20
# Some nodes without edges are usual. If nearly all have none, the ids are probably names, and not numbers from 0 without gaps.
_NODES_PER_EDGE, _ALWAYS_NODES = 8, 1 << 16
_ALWAYS_TYPES = 1 << 10  # a graph may have this many types of edges however few edges there are
_MODULES = {
    "arclist": "text", "binedges": "binary", "bvgraph": "webgraph", "dgl": "dgl", "digits": "generators", "edgelist": "text",
    "graphml": "networkx", "metis": "text", "mtx": "text", "npz": "npz", "ogb": "ogb", "parquet": "binary", "pyg": "pyg",
    "rdf": "rdf", "rmat": "generators", "sbm": "generators",
}  # fmt: skip
# Functions that open a source, ``(spec: Spec, folder: Path) -> Source``, by the kind with which its name begins. A module is
# imported when it is needed, so that converting a text file loads neither torch nor scikit-learn.
SOURCES: Registry[Any] = Registry(
    "source", {kind: LazyEntry(f"hpcgnn.sources.{name}") for kind, name in _MODULES.items()}
)


@dataclass
class Spec:
    """The parsed name of a source. The ``take`` methods return options; :meth:`finish` refuses options that were not taken."""

    text: str
    kind: str
    name: str
    options: dict[str, str]
    known: list[str] = field(default_factory=list)

    def take(self, key: str, default: str | None = None) -> str | None:
        """Option ``key`` as text, or ``default``."""
        self.known.append(key)
        return self.options.pop(key, default)

    def take_int(self, key: str, default: int | None = None, least: int = 0) -> int:
        """Option ``key`` as an integer of at least ``least``; required if there is no default."""
        value = self._number(key, default)
        if value != int(value) or value < least:
            raise HpcgnnError(f"{self.text}: {key}={value:g} should be a whole number of at least {least}")
        return int(value)

    def take_split(self) -> int | None:
        """Option ``split``, the number of one of several splits from 0; None if it is not given."""
        is_given = "split" in self.options
        number = self.take_int("split", 0)
        return number if is_given else None

    def take_float(self, key: str, default: float | None = None, least: float = 0.0, most: float = math.inf) -> float:
        """Option ``key`` as a number in [least, most]; required if there is no default."""
        value = self._number(key, default)
        if not least <= value <= most:
            raise HpcgnnError(f"{self.text}: {key}={value:g} should be a number of {least:g} to {most:g}")
        return value

    def finish(self) -> None:
        """Raise HpcgnnError for options that were not taken, which the source does not know."""
        if self.options:
            allowed = f"it takes {', '.join(sorted(self.known))}" if self.known else "it takes none"
            raise HpcgnnError(f"{self.text}: {self.kind} has no option {min(self.options)!r}; {allowed}")

    def _number(self, key: str, default: float | None) -> float:
        text = self.take(key)
        if text is None:
            if default is None:
                raise HpcgnnError(f"{self.text}: {key} is missing; write {self.kind}:{key}=NUMBER,...")
            return default
        try:
            # int, not float, because seeds above 2**53 must stay exact.
            value = int(text) if text.lstrip("+-").isdecimal() else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise HpcgnnError(f"{self.text}: {key}={text!r} is not a number")
        return value


def parse_spec(text: str) -> Spec:
    """Split ``KIND:NAME?key=value&key=value`` or ``KIND:key=value,key=value``. Raises HpcgnnError for a text of another form."""
    kind, _, rest = text.partition(":")
    if kind in ("rmat", "sbm", "digits"):
        name, query, separator = "", rest, ","
    else:
        name, query = _name_and_query(kind, rest)
        separator = "&"
        if not name:
            suffix = Path(text.partition("?")[0]).suffix.removeprefix(".")
            is_known = suffix in ("npz", "graphml", "parquet", "mtx")
            likely = f"{suffix}:{printable(text)}" if is_known else _EXAMPLES
            raise HpcgnnError(f"{text!r} is not a source: write {likely}")
    options = {}
    for item in filter(None, query.split(separator)):
        key, equals, value = item.partition("=")
        if not equals or key in options:
            raise HpcgnnError(f"{text}: {item!r} should be key=value, each key once")
        options[key] = value
    return Spec(text, kind, name, options)


_EXAMPLES = "KIND:NAME, such as npz:graph.npz, edgelist:edges.txt, pyg:Cora or digits"


def _name_and_query(kind: str, rest: str) -> tuple[str, str]:
    """Split a text at the ``?`` before its options. As names of files may have a ``?``, the longest name of an existing file
    comes first; without such a file, the first ``?`` divides."""
    if kind not in ("pyg", "ogb"):
        marks = [place for place, character in enumerate(rest) if character == "?"]
        for end in [len(rest), *reversed(marks)]:
            if is_file(Path(rest[:end])):
                return rest[:end], rest[end + 1 :]
    name, _, query = rest.partition("?")
    return name, query


def is_file(path: Path) -> bool:
    """Return whether the file exists; False also for a name that is too long, a folder that may not be read, or an unknown
    ``~user``."""
    try:
        return path.expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False


@dataclass(frozen=True)
class SourceInfo:
    """Counts and properties of a source's graph, before options of the conversion are applied.

    num_edges: None if only reading the edges tells their number. form: the values that each edge has. x_nnz: number of nonzeros
    of sparse features, None for dense ones. default_split: the rule of the split if there are no masks and the user gives no
    rule. both_ways: the format requires every edge to have its reverse, of the same weight. fixed_ids: the format says whether
    ids count from 0 or 1. notes: phrases for users about what was read, and how. node_types, edge_types, x_by_type: those of
    :class:`hpcgnn.data.schema.GraphMeta`; with the last, features are read of nodes of one type at a time, (n, F) with the
    columns of the type.
    """

    num_nodes: int
    num_edges: int | None = None
    form: EdgeForm = PLAIN
    num_features: int = 0
    x_nnz: int | None = None
    x_dtype: str = FULL
    num_classes: int = 0
    task: str = NO_TASK
    has_masks: bool = False
    default_split: str | None = None
    seed: int | None = None
    both_ways: bool = False
    fixed_ids: bool = False
    notes: tuple[str, ...] = ()
    node_types: tuple[NodeType, ...] = ()
    edge_types: tuple[EdgeType, ...] = ()
    x_by_type: bool = False


class Source(ABC):
    """A graph that is read in pieces; here, one that has only edges. Every method may be called more than once."""

    info: SourceInfo
    names: Names = MappingProxyType({})  # of nodes, types of edges and classes, if the source has any
    # Held-out links that come with candidates, one table after another: the arrays of hpcgnn.data.schema.LINK_VALUES.
    asked: Sequence[Mapping[str, np.ndarray]] = ()

    @abstractmethod
    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """All edges once, about ``chunk_edges`` at a time, with the values of ``info.form``; the caller checks ids and values."""

    def features(self, first: int, last: int) -> Rows | None:
        """(n, F) of ``info.x_dtype``, dense or CSR, of nodes ``[first, last)``; None if there are none."""
        return None

    def labels(self, first: int, last: int) -> np.ndarray | None:
        """Labels of nodes ``[first, last)``: (n,) int64 with -1 for no label, (n, C) uint8, or (n,) or (n, K) float32 targets of
        regression with NaN for none; None if there are none."""
        return None

    def masks(self, first: int, last: int) -> dict[str, np.ndarray] | None:
        """(n,) bool each of ``train_mask``, ``val_mask``, ``test_mask`` of nodes ``[first, last)``; None if there are none."""
        return None


class ArraySource(Source):
    """A graph in memory, whose shapes, dtypes and values are checked at construction (HpcgnnError)."""

    def __init__(
        self,
        where: str,
        num_nodes: int,
        edge_index: Any,
        *,
        weight: Any = None,
        edge_type: Any = None,
        edge_attr: Any = None,
        edge_split: Any = None,
        x: Any = None,
        y: Any = None,
        masks: Mapping[str, Any] | None = None,
        default_split: str | None = None,
        seed: int | None = None,
        notes: Sequence[str] = (),
        node_types: tuple[NodeType, ...] = (),
        edge_types: tuple[EdgeType, ...] = (),
        asked: Sequence[Mapping[str, np.ndarray]] = (),
    ) -> None:
        """``where``: the source's name in errors. ``edge_index``: (2, E) integers; ``weight``: (E,); ``edge_type``: (E,) integers
        from 0; ``edge_attr``: (E, D) or (E,); ``edge_split``: (E,) integers, see :data:`hpcgnn.data.schema.LINK_SETS`; ``x``:
        (N, F) dense or CSR; ``y``: (N,), (N, C) or (N, K); ``masks``: (N,) by name;
        ``notes``: phrases about what was read, without the source's name; ``asked``: see :class:`Source`."""
        self.asked = asked
        self._edge_index = np.asarray(edge_index)
        check_edge_index(self._edge_index, f"{where}: edge_index")
        num_edges = self._edge_index.shape[1]
        self._weight = None if weight is None else edge_weights(weight, num_edges, where)
        self._type = None if edge_type is None else _edge_types(np.asarray(edge_type), num_edges, where)
        self._attr = None if edge_attr is None else edge_features(edge_attr, num_edges, where)
        self._split = None if edge_split is None else edge_sets(edge_split, num_edges, where)
        self._x = None if x is None else feature_array(x, num_nodes, where)
        self._where, self._given = where, y
        self.refused: HpcgnnError | None = None  # the reason why y cannot be classes, until --labels says what it is
        try:
            self._y, task, classes, self._unknown = label_array(y, num_nodes, where)
        except HpcgnnError as error:
            self.refused, (self._y, task, classes, self._unknown) = error, label_array(None, num_nodes, where)
        self._masks = {name: mask_array(masks.get(name), name, num_nodes, where) for name in MASKS} if masks else None
        self.info = SourceInfo(
            num_nodes=num_nodes,
            num_edges=num_edges,
            form=self._form(len(edge_types)),
            num_features=0 if self._x is None else self._x.shape[1],
            x_nnz=None if self._x is None or isinstance(self._x, np.ndarray) else self._x.nnz,
            x_dtype=HALF if self._x is not None and self._x.dtype == np.float16 else FULL,
            num_classes=classes,
            task=task,
            has_masks=self._masks is not None,
            default_split=default_split,
            seed=seed,
            notes=tuple(f"{where}: {note}" for note in (*notes, *kind_note(self._y))),
            node_types=node_types,
            edge_types=edge_types,
        )

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        for first in range(0, self._edge_index.shape[1], chunk_edges):
            part = slice(first, first + chunk_edges)
            src, dst = self._edge_index[:, part].astype(np.int64)
            values = (self._weight, self._type, self._attr, self._split)
            yield EdgeChunk(src, dst, *(None if each is None else each[part] for each in values))

    def _form(self, types: int) -> EdgeForm:
        types = types or (0 if self._type is None else int(self._type.max(initial=0)) + 1)
        columns = 0 if self._attr is None else self._attr.shape[1]
        is_half = self._attr is not None and self._attr.dtype == np.float16
        return EdgeForm(self._weight is not None, types, columns, HALF if is_half else FULL, self._split is not None)

    def features(self, first: int, last: int) -> Rows | None:
        return None if self._x is None else self._x[first:last]

    def labels(self, first: int, last: int) -> np.ndarray | None:
        return None if self._y is None else self._y[first:last]

    def masks(self, first: int, last: int) -> dict[str, np.ndarray] | None:
        if self._masks is None:
            return None
        found = {name: mask[first:last] for name, mask in self._masks.items()}
        for name, mask in found.items():
            if self._unknown is not None and (mask & self._unknown[first:last]).any():
                node = first + int(np.argmax(mask & self._unknown[first:last]))
                raise HpcgnnError(f"{self._where}: node {node} is in {name} but has no label: its row of y is NaN")
        return found

    def without_labels(self) -> ArraySource:
        """This source for labels from elsewhere: nodes whose own label is unknown may be in its masks."""
        other = copy.copy(self)
        other._y = other._unknown = None
        other.info = replace(self.info, task=NO_TASK, num_classes=0)
        return other

    def with_real_labels(self) -> ArraySource:
        """This source with its labels as targets of regression, also where all are whole numbers. HpcgnnError without labels."""
        other = copy.copy(self)
        other._y, task, targets, other._unknown = label_array(
            self._given, self.info.num_nodes, self._where, are_real=True
        )
        if other._y is None:
            raise HpcgnnError(f"{self._where} has no labels, so --labels real has nothing to take as real numbers")
        other.info = replace(self.info, task=task, num_classes=targets)
        return other


def _edge_types(types: np.ndarray, num_edges: int, where: str) -> np.ndarray:
    """(E,) types, which are checked: a model has weights for each type, so their number must fit the edges."""
    if types.shape != (num_edges,) or types.dtype.kind not in "iu":
        raise HpcgnnError(
            f"{where}: edge_type is {types.dtype} of shape {types.shape}, but it should be whole numbers of shape ({num_edges},)"
        )
    edge = int(types.argmax()) if types.size else 0
    check_types(f"{where}: edge {edge:,}", int(types[edge]) if types.size else -1, num_edges)
    return types


def edge_sets(split: Any, num_edges: int, where: str) -> np.ndarray:
    """(E,) uint8, the set of links of each edge, which is checked."""
    split = np.asarray(split)
    if (
        split.shape != (num_edges,)
        or split.dtype.kind not in "iu"
        or (split.size and not 0 <= split.min() <= split.max() < len(LINK_SETS))
    ):
        told = ", ".join(f"{number} ({name})" for number, name in enumerate(LINK_SETS))
        raise HpcgnnError(f"{where}: edge_split should be a number for each of the {num_edges} edges: {told}")
    return split.astype(np.uint8)


def check_types(edge: str, largest: int, num_edges: int) -> None:
    """Raise HpcgnnError if types of edges go up to a number that is no count of types: a model has weights for each type. edge:
    the edge of the largest one, in words."""
    if largest >= max(num_edges, _ALWAYS_TYPES):
        raise HpcgnnError(f"{edge} has type {largest}, but there are only {num_edges:,} edges: number the types from 0")


def edge_weights(weight: Any, num_edges: int, where: str) -> np.ndarray:
    """(E,) weights, which are checked."""
    weight = np.asarray(weight).reshape(-1)
    if weight.size != num_edges or weight.dtype.kind not in "iuf":
        raise HpcgnnError(f"{where}: edge_weight should hold one number for each of the {num_edges} edges")
    return weight


def edge_features(attr: Any, num_edges: int, where: str) -> np.ndarray:
    """(E, D) features of float16, or of a type that becomes float32."""
    attr = np.asarray(attr)
    attr = attr[:, np.newaxis] if attr.ndim == 1 else attr
    if attr.ndim != 2 or attr.shape[0] != num_edges or not attr.shape[1] or attr.dtype.kind not in "biuf":
        raise HpcgnnError(
            f"{where}: edge_attr is {attr.dtype} of shape {attr.shape}, but it should be numbers of shape ({num_edges}, D), "
            "a row for each edge"
        )
    return attr


def check_edge_index(array: Any, where: str) -> None:
    """Raise HpcgnnError unless the array, or one that is read in slabs, is (2, E) whole numbers."""
    if len(array.shape) != 2 or array.shape[0] != 2 or array.dtype.kind not in "iu":
        raise HpcgnnError(
            f"{where} is {array.dtype} of shape {array.shape}, but it should be whole numbers of shape (2, E)"
        )


def existing_file(name: str, kind: str) -> Path:
    """``name`` as a path, with ``~`` expanded. Raises HpcgnnError unless it is a file. kind: the source's, for the sentence."""
    path = Path(name)
    if not is_file(path):
        raise HpcgnnError(f"{kind}: {path} does not exist or is not a file")
    return path.expanduser()


def agreed_nodes(where: str, announced: int, num_edges: int | None, asked: int) -> int:
    """The number of nodes of a file that announces ``announced``. asked: the user's ``?nodes=N``, 0 without one. As each node
    takes memory and disk space, the file's number is accepted only if each node has a line or a row in the file (``num_edges``
    None), if there are not many more nodes than edges, or if the user gives the same number. Raises HpcgnnError otherwise."""
    if asked and asked != announced:
        raise HpcgnnError(f"{where}: nodes={asked} was given, but there are {announced:,}")
    # A number above MAX_NODES is refused later, before memory is allocated for nodes, with a sentence of its own.
    is_told = num_edges is None or asked or announced > MAX_NODES
    if is_told or announced <= max(_ALWAYS_NODES, _NODES_PER_EDGE * (num_edges or 0)):
        return announced
    raise HpcgnnError(
        f"{where} has {num_edges:,} edge{'s' * (num_edges != 1)}, but its node ids go up to {announced - 1:,}: number the "
        f"nodes from 0 without gaps, or say ?nodes={announced} if most of them are to have no edges"
    )


@contextlib.contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turn errors that a library raises for a damaged file into one sentence. expected: the format's name."""
    try:
        yield
    except HpcgnnError:
        raise
    except _errors_of_damage() as error:
        raise HpcgnnError(f"{path} cannot be read as {expected}: {one_line(error)}") from error


def _errors_of_damage() -> tuple[type[Exception], ...]:
    lzma = sys.modules.get("lzma")  # not imported here, because a Python may be built without it
    known = (OSError, EOFError, ValueError, KeyError, OverflowError, zlib.error)
    return (*known, lzma.LZMAError) if lzma else known
