"""Follows the rows of nodes and edges through a call of a distributed model.

On the way it replaces what would be wrong on a part of a graph by what is right (rows and degrees of sources, random draws), and
refuses what cannot be right: values of all nodes, and their number as a value. It sees branches that are taken later, too.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager as ContextManager
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hpcgnn.nn.halo import edge_ids
from hpcgnn.pyg import rows
from hpcgnn.pyg.halo_rows import HaloRows
from hpcgnn.pyg.rows import DESTINATIONS, EDGES, ENDS, IDS, NODES, SOURCES, Count, Refused, Reversed, Role

RoleOf = Callable[[Any], Role | None]


class _Call(NamedTuple):
    """A call of a function of torch. found: its arguments whose rows are known, with their roles."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    found: list[tuple[Tensor, Role]]

    def __call__(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    @property
    def name(self) -> str:
        return rows.name_of(self.func)

    def get(self, name: str, place: int = 1, default: Any = None) -> Any:
        """The argument of this name, or at this place."""
        return self.kwargs.get(name, self.args[place] if len(self.args) > place else default)

    def many(self, *names: str) -> Any:
        """The arguments after the first one, which are given one by one, as a list, or by one of these names."""
        values: Any = next((self.kwargs[name] for name in names if name in self.kwargs), self.args[1:])
        return values[0] if values and isinstance(values[0], (tuple, list)) else values

    def dim(self, dims: int) -> int:
        """The argument ``dim`` in 0 to ``dims`` - 1, where 0 is its default."""
        return int(self.get("dim", 1, 0)) % dims

    def axis_after(self, tensor: Tensor, axis: int) -> int:
        """The dimension of the result that is dimension ``axis`` of the argument ``tensor``, found with sizes that all differ."""
        sizes = torch.empty(*range(2, tensor.dim() + 2), device="meta")
        args = [sizes if each is tensor else each for each in self.args]
        kwargs = {name: sizes if each is tensor else each for name, each in self.kwargs.items()}
        return self.func(*args, **kwargs).shape.index(axis + 2)

    def where(self) -> str:
        return f"{self.name} {rows.place()}"


def check(call: _Call, role_of: RoleOf) -> None:
    """Raise Refused if a function of torch combines rows of which a rank has some only."""
    name, (tensor, role) = call.name, call.found[0]
    if name in rows.ALONG and tensor is (call.args[0] if call.args else call.kwargs.get("input")):
        _check_along(call)
    elif name in rows.SPATIAL and role.axis:
        raise Refused(f"{call.where()} combines the rows of all nodes, of which a rank has its own only")
    elif name in rows.PRODUCTS:
        _check_product(call, role_of)
    elif name == "einsum":
        _check_einsum(call, role_of)
    elif name in rows.LOSSES and call.kwargs.get("reduction") != "none" and rows.called_by() == "user":
        raise Refused(
            f"{call.where()} averages over the rows of all nodes, of which a rank has its own only: compute the loss of "
            'the model\'s result, outside of it, or give reduction="none"'
        )
    elif name in ("scaled_dot_product_attention", "multi_head_attention_forward"):
        if role.axis == (tensor.dim() - 2 if name.startswith("scaled") else 0):
            raise Refused(f"{call.where()} combines each node with all others, but a rank has its own only")
    elif call.func in rows.SPARSE:
        raise Refused(f"{call.where()} makes a sparse matrix of edges, but a rank has the edges of its nodes only")


def _check_along(call: _Call) -> None:
    name, (tensor, role) = call.name, call.found[0]
    place, default = rows.ALONG[name]
    dim = call.kwargs.get("dims", call.kwargs.get("axis", call.get("dim", place, default)))
    if name in ("max", "min") and isinstance(dim, Tensor):
        return  # of two tensors, element by element
    if dim is None and name in ("softmax", "log_softmax", "softmin"):
        dim = 0 if tensor.dim() in (0, 1, 3) else 1
    dims = range(tensor.dim()) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    if not tensor.dim() or role.axis not in {one % tensor.dim() for one in dims}:
        return
    if not tensor.is_floating_point() and rows.called_by() == "pyg":
        return  # PyG sorts nodes by type; that its layers are right then, the rehearsal shows
    if role.kind == NODES:
        helper = name.removeprefix("a") if name in ("mean", "sum", "max", "min", "amax", "amin") else None
        advice = f": use hpcgnn.{helper}(x, graph)" if helper else ""
        raise Refused(f"{call.where()} combines the rows of all nodes, of which a rank has its own only{advice}")
    if name not in rows.HARMLESS_TO_EDGES and rows.called_by() == "user":
        raise Refused(f"{call.where()} combines all edges, of which a rank has those that end at its nodes only")


def _check_product(call: _Call, role_of: RoleOf) -> None:
    name, args = call.name, call.args
    left, right = args[1:3] if name in ("addmm", "baddbmm") else (*args, *call.kwargs.values())[:2]
    if name == "rmatmul":
        left, right = right, left
    first, second = role_of(left), role_of(right)
    contracted = first is not None and name not in ("outer", "cdist") and first.axis == left.dim() - 1
    if second is not None and not contracted and name != "linear":
        contracted = second.axis == max(right.dim() - 2, 0)
        pairs = first is not None and second.axis == right.dim() - 1 and right.dim() > 1
        if pairs or name in ("outer", "cdist"):
            raise Refused(f"{call.where()} combines each node with all others, but a rank has its own only")
    if contracted and not (name == "bmm" and first is not None and first.axis == 0):
        raise Refused(f"{call.where()} sums over the rows of all nodes, of which a rank has its own only")


def _check_einsum(call: _Call, role_of: RoleOf) -> None:
    terms, operands = call.args[0], call.many()
    if "." in terms or "->" not in terms:
        return  # the rehearsal decides
    given, _, result = terms.replace(" ", "").partition("->")
    roles = zip(given.split(","), map(role_of, operands), strict=False)
    labels = {term[role.axis] for term, role in roles if role is not None}
    if len(labels) != 1 or not labels <= set(result):
        raise Refused(f"{call.where()} combines the rows of all nodes, of which a rank has its own only")


class RowMode(TorchFunctionMode):
    """The roles of the tensors of one call. It is entered anew for each call.

    drop: replaces ``F.dropout(x, p)``, given the original ids on which the mask of each row depends, or None, and whether a layer
    computes messages. common_draws: a context in which all ranks draw the same numbers.
    """

    def __init__(
        self, halo: HaloRows, drop: Callable[..., Tensor], common_draws: Callable[[], ContextManager[None]]
    ) -> None:
        super().__init__()
        self._halo, self._drop, self._common_draws = halo, drop, common_draws
        self._roles: dict[int, tuple[weakref.ref[Tensor], Role]] = {}
        self.knows_types = False  # whether arguments of the call have rows of one type
        self._edges: Tensor | None = None  # those of the layer whose messages are being computed

    # -- roles --------------------------------------------------------------------------------------------------------

    def mark(self, value: Any, kind: str, axis: int = 0, types: tuple[int, ...] = (), *, of_graph: bool = False) -> Any:
        """Note that ``value``, or each tensor in it, has rows of this kind and these types along ``axis``. Returns ``value``."""
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, Tensor):
                self._roles[id(tensor)] = weakref.ref(tensor), Role(kind, axis, of_graph, types)
        self.knows_types |= bool(types)
        return value

    def role(self, tensor: Any) -> Role | None:
        """The role of a tensor, or None."""
        found = self._roles.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def hand_on(self, source: Tensor, result: Tensor) -> Tensor:
        """Note that ``result`` has the rows of ``source``. Returns ``result``."""
        role = self.role(source)
        return result if role is None else self.mark(result, role.kind, role.axis, role.types)

    def forget(self) -> None:
        """Forget the tensors of the previous call."""
        self._roles.clear()
        self.knows_types = False

    @contextmanager
    def inside(self, edge_index: Tensor) -> Iterator[None]:
        """In this context a layer computes messages of these edges (2, e): its own code is right on a part of a graph."""
        before, self._edges = self._edges, edge_index
        try:
            yield
        finally:
            self._edges = before

    def _found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Tensor, Role]]:
        given = (
            one for value in (*args, *kwargs.values()) for one in (value if type(value) in (tuple, list) else (value,))
        )
        return [(one, role) for one in given if isinstance(one, Tensor) and (role := self.role(one)) is not None]

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
        call = _Call(func, args, kwargs, found)
        is_factory = name in rows.FACTORIES
        if is_factory and rows.has_count((args, kwargs)):
            return self._made(call)
        if is_factory or not found:
            return self._of_all(call)
        try:
            return getattr(self, f"_on_{name}", self._checked)(call)
        except Refused:
            if rows.called_by() != "ours":
                raise
        return self._inherit(call(), found)

    def _of_all(self, call: _Call) -> Any:
        """Call a function of values that belong to no row, and are the same on all ranks: so are its random numbers."""
        if call.name not in rows.RANDOM or rows.has_count((call.args, call.kwargs)) or rows.is_checkpointed():
            return call()
        with self._common_draws():
            return call()

    def _counted(self, name: str, args: Any, kwargs: Any) -> Any:
        """Check that no number of nodes is a value of the model. PyG's functions make one number of two ids by it: for these,
        the ids of halo nodes count, too.
        """
        values: Any = (kwargs.get("fill_value", args[-1]),) if name == "full" else (*args, *kwargs.values())
        if name in ("tensor", "as_tensor") and isinstance(args[0], (tuple, list)):
            values = args[0]
        count = next((value for value in values if isinstance(value, Count)), None)
        if count is None:
            return args
        by = rows.called_by()
        if by == "user":
            rows.refuse_count(count)
        if by == "pyg" and isinstance(args[0], Tensor) and args[0].dtype == torch.int64:
            most = self._halo.original_ids.numel()
            return tuple(most if isinstance(value, Count) else value for value in args)
        return args

    def _made(self, call: _Call) -> Any:
        result, size = call(), call.get("size", int(call.name.startswith("new_")), ())
        sizes = enumerate(size if isinstance(size, (tuple, list)) else (size,))
        axis, of = next(((axis, of) for axis, of in sizes if isinstance(of, Count)), (0, None))
        return result if of is None else self.mark(result, of.kind, axis, of.types)

    def _inherit(self, result: Any, found: list[tuple[Tensor, Role]], reduced: int | None = None) -> Any:
        """Give the result of a function that works on each row by itself the role of its first argument with one. reduced: the
        dimension of that argument that a result with one less lacks, if it is known."""
        if not found:
            return result
        tensor, role = found[0]
        kinds = {one.kind for _, one in found}
        kind = NODES if NODES in kinds else EDGES if len(kinds) > 1 else role.kind
        types = next((one.types for _, one in found if one.kind == kind), role.types)
        size, place = tensor.shape[role.axis], role.axis - tensor.dim()
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if not isinstance(one, Tensor) or one is tensor:
                continue
            axes = role.axis, one.dim() + place
            if reduced is not None and one.dim() == tensor.dim() - 1:  # sizes alone could be equal by chance
                axes = (role.axis - (reduced < role.axis),) * 2
            for axis in axes:
                if 0 <= axis < one.dim() and one.shape[axis] == size:
                    may_be_ids = not one.is_floating_point() and one.dtype != torch.bool
                    self.mark(one, EDGES if kind in IDS and not may_be_ids else kind, axis, types)
                    break
        return result

    # -- dropout ------------------------------------------------------------------------------------------------------

    def _dropped(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
        x = given["input"]
        role, ids, axis = self.role(x), None, 0
        if func is torch.nn.functional.dropout and given.get("training", True) and x.is_floating_point():
            with torch._C.DisableTorchFunction():
                if role is not None and role.kind == NODES:
                    nodes, axis = self._halo.of(role.types), role.axis
                    ids = nodes.original_ids[: nodes.num_owned]
                elif self._edges is not None and x.shape[:1] == self._edges.shape[1:]:
                    of = self.role(self._edges)
                    sources, destinations = self._halo.of_ends(of.types if of is not None else ())
                    ids = edge_ids(destinations.original_ids[self._edges[1]], sources.original_ids[self._edges[0]])
                of_all = role is None and self._edges is None and not rows.is_checkpointed()
                with self._common_draws() if of_all else nullcontext():
                    drawn = self._drop(x.movedim(axis, 0), given.get("p", 0.5), ids, in_layer=self._edges is not None)
                result = drawn.movedim(0, axis)
                result = x.copy_(result) if given.get("inplace") else result
            return result if role is None else self.mark(result, role.kind, role.axis, role.types)
        call = _Call(func, args, kwargs, [])
        return self._of_all(call) if role is None else self._inherit(call(), [(x, role)])

    # -- functions that move rows -------------------------------------------------------------------------------------

    def _on_shape(self, call: _Call) -> Any:
        role, sizes = call.found[0][1], list(call())
        sizes[role.axis] = Count(sizes[role.axis], NODES if role.kind == NODES else EDGES, role.types)
        return torch.Size(sizes)

    def _on_size(self, call: _Call) -> Any:
        dim = call.get("dim")
        sizes = self._on_shape(_Call(Tensor.size, call.args[:1], {}, call.found))
        return sizes if dim is None else sizes[dim]

    def _on_len(self, call: _Call) -> Any:
        if call.found[0][1].axis == 0 and rows.called_by() == "user":
            raise Refused(
                f"a line {rows.place()} takes len() of rows, of which a rank has its own only: use x.size(0) where the "
                "number is a size, and graph.meta for numbers of the whole graph"
            )
        return call()

    def _on_numel(self, call: _Call) -> Any:
        role = call.found[0][1]
        return Count(call(), NODES if role.kind == NODES else EDGES, role.types)

    _on_nelement = _on_numel

    def _transposed(self, call: _Call) -> Any:
        tensor, role = call.found[0]
        axis = call.axis_after(tensor, role.axis)
        return self.mark(call(), role.kind, axis, role.types)

    _on_t = _on_T = _on_mT = _on_adjoint = _on_permute = _on_unsqueeze = _transposed
    _on_transpose = _on_swapaxes = _on_swapdims = _on_movedim = _on_moveaxis = _transposed

    def _on_view(self, call: _Call) -> Any:
        (tensor, role), sizes = call.found[0], call.many("shape", "size")
        if tensor.numel() == 0 and len(sizes) > 1 and isinstance(sizes[0], Count) and -1 in sizes[1:]:
            # torch cannot find the size of rows that are not there
            width = math.prod(tensor.shape[1:]) // math.prod(size for size in sizes[1:] if size != -1)
            result = call.func(tensor, [0, *(width if size == -1 else size for size in sizes[1:])])
        else:
            result = call()
        if role.axis == 0 and sizes and (isinstance(sizes[0], Count) or sizes[0] == -1):
            return self.mark(result, role.kind, 0, role.types)  # also where a node has several rows of the result
        return self._inherit(result, call.found)

    _on_reshape = _on_view

    def _on_flatten(self, call: _Call) -> Any:
        role = call.found[0][1]
        axis = role.axis if call.get("start_dim", 1, 0) > role.axis else 0
        return self.mark(call(), role.kind, axis, role.types)

    _on_ravel = _on_flatten

    def _on_unbind(self, call: _Call) -> Any:
        tensor, role = call.found[0]
        dim = call.dim(tensor.dim())
        if dim == role.axis:
            raise Refused(f"a line {rows.place()} takes rows one by one, but a rank has its own only")
        parts = call()
        for number, part in enumerate(parts):
            kind = (SOURCES, DESTINATIONS)[number] if role.kind == ENDS else role.kind
            self.mark(part, kind, role.axis - (dim < role.axis), role.types)
        return parts

    def _on_stack(self, call: _Call) -> Any:
        kinds, result, first = [role.kind for _, role in call.found], call(), call.found[0][1]
        dim = call.dim(result.dim())
        if kinds == [SOURCES, DESTINATIONS] and dim == 0:
            return self.mark(result, ENDS, 1, first.types)
        if SOURCES in kinds or DESTINATIONS in kinds:
            self._refuse_reversed()
        return self.mark(result, first.kind, first.axis + (dim <= first.axis), first.types)

    def _on_cat(self, call: _Call) -> Any:
        kinds, (tensor, role) = {one.kind for _, one in call.found}, call.found[0]
        if {SOURCES, DESTINATIONS} <= kinds:
            if rows.is_called_in("to_undirected") and all(one.of_graph for _, one in call.found):
                with torch._C.DisableTorchFunction():
                    is_undirected = self._halo.is_undirected()
                if is_undirected:
                    return tensor  # the reversed edges are among the edges
            self._refuse_reversed()
        if kinds == {EDGES} and rows.is_called_in("to_undirected"):
            raise Refused(f"to_undirected {rows.place()} combines attributes of edges with those of reversed edges")
        if call.dim(tensor.dim()) == role.axis and role.kind == NODES:
            raise Refused(f"cat {rows.place()} appends rows to those of the nodes, of which a rank has its own only")
        return self.mark(call(), role.kind, role.axis, role.types)

    _on_concat = _on_concatenate = _on_cat

    def _on_flip(self, call: _Call) -> Any:
        if call.found[0][1].kind == ENDS and {0, -2} & {*call.many("dims")}:
            raise Refused(f"{call.where()} makes reversed edges, but a rank has the edges that end at its nodes only")
        return self._checked(call)

    def _checked(self, call: _Call) -> Any:
        check(call, self.role)
        dim, tensor = call.get("dim", 1), call.found[0][0]
        reduced = dim % max(tensor.dim(), 1) if isinstance(dim, int) else None
        return self._inherit(call(), call.found, reduced)

    @staticmethod
    def _refuse_reversed() -> None:
        raise Reversed(
            f"a line {rows.place()} makes reversed edges, but a rank has the edges that end at its nodes only: store both "
            "directions in the graph with `hpcgnn convert --undirected`"
        )

    # -- rows by index ------------------------------------------------------------------------------------------------

    def _on_getitem(self, call: _Call) -> Any:
        tensor, key = call.args
        role = self.role(tensor)
        if role is None:  # a table of other rows, indexed by a column of nodes or edges
            is_picked = isinstance(key, Tensor) and key.dtype != torch.bool
            of = call.found[0][1]
            return self.mark(call(), rows.of_edges(of.kind), 0, of.types) if is_picked else call()
        keys = key if isinstance(key, tuple) else (key,)
        before, at, axis = rows.split_key(keys, role.axis, tensor.dim())
        if role.kind == ENDS and before is not None:
            return self._ends(call, keys, before, role)
        if isinstance(at, slice):
            if not rows.is_all(at, role.kind) and rows.called_by() == "user":
                raise Refused(f"a line {rows.place()} takes a range of rows, but a rank has its own only")
            return self.mark(call(), role.kind, axis, role.types)
        if isinstance(at, Tensor):
            return self._picked(lambda wide: call.func(wide, key), tensor, role, at, axis)
        if isinstance(at, int) and rows.called_by() == "user":
            raise Refused(f"a line {rows.place()} takes row {at} of the {role.kind}, but a rank has its own only")
        return call()

    def _ends(self, call: _Call, keys: tuple[Any, ...], before: Any, role: Role) -> Any:
        """Part of an ``edge_index``: one row, both rows of some edges, or reversed edges."""
        if isinstance(before, int):
            kind = SOURCES if before in (0, -2) else DESTINATIONS
            return self.mark(call(), kind, 0, role.types, of_graph=role.of_graph and keys == (before,))
        if not isinstance(before, slice) or before != slice(None):
            self._refuse_reversed()
        return self.mark(call(), ENDS, 1, role.types)

    def _on_index_select(self, call: _Call) -> Any:
        tensor, dim, index = call.get("input", 0), call.get("dim", 1), call.get("index", 2)
        role, dim = self.role(tensor), dim % tensor.dim()
        if role is None:
            of = call.found[0][1]
            return self.mark(call(), rows.of_edges(of.kind), dim, of.types)
        if dim != role.axis:
            if role.kind == ENDS:
                self._refuse_reversed()
            return self.mark(call(), role.kind, role.axis, role.types)
        return self._picked(lambda wide: call.func(wide, dim, index), tensor, role, index, dim)

    def _picked(self, pick: Callable[[Tensor], Any], tensor: Tensor, role: Role, index: Tensor, axis: int) -> Any:
        """Rows that ``index`` names: those of sources may belong to halo nodes."""
        of = self.role(index)
        is_of_nodes, of_sources = role.kind == NODES, of is not None and of.kind in (SOURCES, ENDS)
        if is_of_nodes and of is None and index.dtype != torch.bool and rows.called_by() == "user":
            raise Refused(f"a line {rows.place()} takes rows by numbers, but the nodes of a rank have other numbers")
        if not (is_of_nodes and of_sources):
            if is_of_nodes and of is not None and of.kind == DESTINATIONS:
                return self.mark(pick(tensor), EDGES, axis, of.types)
            return self.mark(pick(tensor), role.kind, axis, role.types)
        if rows.is_checkpointed():
            raise Refused(
                f"a line {rows.place()} takes rows of sources in torch.utils.checkpoint: take them outside of it"
            )
        assert of is not None  # sources
        with torch._C.DisableTorchFunction():
            wide = self._halo.of(role.types).extended(tensor.movedim(role.axis, 0)).movedim(0, role.axis)
        return self.mark(pick(wide), EDGES, axis, of.types)

    def _scattered(self, call: _Call) -> Any:
        """Values of edges added up by node: those of sources are added up over all ranks."""
        out, dim, index = call.get("input", 0), call.get("dim", 1), call.get("index", 2)
        src = call.kwargs.get("source", call.get("src", 3))
        of = self.role(index)
        if of is not None and of.kind in (NODES, EDGES):  # a row of the result is that of a group, such as a type
            return call()
        if of is None or of.kind != SOURCES:
            return self.mark(call(), NODES, dim % out.dim(), of.types[1:] if of is not None else ())
        if "add" not in call.name or dim % out.dim():
            raise Refused(f"{call.where()} combines values at the sources of edges, which other ranks own")
        with torch._C.DisableTorchFunction():
            sources = self._halo.of(of.types)
            wide = out.new_zeros(sources.num_extended, *out.shape[1:])
            total = out + sources.summed(getattr(wide, f"{call.name}_")(dim, index, src))
            result = out.copy_(total) if call.func.__name__.endswith("_") else total
        return self.mark(result, NODES, 0, of.types[:1])

    _on_scatter_add = _on_scatter = _on_scatter_reduce = _on_index_add = _on_index_reduce = _scattered

    def _on_max(self, call: _Call) -> Any:
        role = call.found[0][1]
        if role.kind not in IDS or not rows.is_called_in("maybe_num_nodes"):
            return self._checked(call)
        if role.kind == DESTINATIONS:
            return torch.tensor(self._halo.of_ends(role.types)[1].num_owned - 1)
        raise Refused(
            f"a function of PyG {rows.place()} finds the number of nodes in the edges: give it num_nodes=x.size(0)"
        )

    def _on_convert_indices_from_coo_to_csr(self, call: _Call) -> Any:
        if call.found[0][1].kind != DESTINATIONS:
            raise Refused(
                f"a sparse matrix of edges {rows.place()} has rows of sources, but a rank has the in-edges of its nodes only"
            )
        return call()

    def _on_nonzero(self, call: _Call) -> Any:
        role = call.found[0][1]
        return self.mark(call(), NODES if role.kind == NODES else EDGES, 0, role.types)

    _on_masked_select = _on_nonzero

    def _on_bincount(self, call: _Call) -> Any:
        if call.found[0][1].kind != DESTINATIONS:
            raise Refused(f"{call.where()} counts over all ranks: use torch_geometric.utils.degree")
        return self.mark(call(), NODES, 0, call.found[0][1].types[1:])
