"""The pool of result memory: used again when nobody can see it any more, and not before."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from hpcgnn.kernels import Csr, buffers, spmm

ROWS, WIDTH = 1 << 12, 128  # 2 MiB in float32


@pytest.fixture
def pool():
    return buffers.BufferPool()


def test_memory_is_used_again_when_its_tensor_is_gone(pool):
    first = pool.empty(ROWS, WIDTH)
    address = first.data_ptr()
    second = pool.empty(ROWS, WIDTH)
    assert second.data_ptr() != address
    del first
    assert pool.free_bytes == ROWS * WIDTH * 4
    assert pool.empty(ROWS, WIDTH).data_ptr() == address


@pytest.mark.parametrize("keep", [lambda t: t[5:], lambda t: t.view(-1), lambda t: t.detach(), lambda t: t.numpy()])
def test_a_view_keeps_the_memory(pool, keep):
    tensor = pool.empty(ROWS, WIDTH).fill_(3)
    kept = keep(tensor)
    del tensor
    gc.collect()
    assert pool.free_bytes == 0
    pool.empty(ROWS, WIDTH).fill_(4)
    assert (kept == 3).all()


def test_autograd_keeps_what_backward_needs(pool):
    weight = torch.ones(WIDTH, requires_grad=True)
    loss = (pool.empty(ROWS, WIDTH).fill_(2) * weight).sum()
    pool.empty(ROWS, WIDTH).fill_(9)
    loss.backward()
    assert (weight.grad == 2 * ROWS).all()


def test_tensors_may_end_on_any_thread_and_in_a_garbage_collection(pool):
    def use() -> None:
        for _ in range(20):
            cycle: list = [pool.empty(ROWS, WIDTH)]
            cycle.append(cycle)
            gc.collect(0)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    gc.collect()
    assert 0 < pool.free_bytes <= 20 * 4 * ROWS * WIDTH * 4


def test_much_smaller_requests_do_not_take_a_large_buffer(pool):
    large = pool.empty(ROWS, WIDTH)
    del large
    small = pool.empty(ROWS // 2, WIDTH)
    assert pool.free_bytes == ROWS * WIDTH * 4
    del small
    pool.clear()
    assert pool.free_bytes == 0


def test_many_sizes_do_not_pile_up(pool):
    for rows in range(ROWS, 20 * ROWS, ROWS // 2):
        tensor = pool.empty(rows, WIDTH)
        del tensor
    assert pool.free_bytes <= 2 * 20 * ROWS * WIDTH * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
def test_types_and_alignment(pool, dtype):
    tensor = pool.empty(ROWS, 4 * WIDTH, dtype)
    assert tensor.dtype == dtype
    assert tensor.shape == (ROWS, 4 * WIDTH)
    assert tensor.data_ptr() % 4096 == 0


def test_results_come_from_the_pool_and_training_on_them_works():
    nodes = torch.arange(ROWS)
    csr = Csr(torch.arange(ROWS + 1), nodes, ROWS)
    x = torch.randn(ROWS, WIDTH)
    result = spmm(csr, x)
    address = result.data_ptr()
    assert torch.equal(result, x)
    del result
    assert spmm(csr, x).data_ptr() == address
