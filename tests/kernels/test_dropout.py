"""Keyed dropout: the same mask from every backend, independent of the distribution of nodes, and fair."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from under_test import BACKENDS, budget, numbers, seeds, widths

from hpcgnn.kernels import Csr, dropout, keyed
from hpcgnn.nn.dropout import DropoutKeys, KeyedDropout

KEY = keyed.derive_key(1, 2, 3)


@pytest.mark.parametrize("backend", BACKENDS)
@budget(30)
@given(
    rows=st.integers(0, 300),
    width=widths,
    dtype=st.sampled_from([torch.float32, torch.float64]),
    key=st.integers(0, 2**64 - 1),
    probability=st.sampled_from([0, 0.3, 0.9]),
    seed=seeds,
)
@example(rows=0, width=7, dtype=torch.float32, key=KEY, probability=0.3, seed=0)
@example(rows=300, width=1, dtype=torch.float32, key=KEY, probability=0, seed=0)
@example(rows=300, width=602, dtype=torch.float64, key=2**64 - 1, probability=0.3, seed=0)
def test_backends_agree_bit_for_bit(backend, rows, width, dtype, key, probability, seed):
    draw = numbers(seed)
    x, ids = draw(rows, width).to(dtype), (draw(rows).abs() * 2.0**58).long()
    found = dropout(x, ids, key, probability, backend=backend)
    assert torch.equal(found, dropout(x, ids, key, probability, backend="reference"))


def test_the_mask_follows_the_original_id():
    x, ids = torch.ones(100, 16), torch.arange(100)
    order = torch.randperm(100)
    assert torch.equal(dropout(x, ids, KEY, 0.5)[order], dropout(x, ids[order], KEY, 0.5))


def test_rate_and_scale():
    kept = dropout(torch.ones(4000, 50), torch.arange(4000), KEY, 0.3)
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    rate = (kept == 0).float().mean()
    # The standard deviation is 0.001 over 200,000 draws; rows and columns must be fair, too.
    assert abs(rate - 0.3) < 0.005
    assert ((kept == 0).float().mean(0) - 0.3).abs().max() < 0.04
    assert ((kept == 0).float().mean(1) - 0.3).abs().max() < 0.35


def test_epochs_layers_and_seeds_draw_anew():
    x, ids = torch.ones(200, 40), torch.arange(200)
    masks = [dropout(x, ids, keyed.derive_key(*words), 0.5) for words in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    for k, mask in enumerate(masks):
        for other in masks[k + 1 :]:
            assert 0.45 < (mask == other).float().mean() < 0.55


def test_backward_uses_the_same_mask():
    drop = KeyedDropout(DropoutKeys(torch.arange(20), seed=5), 0, 0.4)
    x = torch.randn(20, 6, requires_grad=True)
    y = drop(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)


def test_sparse_features_are_dropped_as_dense_ones():
    dense = torch.randn(30, 12) * (torch.rand(30, 12) < 0.3)
    csr = dense.to_sparse_csr()
    sparse = Csr(csr.crow_indices(), csr.col_indices(), 12, csr.values())
    drop = KeyedDropout(DropoutKeys(torch.arange(30) * 7), 2, 0.5)
    kept = drop(sparse)
    found = torch.sparse_csr_tensor(kept.indptr, kept.indices.long(), kept.weight, (30, 12)).to_dense()
    torch.testing.assert_close(found, drop(dense))
