"""Attention over a whole halo as one step forward and one backward, by groups of heads.

A head reads only its own columns of the transformed rows, so one group of heads after the other is computed, forward and
backward: transformed rows, weights of edges, and their gradients exist for one group at a time, and the gradient of transformed
rows is written over that of the result if nothing else uses that. With ``--activations recompute`` the rows and weights of a
group are made again in backward, from the layer's input and from the bytes that had arrived; otherwise they are kept. Both ways
make the same calls, so their bits are equal.

In 8-bit integers (:mod:`hpcgnn.nn.int8`), codes are kept in place of floats: those of the layer's input, and those of the rows
that the sums read. GATv2's scores need rows as floats, which are made again in backward. The gradient of a group's result is
quantized once for the sums that read it. Noise is a function of the pass and the group, so it can be drawn again.

Shapes: n owned nodes, m extended rows (:mod:`hpcgnn.nn.halo`), e edges, H heads, C columns of a head; in a group of heads,
G heads with K = G*C columns. x is (n, F).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import Csr, buffers, dense, edges, int8, keyed, pack_bf16
from hpcgnn.kernels.activation import DropoutMask, column_sums, drop
from hpcgnn.kernels.autograd import Gradients, end_sums, may_overwrite, recorded, tracked, transposed_with
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.int8_autograd import vector_gradient
from hpcgnn.kernels.quantizer import Quantizer
from hpcgnn.kernels.sizes import block_size, scaled
from hpcgnn.kernels.spmm import spmm
from hpcgnn.nn.activations import Activations, Form, opened, save, saved
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.config import FLOAT32
from hpcgnn.nn.edge_blocks import JointScores
from hpcgnn.nn.int8 import Int8, Int8Factor
from hpcgnn.nn.linear import Compute, matmul, operand, product_into, weight_gradient
from hpcgnn.nn.linear_map import gathers_bf16, rounds_sums

# A group of heads has at least so many columns, a quarter of a page of memory; small graphs have one group, because each costs
# calls of kernels.
_LEAST_COLUMNS, _LEAST_VALUES = 64, 1 << 22
_ROWS_AT_ONCE = 1 << 13


Map = tuple[Tensor, Tensor | None]
Given = Tensor | Int8Factor  # the input of a layer (n, F), as its products read it
Gathered = Tensor | Int8Rows  # extended rows (m, K), as sums over edges read them


@dataclass(frozen=True)
class GATScores:
    """``LeakyReLU(a_t · row_i + a_s · row_j)``; attend: a_s and a_t, (G, C) each. side: both products (m, 2 G), which
    :meth:`side` makes of the extended rows (m, K), and which are kept."""

    slope: float
    backend: str

    def side(self, rows: Tensor, attend: Sequence[Tensor]) -> Tensor:
        """The values of nodes from which scores are made, where there is no second map."""
        return dense.run_product(dense.kernels_for(rows, self.backend), rows, _by_head(attend), None, None, "float32")

    def of_edges(self, csr: Csr, rows: Tensor, side: Tensor, attend: Sequence[Tensor]) -> Tensor:
        """(e, G) scores."""
        return F.leaky_relu_(self._sums(csr, side), self.slope)

    def _sums(self, csr: Csr, side: Tensor) -> Tensor:
        source, target = side.tensor_split(2, 1)
        return edges.sddmm(csr, target[: csr.num_rows], source, "add", backend=self.backend)

    def gradients(
        self, csr: Csr, rows: Any, side: Tensor, attend: Sequence[Tensor], of_scores: Tensor, of_rows: Tensor
    ) -> tuple[None, list[Tensor]]:  # fmt: skip
        """Add the gradient of ``rows``, maybe integers, to ``of_rows``; return that of rows of targets, if they have a map, and
        those of ``attend``. of_scores: (e, G), which may be overwritten."""
        sums = self._sums(csr, side)
        of_sums = torch.ops.aten.leaky_relu_backward(of_scores, sums, self.slope, False, grad_input=of_scores)
        del sums
        of_targets, of_sources = end_sums(csr, of_sums, (True, True), self.backend)
        assert of_targets is not None
        assert of_sources is not None
        both = torch.cat((of_sources, torch.zeros_like(of_sources)), 1)
        both[: csr.num_rows, attend[0].shape[0] :] = of_targets
        kernels, by_head = dense.kernels_for(of_rows, self.backend), _by_head(attend)
        dense.run_product(kernels, both, by_head.T, None, of_rows, "float32")
        if isinstance(rows, Int8Rows):
            parts = zip(both.tensor_split(2, 1), attend, strict=True)
            return None, [vector_gradient(rows, each.contiguous(), like, self.backend) for each, like in parts]
        found = dense.run_weight_gradient(kernels, rows, both)[0]
        heads, width = attend[0].shape
        by_part = found.view(heads, width, 2, heads).diagonal(dim1=0, dim2=3)  # (C, 2, G)
        return None, [each.T.contiguous() for each in by_part.unbind(1)]


@dataclass(frozen=True)
class GATv2Scores:
    """``a · LeakyReLU(target_i + row_j + e_ij W_e)``; attend: a (G, C), and maybe W_e (G, D, C). side: rows of targets (n, K), by
    the second map. values: (e, D) features of the edges, or None."""

    slope: float
    backend: str
    values: Tensor | None

    def side(self, rows: Tensor, attend: Sequence[Tensor]) -> Tensor:
        """Nothing: rows of targets have a map of their own."""
        raise NotImplementedError

    def of_edges(self, csr: Csr, rows: Tensor, side: Tensor, attend: Sequence[Tensor]) -> Tensor:
        """See :meth:`GATScores.of_edges`."""
        return self._joint(csr).of_edges(side, rows, attend[0], self._of_edges(attend))

    def gradients(
        self, csr: Csr, rows: Any, side: Tensor, attend: Sequence[Tensor], of_scores: Tensor, of_rows: Tensor
    ) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
        """See :meth:`GATScores.gradients`; rows are floats."""
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


Scores = GATScores | GATv2Scores


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
    dropout, or None. mask: of dropout of the weights. compute: the arithmetic of the products with x and of sums over edges.
    """

    halo: Aggregator
    csr: Csr
    heads: tuple[int, int]
    scores: Scores
    compute: Compute
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
            # codes are a quarter of the bytes, and calls cost as much
            least = _LEAST_COLUMNS * (2 if self._weighs_int8 else 1)
            sizes = (each for each in range(1, heads) if heads % each == 0 and each * width >= least)
            size = next(sizes, heads)
        return [Group(slice(at, at + size), slice(at * width, (at + size) * width)) for at in range(0, heads, size)]

    def _run(self, num_maps: int, keeps: bool, ctx: Any, x: Tensor, bias: Tensor | None, *parameters: Any) -> Tensor:
        maps, attend, given = _maps(parameters[:num_maps]), parameters[num_maps:], self._given(x)
        repeats_rows = self.activations.repeats or (isinstance(self.compute, Int8) and num_maps > 2)
        extended, repeats = self._exchanged(given, maps, x, repeats=keeps and repeats_rows)
        forms: list[Form] = [] if repeats is None else [repeats]
        weights, y, is_narrow, weighs_int8 = [], None, num_maps == 2, self._weighs_int8
        holds_rows = keeps and repeats is None and not (is_narrow and weighs_int8)
        work = self._work(x, 1 if holds_rows or weighs_int8 else 2)
        for group in self._groups:
            rows = None if extended is None else extended[:, group.columns].contiguous()
            if rows is None:
                rows = self._extended(given, maps, None, group, None if holds_rows else work[-1], x)
            side = self._side(given, maps, rows, attend, group)
            alpha, scores = self._weights(rows, side, attend, group)
            del scores
            if self.note is not None:
                weights.append(alpha)
            dropped, gathered = self._dropped(alpha, group), self._gathered(rows, group)
            sums = self._sums(self.csr, gathered, dropped, _rows_of(work[0], x))
            narrow = [side] if is_narrow else []
            if keeps and repeats is None:
                forms.append(self.activations.form(_tensors(gathered) if is_narrow else [rows, side], list))
                forms.append(([alpha, *narrow], list))
            elif keeps:
                forms.append(([*narrow, *([] if self.activations.repeats else [alpha])], list))
            y = self._put(y, group, sums)
            del rows, side, narrow, alpha, dropped, gathered, sums
        del work
        if self.note is not None:
            self.note(torch.cat(weights, 1))
        assert y is not None
        integers = _tensors(given.integers) if isinstance(given, Int8Factor) else []
        save(ctx, [None if integers else x, bias, *parameters], [(integers, list), *forms])
        ctx.repeats, ctx.num_maps = repeats is not None, num_maps
        return y if bias is None else y.add_(bias)

    def _exchanged(
        self, given: Given, maps: Sequence[Map], like: Tensor, *, repeats: bool
    ) -> tuple[Tensor | None, Form | None]:
        """The (m, H*C) extended rows, or None for a rank that is alone; and the form in which rows that came are kept, or None if
        backward cannot make them again, or should not. Collective."""
        halo, num_owned = self.halo, self.csr.num_rows
        if not self._travels:
            return None, ([], list) if repeats else None
        extended = self._empty(self.csr.num_cols, self.heads[0] * self.heads[1], like)
        own = extended[:num_owned]
        for group in self._groups:
            self._times(given, maps, 0, group, own[:, group.columns])
        extended[num_owned:] = 0
        _, message = halo.start_step(own, is_temporary=True)
        extended = halo.finish_step(own, message, extended, has_own=True)
        return extended, halo.kept(message) if repeats else None

    @property
    def _travels(self) -> bool:
        """Return whether there are other ranks. Gradients of copies are floats in each arithmetic."""
        return self.halo.reverse.overlaps()

    def _back(self, ctx: Any, dy: Tensor) -> Gradients:
        needs, overwrites = ctx.needs_input_grad[2:], may_overwrite(ctx)
        (x, _, *parameters), forms = saved(ctx)
        maps, attend = _maps(parameters[: ctx.num_maps]), parameters[ctx.num_maps :]
        given = self._factor(Int8Rows(*integers)) if (integers := opened(forms.pop(0))) else x
        message = forms.pop(0) if ctx.repeats else None
        came = self._came(message, dy.dtype) if message is not None and self._travels else None
        del message, x, integers
        dy = dy.contiguous()
        dbias = column_sums(dy, self._backend).to(dy.dtype) if needs[1] else None
        of_rows = dy if overwrites and self.csr.num_cols == dy.shape[0] else None
        of_targets, of_attend, work = None, [], self._work(dy, 1 + (not self._weighs_int8) + self._needs_rows(ctx))
        for group in self._groups:
            rows, gathered, side, alpha = self._again(ctx, forms, given, maps, attend, came, group, work[-1], dy)
            mine = dy if len(self._groups) == 1 else self._copied(dy, group, _rows_of(work[not self._weighs_int8], dy))
            found, of_scores = self._gradients(gathered, alpha, mine, group, work[0])
            del alpha, mine
            found_targets, found_attend = self.scores.gradients(
                self.csr,
                gathered if len(maps) == 1 else rows,
                side,
                _of_group(attend, group),
                of_scores,
                found,
            )
            del rows, gathered, side, of_scores
            of_attend.append(found_attend)
            of_rows = self._put(of_rows, group, found)
            if found_targets is not None:
                of_targets = self._put(of_targets, group, found_targets)
            del found, found_targets
        del came, dy, work
        assert of_rows is not None
        rest = self._of_maps(given, maps, of_rows, of_targets, needs)
        return rest[0], dbias, *rest[1:], *(torch.cat(each) for each in zip(*of_attend, strict=True))

    def _needs_rows(self, ctx: Any) -> bool:
        """Return whether backward makes rows again, and reads them as floats after their codes."""
        return ctx.repeats and not (self._weighs_int8 and ctx.num_maps == 2)

    def _again(
        self, ctx: Any, forms: list[Form], given: Given, maps: Sequence[Map], attend: Sequence[Tensor],
        came: Tensor | None, group: Group, out: Tensor | None, like: Tensor,
    ) -> tuple[Tensor | None, Gathered, Tensor, Tensor]:  # fmt: skip
        """A group's rows, if they are needed as floats; these as sums read them; its side and weights. They were kept, or are
        made again."""
        is_narrow, kept = len(maps) == 1, opened(forms.pop(0))
        if ctx.repeats:
            rows = self._extended(given, maps, came, group, out, like)
            side = kept[0] if is_narrow else self._side(given, maps, rows, attend, group)
            alpha = self._weights(rows, side, attend, group)[0] if self.activations.repeats else kept[-1]
            return rows if self._needs_rows(ctx) else None, self._gathered(rows, group), side, alpha
        alpha, *narrow = opened(forms.pop(0))
        if not is_narrow:
            rows, side = kept
            return rows, self._gathered(rows, group), side, alpha
        return None, kept[0] if len(kept) == 1 else Int8Rows(*kept), narrow[0], alpha

    def _of_maps(
        self, given: Given, maps: Sequence[Map], of_rows: Tensor, of_targets: Tensor | None, needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """The gradient of x, and those of the maps' weights and biases, from those of extended rows (m, H*C), whose memory is
        used, and of targets' rows (n, H*C). Collective."""
        num_owned, under_way, reverse = self.csr.num_rows, None, self.halo.reverse
        read = operand(given, self._floats) if isinstance(given, Tensor) else given
        if self._travels:
            under_way = reverse.start_step(of_rows, is_temporary=True)

        def of_map(number: int, dy: Tensor) -> list[Tensor | None]:
            of_weight, of_bias = needs[2 + 2 * number : 4 + 2 * number]
            sums = column_sums(dy, self._backend).to(dy.dtype) if of_bias else None
            return [weight_gradient(read, dy, self._backend) if of_weight else None, sums]

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

    def _work(self, like: Tensor, count: int) -> list[Tensor | None]:
        """Memory for so many matrices (m, K), which all groups use in turn; for a single group, None. Sums that read integers may
        be written over the floats."""
        if len(self._groups) == 1:
            return [None] * count
        return list(self._columns(count * self.csr.num_cols, like).split(self.csr.num_cols))

    @property
    def _floats(self) -> str:
        """The arithmetic of products that are not in integers."""
        return self.compute if isinstance(self.compute, str) else FLOAT32

    def _given(self, x: Tensor) -> Given:
        compute = self.compute
        if isinstance(compute, Int8) and compute.multiplies(x.shape[0], x.shape[1], self.heads[0] * self.heads[1]):
            return self._factor(compute.quantizer.fresh(x))
        return x

    def _factor(self, rows: Int8Rows) -> Int8Factor:
        assert isinstance(self.compute, Int8)
        return Int8Factor(rows, self.compute.quantizer)

    @cached_property
    def _weighs_int8(self) -> bool:
        """Return whether sums over edges read 8-bit integers, forward and backward."""
        heads, width = self.heads
        return isinstance(self.compute, Int8) and self.compute.weighs(self.csr, heads * width, heads)

    @cached_property
    def _key(self) -> int:
        """The key of the noise that can be drawn again."""
        assert isinstance(self.compute, Int8)
        return self.compute.quantizer.next_key() or 0

    def _noise(self, group: Group, number: int) -> Quantizer:
        """The quantizer of a group's rows (number 0), or of its columns of a map's weight (1, 2)."""
        assert isinstance(self.compute, Int8)
        return self.compute.quantizer.repeatable(keyed.derive_key(self._key, group.heads.start, number))

    def _gathered(self, rows: Tensor, group: Group) -> Gathered:
        """The rows (m, K) as sums over edges read them."""
        return self._noise(group, 0).fresh(rows) if self._weighs_int8 else rows

    def _sums(self, csr: Csr, rows: Gathered, weights: Tensor | None, out: Tensor | None) -> Tensor:
        """Weighted sums of rows of K columns, in ``out`` or in new memory; of bfloat16 rows, where that is faster."""
        scale = rows.scale if isinstance(rows, Int8Rows) else None
        if isinstance(rows, Int8Rows):
            rows = rows.codes
        elif rows.dtype == torch.float32 and rounds_sums(self.compute, self._backend, rows.device):
            rows = pack_bf16(rows, backend=self._backend) if gathers_bf16(csr, rows.shape[1]) else rows
        return spmm(csr, rows, weights, scale=scale, out=out, backend=self._backend, accumulate=False)

    def _times(self, given: Given, maps: Sequence[Map], number: int, group: Group, out: Tensor) -> Tensor:
        """(n, K) columns of ``x @ weight + bias``, in ``out``."""
        weight, bias = maps[number]
        mine = None if bias is None else bias[group.columns]
        if isinstance(given, Int8Factor):
            factor = Int8Factor(given.integers, self._noise(group, 1 + number))
            return product_into(out, factor, weight[:, group.columns], mine, self._backend)
        return product_into(out, operand(given, self._floats), weight[:, group.columns], mine, self._backend)

    def _side(self, given: Given, maps: Sequence[Map], rows: Tensor, attend: Sequence[Tensor], group: Group) -> Tensor:
        """The ``side`` of :attr:`scores`."""
        if len(maps) == 1:
            return self.scores.side(rows, _of_group(attend, group))
        return self._times(given, maps, 1, group, self._columns(self.csr.num_rows, rows))

    def _extended(
        self, given: Given, maps: Sequence[Map], came: Tensor | None, group: Group, out: Tensor | None, like: Tensor
    ) -> Tensor:
        """(m, K) extended rows, in ``out`` or in new memory. came: (m - n, H*C) or None."""
        num_owned, rows = self.csr.num_rows, self._columns(self.csr.num_cols, like) if out is None else out
        self._times(given, maps, 0, group, rows[:num_owned])
        if came is not None:
            rows[num_owned:] = came[:, group.columns]
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
        self, rows: Gathered, alpha: Tensor, dy: Tensor, group: Group, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The (m, K) gradient of the rows as summands, in ``out`` or in new memory, and the (e, G) gradient of the scores.
        dy: (n, K)."""
        given: Gathered = dy
        if isinstance(rows, Int8Rows):
            assert isinstance(self.compute, Int8)
            given = self.compute.quantizer.fresh(dy)  # once for both
            of_weights = int8.sddmm(self.csr, given, rows, alpha.shape[1], self._backend)
        else:
            of_weights = edges.sddmm(self.csr, dy, rows, "dot", alpha.shape[1], self._backend)
        of_weights = self._dropped(of_weights, group)
        of_scores = edges.edge_softmax_backward(self.csr, alpha, of_weights, self._backend)
        del of_weights
        transpose, weights = transposed_with(self.csr, self._dropped(alpha, group), self._backend)
        return self._sums(transpose, given, weights, out), of_scores

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


def _tensors(rows: Gathered) -> list[Tensor]:
    return [rows] if isinstance(rows, Tensor) else [rows.codes, rows.scale]
