"""The pool of result memory: memory is reused when no tensor refers to it any more, and not before."""

from __future__ import annotations

import gc
import os
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.kernels import Csr, buffers, spmm

ROWS, WIDTH = 1 << 12, 128  # 2 MiB in float32


@pytest.fixture
def pool():
    return buffers.BufferPool()


def test_memory_is_used_again_when_its_tensor_is_gone():
    for rows in (ROWS // 2, ROWS // 2 + 7, ROWS, ROWS + 1, 2 * ROWS - 5):
        pool = buffers.BufferPool()
        first = pool.empty(rows, WIDTH)
        address = first.data_ptr()
        second = pool.empty(rows, WIDTH)
        assert second.data_ptr() != address
        del first
        assert pool.free_bytes >= rows * WIDTH * 4
        assert pool.empty(rows, WIDTH).data_ptr() == address


def test_a_forked_process_writes_into_its_own_copy(pool):
    tensor = pool.empty(ROWS, WIDTH).fill_(1)
    child = os.fork()
    if child == 0:
        tensor.numpy()[:] = 7
        os._exit(0)
    os.waitpid(child, 0)
    assert (tensor == 1).all()


def test_a_view_keeps_the_memory():
    kept = []
    weight = torch.ones(WIDTH, requires_grad=True)
    keepers = lambda t: t[5:], lambda t: t.view(-1), lambda t: t.detach(), lambda t: t.numpy()
    for keep in (*keepers, lambda t: (t * weight).grad_fn._saved_self):  # the last one: for the gradient of weight
        pool = buffers.BufferPool()
        kept.append((pool, keep(pool.empty(ROWS, WIDTH).fill_(3))))
    gc.collect()
    for pool, view in kept:
        assert pool.free_bytes == 0
        pool.empty(ROWS, WIDTH).fill_(4)
        assert (view == 3).all()


def test_autograd_adds_gradients_up_in_place(pool):
    """Gradients are added in memory of the pool, not in a new tensor whose pages would have to be mapped first."""

    class Use(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, gradient):
            dx = pool.empty(ROWS, WIDTH).fill_(1)
            addresses.append(dx.data_ptr())
            return dx

    addresses: list[int] = []
    x = torch.ones(ROWS, WIDTH, requires_grad=True)
    twice = 2 * x
    given = []
    twice.register_hook(lambda gradient: given.append((gradient.data_ptr(), float(gradient.mean()))))
    (Use.apply(twice) + Use.apply(twice)).backward()
    assert given == [(addresses[0], 2.0)]


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


STEPS = st.tuples(
    st.integers(1, 8),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int8]),
    st.none() | st.integers(0, 5),
)


@settings(deadline=None, max_examples=25)
@given(steps=st.lists(STEPS, min_size=3, max_size=12))
def test_no_two_tensors_share_memory_and_all_of_it_can_be_given_back(steps):
    """Any parts of free memory may be taken, and become free in any order. drop: a tensor that ends, if any."""
    pool, alive = buffers.BufferPool(), []
    for number, (rows, dtype, drop) in enumerate(steps):
        tensor = pool.empty(rows * ROWS, 4 * WIDTH, dtype)
        assert (tensor.dtype, tuple(tensor.shape), tensor.data_ptr() % 4096) == (dtype, (rows * ROWS, 4 * WIDTH), 0)
        tensor[::501] = number
        alive.append((number, tensor))
        del tensor
        if drop is not None:
            del alive[drop % len(alive)]
        assert all(bool((each[::501] == value).all()) for value, each in alive)
    in_use = sum(each.nbytes for _, each in alive)
    assert pool.held_bytes >= in_use + pool.free_bytes
    alive.clear()
    pool.clear()
    assert pool.held_bytes == 0, "parts that are not one buffer again would stay"


def test_many_sizes_do_not_pile_up(pool):
    for rows in range(ROWS, 20 * ROWS, ROWS // 2):
        tensor = pool.empty(rows, WIDTH)
        del tensor
    assert pool.free_bytes <= 2 * 20 * ROWS * WIDTH * 4


def test_results_come_from_the_pool_and_training_on_them_works():
    nodes = torch.arange(ROWS)
    csr = Csr(torch.arange(ROWS + 1), nodes, ROWS)
    x = torch.randn(ROWS, WIDTH)
    buffers.default_pool().clear()  # removes memory of other tests
    result = spmm(csr, x)
    address = result.data_ptr()
    assert torch.equal(result, x)
    del result
    assert spmm(csr, x).data_ptr() == address
