"""Follows the rows of nodes and edges through a call of a distributed model.

On the way it replaces what would be wrong on a part of a graph by what is right (rows and degrees of sources, random draws), and
refuses what cannot be right: values of all nodes, and their number as a value. It looks at each call of the model, so a branch
that is taken later is seen, too.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hpcgnn.nn.halo import edge_ids
from hpcgnn.pyg import rows
from hpcgnn.pyg.halo_rows import HaloRows
from hpcgnn.pyg.rows import DESTINATIONS, EDGES, ENDS, IDS, NODES, SOURCES, Count, Refused, Reversed, Role

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


class RowMode(TorchFunctionMode):
    """The roles of the tensors of one call. It is entered anew for each call.

    owned: number of owned nodes, n. halo: the exchange of rows of halo nodes. drop: replaces ``F.dropout(x, p)``, given
    the original ids of its rows, or None, and whether a layer computes messages. common_draws: a context in which all ranks draw
    the same random numbers.
    """

    def __init__(
        self,
        owned: int,
        halo: HaloRows,
        drop: Callable[..., torch.Tensor],
        common_draws: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__()
        self._owned, self._halo, self._drop, self._common_draws = owned, halo, drop, common_draws
        self._roles: dict[int, tuple[weakref.ref[torch.Tensor], Role]] = {}
        self._edges: torch.Tensor | None = None  # those of the layer whose messages are being computed

    # -- roles --------------------------------------------------------------------------------------------------------

    def mark(self, value: Any, kind: str, axis: int = 0, *, of_graph: bool = False) -> Any:
        """Note that ``value``, or each tensor in it, has rows of this kind along ``axis``. Returns ``value``."""
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor):
                self._roles[id(tensor)] = weakref.ref(tensor), Role(kind, axis, of_graph)
        return value

    def role(self, tensor: Any) -> Role | None:
        """The role of a tensor, or None."""
        found = self._roles.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def hand_on(self, source: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """Note that ``result`` has the rows of ``source``. Returns ``result``."""
        role = self.role(source)
        return result if role is None else self.mark(result, role.kind, role.axis)

    def forget(self) -> None:
        """Forget the tensors of the previous call."""
        self._roles.clear()

    @contextmanager
    def inside(self, edge_index: torch.Tensor) -> Iterator[None]:
        """In this context a layer computes messages of these edges (2, e): its own code is right on a part of a graph."""
        before, self._edges = self._edges, edge_index
        try:
            yield
        finally:
            self._edges = before

    def _found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
        found = []
        for value in (*args, *kwargs.values()):
            for one in value if type(value) in (tuple, list) else (value,):
                role = self.role(one) if isinstance(one, torch.Tensor) else None
                if role is not None:
                    found.append((one, role))
        return found

    # -- each call of torch -------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch's documentation of ``__torch_function__``: torch calls it instead of each of its functions."""
        kwargs = kwargs or {}
        if func in rows.DROPOUTS:
            return self._dropped(func, args, kwargs)
        if func in rows.SPARSE:  # indices of other ranks' nodes would make later products read foreign memory
            kwargs = {"check_invariants": True} | kwargs
        if self._edges is not None:
            return func(*args, **kwargs)
        name = rows.name_of(func)
        if name in rows.PASSIVE:
            return func(*args, **kwargs)
        found = self._found(args, kwargs)
        if name in rows.ARITHMETIC:
            args = self._counted(name, args, kwargs)
        is_factory = name in rows.FACTORIES
        if is_factory and rows.has_count((args, kwargs)):
            return self._made(name, func(*args, **kwargs), args, kwargs)
        if is_factory or not found:
            return self._of_all(func, name, args, kwargs)
        special = getattr(self, f"_on_{name}", None)
        try:
            if special is not None:
                return special(func, args, kwargs, found)
            check(name, args, kwargs, found, self.role)
        except Refused:
            if rows.called_by() != "ours":
                raise
        return self._inherit(func(*args, **kwargs), found)

    def _of_all(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a function of values that belong to no row, and are the same on all ranks: so are its random numbers."""
        if name not in rows.RANDOM or rows.has_count((args, kwargs)) or rows.is_checkpointed():
            return func(*args, **kwargs)
        with self._common_draws():
            return func(*args, **kwargs)

    def _counted(self, name: str, args: Any, kwargs: Any) -> Any:
        """Check that no number of nodes is a value of the model. PyG's functions make one number of two ids by it: for these,
        the ids of halo nodes count, too.
        """
        values: Any = (kwargs.get("fill_value", args[-1]),) if name == "full" else (*args, *kwargs.values())
        if name in ("tensor", "as_tensor") and isinstance(args[0], (tuple, list)):
            values = args[0]
        count = next((value for value in values if isinstance(value, Count)), None)
        by = None if count is None else rows.called_by()
        if count is not None and by == "user":
            rows.refuse_count(count)
        if by == "pyg" and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.int64:
            most = self._halo.original_ids.numel()
            return tuple(most if isinstance(value, Count) else value for value in args)
        return args

    def _made(self, name: str, result: Any, args: Any, kwargs: Any) -> Any:
        size = kwargs.get("size", args[name.startswith("new_")] if args else ())
        first = size[0] if isinstance(size, (tuple, list)) and size else size
        return self.mark(result, first.kind) if isinstance(first, Count) else result  # type: ignore[attr-defined]

    def _inherit(self, result: Any, found: Found) -> Any:
        """Give the result of a function that works on each row by itself the role of its first argument with one."""
        if not found:
            return result
        tensor, role = found[0]
        kinds = {one.kind for _, one in found}
        kind = NODES if NODES in kinds else EDGES if len(kinds) > 1 else role.kind
        size, place = tensor.shape[role.axis], role.axis - tensor.dim()
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if not isinstance(one, torch.Tensor) or one is tensor:
                continue
            for axis in (role.axis, one.dim() + place):
                if 0 <= axis < one.dim() and one.shape[axis] == size:
                    moved = kind in IDS and not rows.is_ids(one)
                    self.mark(one, EDGES if moved else kind, axis)
                    break
        return result

    # -- dropout ------------------------------------------------------------------------------------------------------

    def _dropped(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
        x = given["input"]
        role, ids = self.role(x), None
        if func is torch.nn.functional.dropout and given.get("training", True) and x.is_floating_point():
            with torch._C.DisableTorchFunction():
                if role is not None and role.kind == NODES and role.axis == 0:
                    ids = self._halo.original_ids[: self._owned]
                elif self._edges is not None and x.shape[:1] == self._edges.shape[1:]:
                    ids = edge_ids(*self._halo.original_ids[self._edges.flip(0)])
                of_all = role is None and self._edges is None and not rows.is_checkpointed()
                with self._common_draws() if of_all else nullcontext():
                    result = self._drop(x, given.get("p", 0.5), ids, in_layer=self._edges is not None)
                result = x.copy_(result) if given.get("inplace") else result
            return result if role is None else self.mark(result, role.kind, role.axis)
        if role is None:
            return self._of_all(func, "dropout", args, kwargs)
        return self._inherit(func(*args, **kwargs), [(x, role)])

    # -- functions that move rows -------------------------------------------------------------------------------------

    def _on_shape(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        role = found[0][1]
        sizes = list(func(*args, **kwargs))
        sizes[role.axis] = Count(sizes[role.axis], NODES if role.kind == NODES else EDGES)
        return torch.Size(sizes)

    def _on_size(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        sizes = self._on_shape(torch.Tensor.size, args[:1], {}, found)
        return sizes if dim is None else sizes[dim]

    def _on_len(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        if found[0][1].axis == 0 and rows.called_by() == "user":
            raise Refused(
                f"a line {rows.place()} takes len() of rows, of which a rank has its own only: use x.size(0) where the "
                "number is a size, and graph.meta for numbers of the whole graph"
            )
        return func(*args, **kwargs)

    def _on_numel(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        return Count(func(*args, **kwargs), NODES if found[0][1].kind == NODES else EDGES)

    _on_nelement = _on_numel

    def _transposed(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        tensor, role = found[0]
        name, order = rows.name_of(func), list(range(tensor.dim()))
        if name in ("t", "T"):
            order.reverse()
        elif name in ("mT", "adjoint"):
            order[-2:] = order[:-3:-1]
        elif name == "permute":
            dims = kwargs.get("dims", args[1] if len(args) == 2 else args[1:])
            order = [each % tensor.dim() for each in dims]
        else:
            one, two = (each % tensor.dim() for each in (*args[1:], *kwargs.values()))
            if name in ("movedim", "moveaxis"):
                order.insert(two, order.pop(one))
            else:
                order[one], order[two] = order[two], order[one]
        return self.mark(func(*args, **kwargs), role.kind, order.index(role.axis))

    _on_t = _on_T = _on_mT = _on_adjoint = _on_permute = _transposed
    _on_transpose = _on_swapaxes = _on_swapdims = _on_movedim = _on_moveaxis = _transposed

    def _on_view(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        tensor, role = found[0]
        sizes = kwargs.get("shape", kwargs.get("size", args[1:]))
        sizes = sizes[0] if sizes and isinstance(sizes[0], (tuple, list)) else sizes
        if tensor.numel() == 0 and len(sizes) > 1 and isinstance(sizes[0], Count) and -1 in sizes[1:]:
            # torch cannot find the size of rows that are not there
            width = math.prod(tensor.shape[1:]) // math.prod(size for size in sizes[1:] if size != -1)
            args, kwargs = (tensor, [0, *(width if size == -1 else size for size in sizes[1:])]), {}
        result = func(*args, **kwargs)
        if role.axis == 0 and sizes and (isinstance(sizes[0], Count) or sizes[0] == -1):
            return self.mark(result, role.kind)  # also where a node has several rows of the result
        return self._inherit(result, found)

    _on_reshape = _on_view

    def _on_flatten(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        role, result = found[0][1], func(*args, **kwargs)
        first = kwargs.get("start_dim", args[1] if len(args) > 1 else 0)
        return self.mark(result, role.kind, role.axis if first > role.axis else 0)

    _on_ravel = _on_flatten

    def _on_unsqueeze(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        tensor, role = found[0]
        dim = rows.dim_of(args, kwargs, tensor.dim() + 1)
        return self.mark(func(*args, **kwargs), role.kind, role.axis + (dim <= role.axis))

    def _on_unbind(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        tensor, role = found[0]
        dim = rows.dim_of(args, kwargs, tensor.dim())
        if dim == role.axis:
            raise Refused(f"a line {rows.place()} takes rows one by one, but a rank has its own only")
        parts = func(*args, **kwargs)
        for number, part in enumerate(parts):
            self.mark(
                part, (SOURCES, DESTINATIONS)[number] if role.kind == ENDS else role.kind, role.axis - (dim < role.axis)
            )
        return parts

    def _on_stack(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        kinds, result = [role.kind for _, role in found], func(*args, **kwargs)
        dim = rows.dim_of(args, kwargs, result.dim())
        if kinds == [SOURCES, DESTINATIONS] and dim == 0:
            return self.mark(result, ENDS, 1)
        if SOURCES in kinds or DESTINATIONS in kinds:
            self._refuse_reversed()
        axis = found[0][1].axis
        return self.mark(result, found[0][1].kind, axis + (dim <= axis))

    def _on_cat(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        kinds, (tensor, role) = {one.kind for _, one in found}, found[0]
        dim = rows.dim_of(args, kwargs, tensor.dim())
        if {SOURCES, DESTINATIONS} <= kinds:
            if rows.is_called_in("to_undirected") and all(one.of_graph for _, one in found):
                with torch._C.DisableTorchFunction():
                    is_undirected = self._halo.is_undirected()
                if is_undirected:
                    return tensor  # the reversed edges are among the edges
            self._refuse_reversed()
        if kinds == {EDGES} and rows.is_called_in("to_undirected"):
            raise Refused(f"to_undirected {rows.place()} combines attributes of edges with those of reversed edges")
        if dim == role.axis and role.kind == NODES:
            raise Refused(f"{where('cat')} appends rows to those of the nodes, of which a rank has its own only")
        return self.mark(func(*args, **kwargs), role.kind, role.axis)

    _on_concat = _on_concatenate = _on_cat

    def _on_flip(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        dims = kwargs.get("dims", args[1:])
        dims = dims[0] if dims and isinstance(dims[0], (tuple, list)) else dims
        if found[0][1].kind == ENDS and {0, -2} & {*dims}:
            raise Refused(f"{where('flip')} makes reversed edges, but a rank has the edges that end at its nodes only")
        check("flip", args, kwargs, found, self.role)
        return self._inherit(func(*args, **kwargs), found)

    @staticmethod
    def _refuse_reversed() -> None:
        raise Reversed(
            f"a line {rows.place()} makes reversed edges, but a rank has the edges that end at its nodes only: store both "
            "directions in the graph with `hpcgnn convert --undirected`"
        )

    # -- rows by index ------------------------------------------------------------------------------------------------

    def _on_getitem(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        tensor, key = args
        role = self.role(tensor)
        if role is None:  # a table of other rows, indexed by a column of nodes or edges
            result = func(*args)
            if isinstance(key, torch.Tensor) and key.dtype != torch.bool:
                return self.mark(result, rows.of_edges(found[0][1].kind))
            return result
        keys = key if isinstance(key, tuple) else (key,)
        before, at, axis = rows.split_key(keys, role.axis, tensor.dim())
        if role.kind == ENDS and before is not None:
            return self._ends(func, args, before, role)
        if isinstance(at, slice):
            if not rows.is_all(at, role.kind) and rows.called_by() == "user":
                raise Refused(f"a line {rows.place()} takes a range of rows, but a rank has its own only")
            return self.mark(func(*args), role.kind, axis)
        if isinstance(at, torch.Tensor):
            return self._picked(lambda wide: func(wide, key), tensor, role, at, axis)
        if isinstance(at, int) and rows.called_by() == "user":
            raise Refused(f"a line {rows.place()} takes row {at} of the {role.kind}, but a rank has its own only")
        return func(*args)

    def _ends(self, func: Any, args: Any, before: Any, role: Role) -> Any:
        """Part of an ``edge_index``: one row, both rows of some edges, or reversed edges."""
        if isinstance(before, int):
            key = args[1]
            whole = role.of_graph and (key if isinstance(key, tuple) else (key,)) == (before,)
            return self.mark(func(*args), SOURCES if before in (0, -2) else DESTINATIONS, of_graph=whole)
        if not isinstance(before, slice) or before != slice(None):
            self._refuse_reversed()
        return self.mark(func(*args), ENDS, 1)

    def _on_index_select(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        given = dict(zip(("input", "dim", "index"), args, strict=False)) | kwargs
        tensor, dim, index = given["input"], given["dim"], given["index"]
        role, dim = self.role(tensor), dim % tensor.dim()
        if role is None:
            return self.mark(func(*args, **kwargs), rows.of_edges(found[0][1].kind), dim)
        if dim != role.axis:
            if role.kind == ENDS:
                self._refuse_reversed()
            return self.mark(func(*args, **kwargs), role.kind, role.axis)
        return self._picked(lambda wide: func(wide, dim, index), tensor, role, index, dim)

    def _picked(
        self, pick: Callable[[torch.Tensor], Any], tensor: torch.Tensor, role: Role, index: torch.Tensor, axis: int
    ) -> Any:
        """Rows that ``index`` names: those of sources may belong to halo nodes."""
        of = self.role(index)
        if role.kind == NODES and of is None and index.dtype != torch.bool and rows.called_by() == "user":
            raise Refused(f"a line {rows.place()} takes rows by numbers, but the nodes of a rank have other numbers")
        if role.kind == NODES and of is not None and of.kind in (SOURCES, ENDS) and rows.is_checkpointed():
            raise Refused(
                f"a line {rows.place()} takes rows of sources in torch.utils.checkpoint: take them outside of it"
            )
        if role.kind != NODES or of is None or of.kind not in (SOURCES, ENDS):
            kind = EDGES if role.kind == NODES and of is not None and of.kind == DESTINATIONS else role.kind
            return self.mark(pick(tensor), kind, axis)
        with torch._C.DisableTorchFunction():
            wide = self._halo.extended(tensor.movedim(role.axis, 0)).movedim(0, role.axis)
        return self.mark(pick(wide), EDGES, axis)

    def _scattered(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        """Values of edges added up by node: those of sources are added up over all ranks."""
        given = dict(zip(("input", "dim", "index", "src"), args, strict=False)) | kwargs
        out, dim, index = given["input"], given["dim"], given["index"]
        src = given.get("src", given.get("source"))
        of = self.role(index)
        if of is not None and of.kind in (NODES, EDGES):  # a row of the result is that of a group, such as a type
            return func(*args, **kwargs)
        if of is None or of.kind != SOURCES:
            return self.mark(func(*args, **kwargs), NODES, dim % out.dim())
        name = rows.name_of(func)
        if "add" not in name or dim % out.dim():
            raise Refused(f"{where(name)} combines values at the sources of edges, which other ranks own")
        with torch._C.DisableTorchFunction():
            wide = out.new_zeros(self._halo.original_ids.numel(), *out.shape[1:])
            total = out + self._halo.summed(getattr(wide, f"{name}_")(dim, index, src))
            result = out.copy_(total) if func.__name__.endswith("_") else total
        return self.mark(result, NODES)

    _on_scatter_add = _on_scatter = _on_scatter_reduce = _on_index_add = _on_index_reduce = _scattered

    def _on_max(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        role = found[0][1]
        if role.kind in IDS and rows.is_called_in("maybe_num_nodes"):
            if role.kind == DESTINATIONS:
                return torch.tensor(self._owned - 1)
            raise Refused(
                f"a function of PyG {rows.place()} finds the number of nodes in the edges: give it num_nodes=x.size(0)"
            )
        check("max", args, kwargs, found, self.role)
        return self._inherit(func(*args, **kwargs), found)

    def _on_convert_indices_from_coo_to_csr(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        if found[0][1].kind != DESTINATIONS:
            raise Refused(
                f"a sparse matrix of edges {rows.place()} has rows of sources, but a rank has the in-edges of its nodes only"
            )
        return func(*args, **kwargs)

    def _on_nonzero(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        return self.mark(func(*args, **kwargs), NODES if found[0][1].kind == NODES else EDGES)

    _on_masked_select = _on_nonzero

    def _on_bincount(self, func: Any, args: Any, kwargs: Any, found: Found) -> Any:
        if found[0][1].kind != DESTINATIONS:
            raise Refused(f"{where('bincount')} counts over all ranks: use torch_geometric.utils.degree")
        return self.mark(func(*args, **kwargs), NODES)
