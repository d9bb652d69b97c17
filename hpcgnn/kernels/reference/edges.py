"""See :mod:`hpcgnn.kernels.edges`."""

from __future__ import annotations

import torch

from hpcgnn.kernels.csr import Csr

# Products for the gradient of a maximum are made for this many entries at a time.
_ENTRIES_AT_ONCE = 1 << 16


def sddmm(csr: Csr, a: torch.Tensor, b: torch.Tensor | None, op: str, heads: int, out: torch.Tensor) -> None:
    """Write ``op`` of row r of ``a`` and row c of ``b`` to ``out`` for each entry (r, c); ``left`` is ``a`` alone."""
    left = a[csr.entry_rows()]
    if b is None:
        out.copy_(left)
    elif op == "add":
        torch.add(left, b[csr.indices.long()], out=out)
    else:
        products = left * b[csr.indices.long()]
        out.copy_(products.view(csr.num_entries, heads, a.shape[1] // heads).sum(2))


def edge_softmax(csr: Csr, scores: torch.Tensor, out: torch.Tensor) -> None:
    """Write the softmax over each row's entries of ``scores`` (entries, H) to ``out``."""
    rows = csr.entry_rows()
    top = scores.new_full((csr.num_rows, scores.shape[1]), -torch.inf)
    top.scatter_reduce_(0, rows[:, None].expand_as(scores), scores, "amax")
    top[top == -torch.inf] = 0
    values = torch.exp(scores - top[rows])
    total = scores.new_zeros(top.shape).index_add_(0, rows, values)
    total[total == 0] = 1
    torch.div(values, total[rows], out=out)


def edge_softmax_backward(csr: Csr, alpha: torch.Tensor, gradient: torch.Tensor, out: torch.Tensor) -> None:
    """Write ``alpha * (gradient - the row's sum of alpha * gradient)``, all (entries, H), to ``out``."""
    rows = csr.entry_rows()
    total = alpha.new_zeros(csr.num_rows, alpha.shape[1]).index_add_(0, rows, alpha * gradient)
    torch.mul(alpha, gradient - total[rows], out=out)


def edge_sum(csr: Csr, values: torch.Tensor, out: torch.Tensor) -> None:
    """Write the sum of each row's entries of ``values`` (entries, F) to ``out`` (R, F)."""
    out.zero_().index_add_(0, csr.entry_rows(), values)


def max_shares(
    csr: Csr,
    weight: torch.Tensor | None,
    x: torch.Tensor,
    z: torch.Tensor,
    gradient: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write ``gradient`` over the number of the row's entries that attain the maximum ``z``, all (R, F), to ``out``."""
    rows, columns = csr.entry_rows(), csr.indices.long()
    out.zero_()
    for part in _parts(csr):
        attains = _weighted(x[columns[part]], weight, part) == z[rows[part]]
        out.index_add_(0, rows[part], attains.to(x.dtype))
    out.copy_(torch.where(out > 0, gradient / out, 0))


def max_backward(
    transpose: Csr,
    weight: torch.Tensor | None,
    x: torch.Tensor,
    z: torch.Tensor,
    shares: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write the gradient of ``x`` (C, F) to ``out``, from :func:`max_shares`; ``weight`` is in the transpose's order."""
    sources, rows = transpose.entry_rows(), transpose.indices.long()
    out.zero_()
    for part in _parts(transpose):
        attains = _weighted(x[sources[part]], weight, part) == z[rows[part]]
        values = _weighted(shares[rows[part]], weight, part)
        out.index_add_(0, sources[part], torch.where(attains, values, 0))


def max_weight_backward(
    csr: Csr, weight: torch.Tensor, x: torch.Tensor, z: torch.Tensor, shares: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the gradient of ``weight`` (entries, H) to ``out``, from :func:`max_shares`."""
    rows, columns = csr.entry_rows(), csr.indices.long()
    for part in _parts(csr):
        values = x[columns[part]]
        attains = _weighted(values, weight, part) == z[rows[part]]
        products = torch.where(attains, shares[rows[part]] * values, 0)
        out[part] = products.view(products.shape[0], weight.shape[1], x.shape[1] // weight.shape[1]).sum(2)


def _parts(csr: Csr) -> list[slice]:
    return [slice(first, first + _ENTRIES_AT_ONCE) for first in range(0, csr.num_entries, _ENTRIES_AT_ONCE)]


def _weighted(values: torch.Tensor, weight: torch.Tensor | None, part: slice) -> torch.Tensor:
    """(entries of the part, F) values times the weight of their head."""
    if weight is None:
        return values
    return values * weight[part].repeat_interleave(values.shape[1] // weight.shape[1], dim=1)
