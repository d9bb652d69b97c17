"""Rows of nodes and of edges in the tensors of a model's call, and functions of torch that combine them.

The arguments of a distributed model are a part of the graph's, so a mean over rows, or their number, is not what it would be on
one machine. A tensor's *role* says what its rows are; it is decided by the functions that made the tensor, never by its values
or by the number of its rows, so all ranks decide alike.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import torch_geometric

from hpcgnn.base.errors import HpcgnnError

NODES, EDGES, ENDS, SOURCES, DESTINATIONS = "nodes", "edges", "ends", "sources", "destinations"
IDS = (ENDS, SOURCES, DESTINATIONS)  # tensors of node ids
_TORCH, _PYG = (str(Path(package.__path__[0])) + "/" for package in (torch, torch_geometric))
_OURS = str(Path(__file__).parents[1]) + "/"
_STANDARD = Path(sysconfig.get_paths()["stdlib"])
_HERE = tuple(str(Path(__file__).with_name(name)) for name in ("rows.py", "row_mode.py", "rehearsal.py"))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Attributes that say nothing of rows.
PASSIVE = _words(
    "dtype device layout requires_grad is_cpu is_cuda is_leaf grad_fn dim ndim is_floating_point data_ptr version"
)
# Functions that combine values along a dimension: the place of the dimension among the arguments, and its default. None
# stands for all dimensions.
ALONG: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(
        _words(
            "sum mean std var amax amin max min aminmax median nanmedian mode prod all any logsumexp nansum nanmean argmax "
            "argmin count_nonzero softmax log_softmax softmin cumsum cumprod cummax cummin logcumsumexp std_mean var_mean flip"
        ),
        (1, None),
    ),
    **dict.fromkeys(
        _words(
            "unique unique_consecutive histc bincount trace item tolist numpy array cov corrcoef dist tensordot linalg_qr "
            "linalg_svd linalg_svdvals"
        ),
        (9, None),
    ),
    **dict.fromkeys(_words("norm linalg_norm linalg_vector_norm quantile nanquantile roll"), (2, None)),
    **dict.fromkeys(_words("narrow select"), (1, 0)),
    **dict.fromkeys(_words("chunk split tensor_split"), (2, 0)),
    **dict.fromkeys(_words("cosine_similarity trapezoid"), (2, -1)),
    **dict.fromkeys(_words("sort argsort"), (1, -1)),
    **dict.fromkeys(_words("topk kthvalue diff renorm"), (2, -1)),
    **dict.fromkeys(_words("batch_norm msort"), (99, 0)),
    "normalize": (2, 1),
    "gumbel_softmax": (4, -1),
}
HARMLESS_TO_EDGES = _words("sort argsort msort unique unique_consecutive")  # only their order changes
PRODUCTS = _words("matmul rmatmul mm bmm mv dot inner outer cdist linear baddbmm addmm")
ARITHMETIC = _words(
    "add sub mul div rsub rdiv radd rmul rpow truediv rtruediv floordiv rfloordiv true_divide divide floor_divide multiply "
    "subtract pow remainder fmod mod eq ne lt le gt ge less greater clamp tensor as_tensor scalar_tensor full"
)
LOSSES = _words(
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy "
    "binary_cross_entropy_with_logits multilabel_soft_margin_loss"
)
RANDOM = _words(
    "rand randn randint randperm normal bernoulli multinomial poisson rand_like randn_like randint_like uniform exponential "
    "random cauchy log_normal geometric dropout alpha_dropout feature_alpha_dropout dropout1d rrelu gumbel_softmax"
)
FACTORIES = _words("zeros ones empty full rand randn new_zeros new_ones new_empty new_full")
SPATIAL = _words(  # they combine values along the last dimensions
    "conv1d conv2d avg_pool1d max_pool1d adaptive_avg_pool1d adaptive_max_pool1d group_norm instance_norm interpolate"
)
SPARSE = (
    torch.sparse_coo_tensor,
    torch.sparse_csr_tensor,
    torch.sparse_csc_tensor,
    torch.sparse_bsr_tensor,
    torch.sparse_bsc_tensor,
    torch.sparse_compressed_tensor,
)
DROPOUTS = (
    torch.nn.functional.dropout,
    torch.nn.functional.dropout1d,
    torch.nn.functional.alpha_dropout,
    torch.nn.functional.feature_alpha_dropout,
)


@dataclass(frozen=True)
class Role:
    """The rows of a tensor along its dimension ``axis``: a row for each node or edge, or the ids of edges' ends.

    of_graph: whether these are the ends of all edges of the graph. types: the number of the type of the nodes, or those of the
    types of the edges' sources and destinations; empty for nodes and edges of all types.
    """

    kind: str
    axis: int = 0
    of_graph: bool = False
    types: tuple[int, ...] = ()


class Count(int):
    """The number of nodes or edges of this rank, which may be the size of a tensor, but no value to compute with."""

    kind: str
    types: tuple[int, ...]

    def __new__(cls, value: int, kind: str, types: tuple[int, ...] = ()) -> Count:
        """Make a number of rows of this kind, and of these types as in :class:`Role`."""
        made = super().__new__(cls, value)
        made.kind, made.types = kind, types
        return made


def _refusing(name: str) -> Any:
    plain = getattr(int, name)

    def method(self: Count, *others: Any) -> Any:
        alike = bool(others) and isinstance(others[0], Count) and others[0].kind == self.kind
        if name in ("__eq__", "__ne__") and others and not isinstance(others[0], int):
            alike = True  # compared with an object of another type, as in a search
        if not alike and called_by() == "user":
            refuse_count(self)
        if not alike and is_called_in("edge_index_to_vector"):  # of PyG's negative sampling, which draws by numpy
            raise Refused(f"negative_sampling {place()} draws from all nodes, of which a rank has its own only")
        return plain(self, *others)

    return method


for _name in _words(
    "eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg float bool"
):
    setattr(Count, f"__{_name}__", _refusing(f"__{_name}__"))
Count.__hash__ = int.__hash__  # type: ignore[method-assign]


def refuse_count(count: Count) -> NoReturn:
    """Raise Refused, because a program computes with a rank's number of nodes or edges."""
    raise Refused(
        f"a computation {place()} with the number of {count.kind}, of which a rank has some only, gives other values: use "
        f"graph.meta.num_{count.kind} for the number in the whole graph, and -1 in a shape"
    )


class Refused(Exception):
    """The reason why a model cannot be distributed: it needs more than a node's own row and the rows of its in-neighbours."""


class Reversed(Refused):
    """The reason that a model needs the reversed edges of a graph that may be directed."""


class DirectedError(HpcgnnError):
    """A model cannot be distributed for a directed graph."""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of torch's own class with the values of one of a subclass."""
    return tensor.as_tensor() if hasattr(tensor, "as_tensor") else tensor.as_subclass(torch.Tensor)


@functools.lru_cache(4096)
def name_of(function: Any) -> str:
    """The name of a torch function, of an operator or of a tensor's attribute, without underscores around it."""
    name = getattr(function, "__name__", str(function))
    return (function.__self__.__name__ if name == "__get__" else name).strip("_")


def _caller(*skipped: str) -> FrameType:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back
    return frame


def called_by() -> str:
    """``ours``, ``pyg`` or ``user``: whose code called the torch function that is being handled."""
    place = _caller(_TORCH, *_HERE).f_code.co_filename
    return "pyg" if place.startswith(_PYG) else "ours" if place.startswith(_OURS) else "user"


def is_called_in(function: str) -> bool:
    """Return whether a function with this name called the torch function that is being handled."""
    return _caller(_TORCH, *_HERE).f_code.co_name == function


def line_of_user() -> str:
    """The innermost line of code that belongs neither to torch nor to PyG nor to this package: ``file, line number``.

    Empty if there is none, as for a model of PyG that is rehearsed.
    """
    frame = _caller(_TORCH, _PYG, _OURS)
    file = Path(frame.f_code.co_filename)
    is_standard = _STANDARD in file.parents and "site-packages" not in file.parts
    return "" if is_standard else f"{file.name}, line {frame.f_lineno}"


def place() -> str:
    """:func:`line_of_user` in brackets, after the class of PyG's layer whose code is running, if there is one."""
    line = line_of_user()
    in_brackets = f"({line})" if line else ""
    frame: FrameType | None = _caller(_TORCH, *_HERE)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _PYG, _OURS)):
        layer = frame.f_locals.get("self")
        if frame.f_code.co_filename.startswith(_PYG) and isinstance(layer, torch.nn.Module):
            return f"in {type(layer).__name__} {in_brackets}".strip()
        frame = frame.f_back
    return in_brackets


def is_checkpointed() -> bool:
    """Return whether torch.utils.checkpoint is among the callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None


def has_count(values: Any) -> bool:
    """Return whether a size among arguments is a rank's number of nodes or edges."""
    if isinstance(values, (tuple, list)):
        return any(has_count(value) for value in values)
    return isinstance(values, Count) or (isinstance(values, dict) and has_count(list(values.values())))


def is_all(at: slice, kind: str) -> bool:
    """Return whether a slice of rows of this kind is ``[:]``, or ``[:n]`` with their number n."""
    of_stop = getattr(at.stop, "kind", None)  # of a Count
    is_whole = at.stop is None or of_stop == (NODES if kind == NODES else EDGES)
    return is_whole and at.start in (None, 0) and at.step in (None, 1)


def of_edges(kind: str) -> str:
    """The kind of rows that are picked from a table by ids or rows of this kind."""
    return EDGES if kind in IDS else kind


def split_key(keys: tuple[Any, ...], axis: int, dim: int) -> tuple[Any, Any, int]:
    """Of the keys of an index: the key at the dimension before ``axis``, the one at ``axis``, and the result's axis."""
    if Ellipsis in [key for key in keys if not isinstance(key, torch.Tensor)]:
        gap = next(number for number, key in enumerate(keys) if key is Ellipsis)
        used = sum(key is not None for key in keys) - 1
        keys = (*keys[:gap], *[slice(None)] * (dim - used), *keys[gap + 1 :])
    at, moved, before = 0, 0, None
    for key in keys:
        if key is None:
            moved += 1
        elif at == axis:
            return before, key, moved
        else:
            at, before = at + 1, key
            moved += not isinstance(key, int)
    return before, slice(None), moved + axis - at
