"""Attention over a whole halo as one step forward and one backward, by groups of heads.

A head reads only its own columns of the transformed rows, so one group of heads after the other is computed, forward and
backward: transformed rows, weights of edges, and their gradients exist for one group at a time, and the gradient of transformed
rows is written over that of the result if nothing else uses that. With ``--activations recompute`` the rows and weights of a
group are made again in backward, from the layer's input and from the bytes that had arrived; otherwise they are kept. Both ways
make the same calls, so their bits are equal.

Shapes: n owned nodes, m extended rows (:mod:`hpcgnn.nn.halo`), e edges, H heads, C columns of a head; in a group of heads,
G heads with K = G*C columns. x is (n, F).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import Csr, buffers, dense, edges
from hpcgnn.kernels.activation import DropoutMask, column_sums, drop
from hpcgnn.kernels.autograd import Gradients, end_sums, may_overwrite, recorded, tracked, transposed_with
from hpcgnn.kernels.sizes import block_size, scaled
from hpcgnn.kernels.spmm import spmm
from hpcgnn.nn.activations import Activations, Form, save, saved
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.edge_blocks import JointScores
from hpcgnn.nn.linear import matmul, operand, product_into, weight_gradient

# A group of heads has at least so many columns, a quarter of a page of memory; small graphs have one group, because each costs
# calls of kernels.
_LEAST_COLUMNS, _LEAST_VALUES = 64, 1 << 22
_ROWS_AT_ONCE = 1 << 13


Map = tuple[Tensor, Tensor | None]


class Scores(Protocol):
    """The scores of a group of heads. side: rows of targets (n, K), by the second map; without one, what :meth:`side` makes of
    the extended rows (m, K), a few columns that are kept. attend: the group's part of each parameter."""

    def side(self, rows: Tensor, attend: Sequence[Tensor]) -> Tensor:
        """The values of nodes from which scores are made, where there is no second map."""
        ...

    def of_edges(self, csr: Csr, rows: Tensor, side: Tensor, attend: Sequence[Tensor]) -> Tensor:
        """(e, G) scores."""
        ...

    def gradients(
        self, csr: Csr, rows: Tensor, side: Tensor, attend: Sequence[Tensor], of_scores: Tensor, of_rows: Tensor,
        is_positive: Tensor | None,
    ) -> tuple[Tensor | None, list[Tensor]]:  # fmt: skip
        """Add the gradient of ``rows`` to ``of_rows``; return that of rows of targets and those of ``attend``. of_scores: (e, G),
        which may be overwritten. is_positive: (e, G) whether a score is positive, if that is known."""
        ...


@dataclass(frozen=True)
class GATScores:
    """``LeakyReLU(a_t · row_i + a_s · row_j)``; attend: a_s and a_t, (G, C) each. side: both products (m, 2 G)."""

    slope: float
    backend: str

    def side(self, rows: Tensor, attend: Sequence[Tensor]) -> Tensor:
        """See :class:`Scores`."""
        return dense.run_product(dense.kernels_for(rows, self.backend), rows, _by_head(attend), None, None, "float32")

    def of_edges(self, csr: Csr, rows: Tensor, side: Tensor, attend: Sequence[Tensor]) -> Tensor:
        """See :class:`Scores`."""
        return F.leaky_relu_(self._sums(csr, side), self.slope)

    def _sums(self, csr: Csr, side: Tensor) -> Tensor:
        source, target = side.tensor_split(2, 1)
        return edges.sddmm(csr, target[: csr.num_rows], source, "add", backend=self.backend)

    def gradients(
        self, csr: Csr, rows: Tensor, side: Tensor, attend: Sequence[Tensor], of_scores: Tensor, of_rows: Tensor,
        is_positive: Tensor | None,
    ) -> tuple[None, list[Tensor]]:  # fmt: skip
        """See :class:`Scores`."""
        is_positive = self._sums(csr, side) > 0 if is_positive is None else is_positive
        of_sums = torch.where(is_positive, of_scores, of_scores.mul(self.slope))
        of_targets, of_sources = end_sums(csr, of_sums, (True, True), self.backend)
        assert of_targets is not None
        assert of_sources is not None
        both = torch.cat((of_sources, torch.zeros_like(of_sources)), 1)
        both[: csr.num_rows, attend[0].shape[0] :] = of_targets
        kernels, by_head = dense.kernels_for(rows, self.backend), _by_head(attend)
        dense.run_product(kernels, both, by_head.T, None, of_rows, "float32")
        found = dense.run_weight_gradient(kernels, rows, both)[0]
        heads, width = attend[0].shape
        by_part = found.view(heads, width, 2, heads).diagonal(dim1=0, dim2=3)  # (C, 2, G)
        return None, [each.T.contiguous() for each in by_part.unbind(1)]


@dataclass(frozen=True)
class GATv2Scores:
    """``a · LeakyReLU(target_i + row_j + e_ij W_e)``; attend: a (G, C), and maybe W_e (G, D, C). values: (e, D) features of the
    edges, or None."""

    slope: float
    backend: str
    values: Tensor | None

    def side(self, rows: Tensor, attend: Sequence[Tensor]) -> Tensor:
        """Nothing: rows of targets have a map of their own."""
        raise NotImplementedError

    def of_edges(self, csr: Csr, rows: Tensor, side: Tensor, attend: Sequence[Tensor]) -> Tensor:
        """See :class:`Scores`."""
        return self._joint(csr).of_edges(side, rows, attend[0], self._of_edges(attend))

    def gradients(
        self, csr: Csr, rows: Tensor, side: Tensor, attend: Sequence[Tensor], of_scores: Tensor, of_rows: Tensor,
        is_positive: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
        """See :class:`Scores`."""
        vectors, of_edges = attend[0], self._of_edges(attend)
        joint = self._joint(csr)
        of_targets, _, of_vectors, of_weight = joint.gradients(side, rows, vectors, of_edges, of_scores, of_rows)
        if of_weight is None:
            return of_targets, [of_vectors]
        return of_targets, [of_vectors, of_weight.view(-1, *vectors.shape).transpose(0, 1)]

    def _joint(self, csr: Csr) -> JointScores:
        return JointScores(csr, self.values, self.slope, self.backend)

    @staticmethod
    def _of_edges(attend: Sequence[Tensor]) -> Tensor | None:
        """(D, K) the weight of edges of the group."""
        return attend[1].transpose(0, 1).flatten(1) if len(attend) > 1 else None


def _by_head(attend: Sequence[Tensor]) -> Tensor:
    """(K, 2 G): the vectors of each head in the rows of its columns."""
    return torch.cat([torch.block_diag(*vectors[:, :, None]) for vectors in attend], 1)


@dataclass(frozen=True)
class Group:
    """Some heads. heads, columns: their slices of H and of H*C."""

    heads: slice
    columns: slice


@dataclass(frozen=True)
class Attention:
    """The attention of a layer in one pass.

    halo: the aggregator that makes extended rows. csr: (n, m) edges. heads: H, C. note: is told the (e, H) weights before
    dropout, or None. mask: of dropout of the weights. compute: the arithmetic of the products with x, no integers.
    """

    halo: Aggregator
    csr: Csr
    heads: tuple[int, int]
    scores: Scores
    compute: str
    activations: Activations
    mask: DropoutMask | None
    note: Callable[[Tensor], Any] | None

    def __call__(self, x: Tensor, bias: Tensor | None, maps: Sequence[Map], *attend: Tensor) -> Tensor:
        """(n, H*C) weighted sums of transformed rows, plus the bias (H*C,). Collective, forward and backward.

        Args:
            x: (n, F).
            bias: (H*C,) or None.
            maps: the weight (F, H*C), and the bias or None, of the rows that are added up; and maybe those of rows that only the
                scores of targets use.
            attend: the parameters of the scores, whose first dimension is H.
        """
        if x.shape[0] != self.csr.num_rows:
            raise WrongValueError(f"x must have {self.csr.num_rows} rows, one for each owned node, not {x.shape[0]}")
        flat = [each for pair in maps for each in pair]
        keeps = tracked(x, bias, *flat, *attend)
        return recorded(partial(self._run, len(flat), keeps), self._back, x, bias, *flat, *attend)

    @property
    def _backend(self) -> str:
        return self.halo.backend

    @cached_property
    def _groups(self) -> list[Group]:
        heads, width = self.heads
        size = heads
        if self.csr.num_cols * heads * width >= scaled(_LEAST_VALUES):
            sizes = (each for each in range(1, heads) if heads % each == 0 and each * width >= _LEAST_COLUMNS)
            size = next(sizes, heads)
        return [Group(slice(at, at + size), slice(at * width, (at + size) * width)) for at in range(0, heads, size)]

    def _run(self, num_maps: int, keeps: bool, ctx: Any, x: Tensor, bias: Tensor | None, *parameters: Any) -> Tensor:
        maps, attend = _maps(parameters[:num_maps]), parameters[num_maps:]
        extended, repeats = self._exchanged(x, maps[0], repeats=keeps and self.activations.repeats)
        forms: list[Form] = [] if repeats is None else [repeats]
        weights, work, y, is_narrow = [], self._work(x), None, len(maps) == 1
        for group in self._groups:
            rows = None if extended is None else extended[:, group.columns].contiguous()
            if rows is None:
                rows = self._extended(x, maps[0], None, group, work[0] if repeats is not None else None)
            side = self._side(x, maps, rows, attend, group)
            alpha, scores = self._weights(rows, side, attend, group)
            del scores
            if self.note is not None:
                weights.append(alpha)
            dropped = self._dropped(alpha, group)
            sums = spmm(self.csr, rows, dropped, out=_rows_of(work[1], x), backend=self._backend, accumulate=False)
            if keeps and repeats is None:
                forms.append(self.activations.form([rows, *(() if is_narrow else (side,))], list))
                forms.append(([alpha, *((side,) if is_narrow else ())], list))
            elif keeps and is_narrow:
                forms.append(([side], list))
            y = self._put(y, group, sums)
            del rows, side, alpha, dropped, sums
        del work
        if self.note is not None:
            self.note(torch.cat(weights, 1))
        assert y is not None
        save(ctx, [x, bias, *parameters], forms)
        ctx.repeats, ctx.num_maps = repeats is not None, num_maps
        return y if bias is None else y.add_(bias)

    def _exchanged(self, x: Tensor, of_rows: Map, *, repeats: bool) -> tuple[Tensor | None, Form | None]:
        """The (m, H*C) extended rows, or None for a rank that is alone; and the form in which rows that came are kept, or None if
        backward cannot make them again, or should not. Collective."""
        halo, num_owned = self.halo, x.shape[0]
        if not halo.overlaps():
            return None, ([], list) if repeats else None
        extended = self._empty(self.csr.num_cols, self.heads[0] * self.heads[1], x)
        own = extended[:num_owned]
        for group in self._groups:
            self._times(x, of_rows, group, own[:, group.columns])
        extended[num_owned:] = 0
        _, message = halo.start_step(own, is_temporary=True)
        extended = halo.finish_step(own, message, extended, has_own=True)
        return extended, halo.kept(message) if repeats else None

    def _back(self, ctx: Any, dy: Tensor) -> Gradients:
        needs, overwrites = ctx.needs_input_grad[2:], may_overwrite(ctx)
        (x, _, *parameters), forms = saved(ctx)
        maps, attend = _maps(parameters[: ctx.num_maps]), parameters[ctx.num_maps :]
        message = forms.pop(0) if ctx.repeats else None
        came = self._came(message, x.dtype) if message is not None and self.halo.overlaps() else None
        del message
        dy = dy.contiguous()
        dbias = column_sums(dy, self._backend).to(dy.dtype) if needs[1] else None
        of_rows = dy if overwrites and self.csr.num_cols == dy.shape[0] else None
        of_targets, of_attend, work, is_narrow = None, [], self._work(dy), len(maps) == 1
        for group in self._groups:
            is_positive = None
            if ctx.repeats:
                rows = self._extended(x, maps[0], came, group, work[0])
                side = _opened(forms.pop(0))[0] if is_narrow else self._side(x, maps, rows, attend, group)
                alpha, scores = self._weights(rows, side, attend, group)
                is_positive = scores > 0 if is_narrow else None
                del scores
            else:
                (rows, *of_rows_of_targets), (alpha, *narrow) = _opened(forms.pop(0)), _opened(forms.pop(0))
                (side,) = *of_rows_of_targets, *narrow
                del of_rows_of_targets, narrow
            mine = dy if len(self._groups) == 1 else self._copied(dy, group, _rows_of(work[2], dy))
            found, of_scores = self._gradients(rows, alpha, mine, group, work[1])
            del alpha, mine
            found_targets, found_attend = self.scores.gradients(
                self.csr, rows, side, _of_group(attend, group), of_scores, found, is_positive
            )
            del rows, side, of_scores, is_positive
            of_attend.append(found_attend)
            of_rows = self._put(of_rows, group, found)
            if found_targets is not None:
                of_targets = self._put(of_targets, group, found_targets)
            del found, found_targets
        del came, dy, work
        assert of_rows is not None
        rest = self._of_maps(x, maps, of_rows, of_targets, needs)
        return rest[0], dbias, *rest[1:], *(torch.cat(each) for each in zip(*of_attend, strict=True))

    def _of_maps(
        self, x: Tensor, maps: Sequence[Map], of_rows: Tensor, of_targets: Tensor | None, needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """The gradient of x, and those of the maps' weights and biases, from those of extended rows (m, H*C), whose memory is
        used, and of targets' rows (n, H*C). Collective."""
        num_owned, given, under_way, reverse = x.shape[0], operand(x, self.compute), None, self.halo.reverse
        if self.halo.overlaps():
            under_way = reverse.start_step(of_rows, is_temporary=True)

        def of_map(number: int, dy: Tensor) -> list[Tensor | None]:
            of_weight, of_bias = needs[2 + 2 * number : 4 + 2 * number]
            sums = column_sums(dy, self._backend).to(dy.dtype) if of_bias else None
            return [weight_gradient(given, dy, self._backend) if of_weight else None, sums]

        found = [] if of_targets is None else of_map(1, of_targets)  # while gradients travel
        of_own = of_rows[:num_owned]
        if under_way is not None:
            of_own = reverse.finish_step(*under_way, of_own, has_own=True)
        found = of_map(0, of_own) + found
        gradients = [of_own] if of_targets is None else [of_own, of_targets]
        return [self._of_x(gradients, maps) if needs[0] else None, *found]

    def _of_x(self, gradients: Sequence[Tensor], maps: Sequence[Map]) -> Tensor:
        """The gradient of x, block by block of rows, over the first of ``gradients`` (n, H*C) if x has as many columns."""
        first, width = gradients[0], maps[0][0].shape[0]
        out = first if first.shape[1] == width else self._empty(first.shape[0], width, first)
        size = block_size(_ROWS_AT_ONCE, out.shape[0])
        for at in range(0, out.shape[0], size):
            block, y = slice(at, at + size), None
            for each, (weight, _) in zip(gradients, maps, strict=True):
                y = matmul(operand(each[block], self.compute, out.shape[0]), weight.T, self._backend, plus=y)
            assert y is not None
            out[block] = y
        return out

    # -- one group of heads ---------------------------------------------------------------------------------------------

    def _work(self, like: Tensor) -> list[Tensor | None]:
        """Memory for three matrices (m, K), which all groups use in turn: that of one matrix (m, H*C), so that it can be of use
        for others later. For a single group, None."""
        width = self.heads[0] * self.heads[1]
        if len(self._groups) < 3:
            return [None] * 3
        whole = self._empty(self.csr.num_cols * len(self._groups), width // len(self._groups), like)
        return list(whole.split(self.csr.num_cols)[:3])

    def _times(self, x: Tensor, of_rows: Map, group: Group, out: Tensor) -> Tensor:
        """(n, K) columns of ``x @ weight + bias``, in ``out``."""
        weight, bias = of_rows
        mine = None if bias is None else bias[group.columns]
        return product_into(out, operand(x, self.compute), weight[:, group.columns], mine, self._backend)

    def _side(self, x: Tensor, maps: Sequence[Map], rows: Tensor, attend: Sequence[Tensor], group: Group) -> Tensor:
        """See :class:`Scores`."""
        if len(maps) == 1:
            return self.scores.side(rows, _of_group(attend, group))
        return self._times(x, maps[1], group, self._columns(x.shape[0], x))

    def _extended(self, x: Tensor, of_rows: Map, came: Tensor | None, group: Group, out: Tensor | None) -> Tensor:
        """(m, K) extended rows, in ``out`` or in new memory. came: (m - n, H*C) or None."""
        rows = self._columns(self.csr.num_cols, x) if out is None else out
        self._times(x, of_rows, group, rows[: x.shape[0]])
        if came is not None:
            rows[x.shape[0] :] = came[:, group.columns]
        return rows

    def _columns(self, rows: int, like: Tensor) -> Tensor:
        """New memory for (rows, K)."""
        return self._empty(rows, self.heads[0] * self.heads[1] // len(self._groups), like)

    def _came(self, form: Form, dtype: torch.dtype) -> Tensor:
        """The (m - n, H*C) rows of a message that has been kept."""
        tensors, make = form
        receive, width = self.halo.plan.receive, self.heads[0] * self.heads[1]
        rows = buffers.empty(receive.num_cols, width, dtype, receive.device).zero_()
        moves = Csr(receive.indptr[self.csr.num_rows :], receive.indices, receive.num_cols, check=False)
        moves.each_column_once = True
        self.halo.exchange.add_received(make(tensors), moves, rows)
        return rows

    def _weights(self, rows: Tensor, side: Tensor, attend: Sequence[Tensor], group: Group) -> tuple[Tensor, Tensor]:
        """(e, G) weights before dropout, and the scores."""
        scores = self.scores.of_edges(self.csr, rows, side, _of_group(attend, group))
        return edges.edge_softmax(self.csr, scores, self._backend), scores

    def _gradients(
        self, rows: Tensor, alpha: Tensor, dy: Tensor, group: Group, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The (m, K) gradient of the rows as summands, in ``out`` or in new memory, and the (e, G) gradient of the scores.
        dy: (n, K)."""
        of_weights = edges.sddmm(self.csr, dy, rows, "dot", alpha.shape[1], self._backend)
        of_weights = self._dropped(of_weights, group)
        of_scores = edges.edge_softmax_backward(self.csr, alpha, of_weights, self._backend)
        del of_weights
        transpose, weights = transposed_with(self.csr, self._dropped(alpha, group), self._backend)
        found = spmm(transpose, dy, weights, out=out, backend=self._backend, accumulate=False)
        return found, of_scores

    def _dropped(self, values: Tensor, group: Group) -> Tensor:
        """(e, G) weights, or gradients of dropped weights, after dropout. All heads draw at once, so that a draw does not depend
        on the groups."""
        if self.mask is None:
            return values
        if len(self._groups) == 1:
            return drop(values, self.mask, self._backend)
        ones = values.new_ones(1, 1).expand(values.shape[0], self.heads[0])
        return drop(ones, self.mask, self._backend)[:, group.heads].mul(values)

    def _copied(self, values: Tensor, group: Group, out: Tensor | None) -> Tensor:
        """The group's columns of (n, H*C), as (n, K)."""
        out = self._columns(values.shape[0], values) if out is None else out
        return out.copy_(values[:, group.columns])

    def _put(self, out: Tensor | None, group: Group, columns: Tensor) -> Tensor:
        """``columns`` (r, K) in their places of ``out`` (r, H*C), which is made if it is None."""
        if len(self._groups) == 1:
            return columns
        if out is None:
            out = self._empty(columns.shape[0], self.heads[0] * self.heads[1], columns)
        out[:, group.columns] = columns
        return out

    @staticmethod
    def _empty(rows: int, width: int, like: Tensor) -> Tensor:
        return buffers.empty(rows, width, like.dtype, like.device)


def _rows_of(work: Tensor | None, x: Tensor) -> Tensor | None:
    """The rows of ``work`` for those of x."""
    return None if work is None else work[: x.shape[0]]


def _of_group(attend: Sequence[Tensor], group: Group) -> list[Tensor]:
    return [each[group.heads] for each in attend]


def _maps(flat: Sequence[Any]) -> list[Map]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _opened(form: Form) -> list[Tensor]:
    """The tensors of a form."""
    tensors, make = form
    found: list[Tensor] = make(tensors)
    return found
