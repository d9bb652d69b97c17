"""Functions of torch that combine rows, and are refused where a rank has some of these rows only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hpcgnn.pyg import rows
from hpcgnn.pyg.rows import NODES, Refused, Role

_SPARSE = {function.__name__ for function in rows.SPARSE}

Found = list[tuple[torch.Tensor, Role]]


def check(name: str, args: Any, kwargs: Any, found: Found, role_of: Callable[[Any], Role | None]) -> None:
    """Raise Refused if a function of torch combines rows of which a rank has some only. found: arguments with a role."""
    tensor, role = found[0]
    if name in rows.ALONG and tensor is (args[0] if args else kwargs.get("input")):
        _check_along(name, args, kwargs, tensor, role)
    elif name in rows.SPATIAL and role.axis:
        raise Refused(f"{where(name)} combines the rows of all nodes, of which a rank has its own only")
    elif name in rows.PRODUCTS:
        _check_product(name, args, kwargs, role_of)
    elif name == "einsum":
        _check_einsum(args, role_of)
    elif name in rows.LOSSES and kwargs.get("reduction") != "none" and rows.called_by() == "user":
        raise Refused(
            f"{where(name)} averages over the rows of all nodes, of which a rank has its own only: compute the loss of "
            'the model\'s result, outside of it, or give reduction="none"'
        )
    elif name in ("scaled_dot_product_attention", "multi_head_attention_forward"):
        if role.axis == (tensor.dim() - 2 if name.startswith("scaled") else 0):
            raise Refused(f"{where(name)} combines each node with all others, but a rank has its own only")
    elif name in _SPARSE:
        raise Refused(f"{where(name)} makes a sparse matrix of edges, but a rank has the edges of its nodes only")


def where(name: str) -> str:
    """A function's name and the place that called it."""
    return f"{name} {rows.place()}"


def _check_along(name: str, args: Any, kwargs: Any, tensor: torch.Tensor, role: Role) -> None:
    place, default = rows.ALONG[name]
    dim = kwargs.get("dim", kwargs.get("dims", kwargs.get("axis", args[place] if len(args) > place else default)))
    if name in ("max", "min") and isinstance(dim, torch.Tensor):
        return  # of two tensors, element by element
    if dim is None and name in ("softmax", "log_softmax", "softmin"):
        dim = 0 if tensor.dim() in (0, 1, 3) else 1
    dims = range(tensor.dim()) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    along = {one % tensor.dim() for one in dims} if tensor.dim() else set()
    if role.axis not in along:
        return
    if not tensor.is_floating_point() and rows.called_by() == "pyg":
        return  # PyG sorts nodes by type; that its layers are right then, the rehearsal shows
    if role.kind == NODES:
        helper = name.removeprefix("a") if name in ("mean", "sum", "max", "min", "amax", "amin") else None
        advice = f": use hpcgnn.{helper}(x, graph)" if helper else ""
        raise Refused(f"{where(name)} combines the rows of all nodes, of which a rank has its own only{advice}")
    if name not in rows.HARMLESS_TO_EDGES and rows.called_by() == "user":
        raise Refused(f"{where(name)} combines all edges, of which a rank has those that end at its nodes only")


def _check_product(name: str, args: Any, kwargs: Any, role_of: Callable[[Any], Role | None]) -> None:
    left, right = (args[1], args[2]) if name in ("addmm", "baddbmm") else (*args, *kwargs.values())[:2]
    if name == "rmatmul":
        left, right = right, left
    first, second = role_of(left), role_of(right)
    contracted = first is not None and name not in ("outer", "cdist") and first.axis == left.dim() - 1
    if second is not None and not contracted and name != "linear":
        contracted = second.axis == max(right.dim() - 2, 0)
        pairs = first is not None and second.axis == right.dim() - 1 and right.dim() > 1
        if pairs or name in ("outer", "cdist"):
            raise Refused(f"{where(name)} combines each node with all others, but a rank has its own only")
    if contracted and not (name == "bmm" and first is not None and first.axis == 0):
        raise Refused(f"{where(name)} sums over the rows of all nodes, of which a rank has its own only")


def _check_einsum(args: Any, role_of: Callable[[Any], Role | None]) -> None:
    if "." in args[0] or "->" not in args[0]:
        return  # the rehearsal decides
    given, _, result = args[0].replace(" ", "").partition("->")
    operands = args[1:] if not isinstance(args[1], (tuple, list)) else args[1]
    labels = set()
    for term, operand in zip(given.split(","), operands, strict=False):
        role = role_of(operand)
        if role is not None:
            labels.add(term[role.axis])
    if len(labels) != 1 or not labels <= set(result):
        raise Refused(f"{where('einsum')} combines the rows of all nodes, of which a rank has its own only")
