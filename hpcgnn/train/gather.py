"""Values of all nodes in one place, for programs that look at them all: plots, metrics of one's own, comparisons."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hpcgnn.base.arguments import check_tensors, check_type
from hpcgnn.base.errors import HpcgnnError, WrongTypeError, WrongValueError
from hpcgnn.base.host import index_array
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.world import World, raise_on_all_ranks

_WINDOW_BYTES = 64 << 20


def gather(scores: torch.Tensor | np.ndarray, graph: LocalGraph) -> torch.Tensor | None:
    """Bring the values of all nodes to rank 0, in the order of original ids. Collective.

    The values are moved bit for bit, for any number of ranks. Gradients do not flow through it. Rank 0 needs memory for the
    result and 128 MiB; rows travel in windows of at most 64 MiB. If N rows do not fit into one process, use
    ``hpcgnn predict`` or ``hpcgnn.train.predict.write_predictions``, which write them to a file.

    Args:
        scores: (n,) or (n, width) tensor on any device, or array, with one row for each node that this rank owns, in the
            order of ``graph.x``. n may be 0. Types and widths are the same on all ranks.
        graph: this rank's part, as ``hpcgnn.load`` returns it, or a reordered one.

    Returns:
        On rank 0, an (N,) or (N, width) tensor of the same type on the host; row k belongs to the node that had number k when
        the graph was converted. None on the other ranks.

    Raises:
        HpcgnnError: on every rank and before anything is sent, if some rank has another number of rows, another type or
            another width, or if rank 0 lacks the memory.
    """
    check_type("graph", graph, LocalGraph)
    world, nodes, result = graph.world, graph.meta.num_nodes, None
    with raise_on_all_ranks(world, "gather scores"):
        mine = _on_host(scores, graph)
    width = f"of width {mine.shape[1]}" if mine.ndim > 1 else "without a width"
    kind = f"{str(mine.dtype).removeprefix('torch.')} {width}"
    theirs = world.broadcast(kind, 0, "the type of scores")
    with raise_on_all_ranks(world, "gather scores"):
        if kind != theirs:
            raise HpcgnnError(
                f"scores of rank {world.rank} are {kind}, those of rank 0 {theirs}: give scores of the same type and width on "
                "all ranks, also on those that own no node"
            )
        if world.rank == 0:
            result = _empty(nodes, mine)
    if mine.shape[1:].numel():
        to_first(world, graph.original_ids, _as_bytes(mine), None if result is None else _as_bytes(result), nodes)
    return result


def to_first(
    world: World,
    ids: torch.Tensor,
    rows: torch.Tensor,
    result: torch.Tensor | None,
    num_rows: int,
    window_bytes: int = _WINDOW_BYTES,
) -> None:
    """Copy ``rows`` (n, bytes) uint8 of all ranks to the places ``ids`` of ``result``, (num_rows, bytes), on rank 0, in windows
    of ids. Collective."""
    order = torch.argsort(ids)
    window = max(1, window_bytes // (rows.shape[1] + ids.element_size()))
    bounds = torch.arange(0, num_rows + window, window).clamp_(max=num_rows)
    places = index_array(torch.searchsorted(ids[order], bounds))
    counts = np.zeros(world.size, np.int64)
    for first, last in pairwise(places):
        chosen = order[first:last]
        counts[0] = last - first
        there, _ = world.alltoallv(ids[chosen], counts)
        received, _ = world.alltoallv(rows[chosen], counts)
        if result is not None:
            result[there] = received


def _on_host(scores: Any, graph: LocalGraph) -> torch.Tensor:
    """This rank's rows, contiguous on the host, if they are what :func:`gather` takes."""
    if isinstance(scores, np.ndarray):
        native = np.ascontiguousarray(scores, scores.dtype.newbyteorder("="))
        try:
            scores = torch.from_numpy(native if native.flags.writeable else native.copy())
        except TypeError as error:
            raise WrongTypeError(f"scores must hold numbers, not {scores.dtype}") from error
    elif not isinstance(scores, torch.Tensor):
        raise WrongTypeError(f"scores must be a torch.Tensor or a numpy array, not {type(scores).__name__}")
    check_tensors(scores=scores)
    if scores.device.type == "meta":
        raise WrongValueError("scores must be a tensor with values, not one on the device meta")
    if scores.ndim not in (1, 2) or scores.shape[0] != graph.num_nodes:
        raise WrongValueError(
            f"scores of rank {graph.world.rank} must have a row for each of its {graph.num_nodes} nodes, (n,) or (n, width), "
            f"not shape {tuple(scores.shape)}"
        )
    if not scores.numel():  # an array without values may have strides that no view of bytes takes
        return torch.empty(scores.shape, dtype=scores.dtype)
    return scores.detach().cpu().contiguous()


def _empty(num_rows: int, like: torch.Tensor) -> torch.Tensor:
    try:
        return torch.empty((num_rows, *like.shape[1:]), dtype=like.dtype)
    except RuntimeError as error:  # torch's word for memory that there is not
        raise HpcgnnError(
            f"rank 0 has no memory for {num_rows:,} rows of {like.element_size() * like.shape[1:].numel():,} bytes: write them "
            "with hpcgnn.train.predict.write_predictions"
        ) from error


def _as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """(n, bytes of a row) uint8, of the same memory: MPI moves any type so."""
    return rows.reshape(len(rows), rows.shape[1:].numel()).view(torch.uint8)


def id_bounds(world: World, total: int) -> np.ndarray:
    """(P + 1,) int64 bounds of a range of ids for each rank, of about equal lengths."""
    return np.arange(world.size + 1) * total // world.size


def dealt(world: World, ids: np.ndarray, total: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the (n, F) rows of (n,) int64 ids, which are 0 to ``total - 1`` on all ranks together, to ranges of ids.

    Returns (P + 1,) bounds of the ranges, and the rows of this rank's range, ascending by id. Collective.
    """
    bounds = id_bounds(world, total)
    order = np.argsort(ids, kind="stable")
    counts = np.diff(np.searchsorted(ids[order], bounds))
    there, _ = world.alltoallv(ids[order], counts)
    received, _ = world.alltoallv(rows[order], counts)
    slab = np.empty_like(received)
    slab[there - bounds[world.rank]] = received
    return bounds, slab
