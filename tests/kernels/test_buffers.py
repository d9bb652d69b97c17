"""The pool of result memory: memory is reused when no tensor refers to it any more, and not before."""

from __future__ import annotations

import gc
import itertools
import os
import re
import threading
from pathlib import Path

import pytest
import torch

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


def test_large_buffers_lie_in_huge_pages_where_the_system_gives_them(pool):
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists() or "[never]" in enabled.read_text():
        return  # nothing is guaranteed here
    tensor = pool.empty(16 * ROWS, WIDTH).fill_(1)
    found = re.search(
        rf"^{tensor.data_ptr():x}-.*?AnonHugePages: *(\d+)", Path("/proc/self/smaps").read_text(), re.M | re.S
    )
    assert found is None or int(found[1]) > 0  # None: the kernel merged it with a neighbour


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


def test_requests_take_parts_of_a_large_buffer_but_much_smaller_ones_do_not(pool):
    large = pool.empty(20 * ROWS, WIDTH)
    address = large.data_ptr()
    del large
    much_smaller = pool.empty(2 * ROWS, WIDTH)
    assert pool.free_bytes == 20 * ROWS * WIDTH * 4
    parts = [pool.empty(rows * ROWS, WIDTH) for rows in (5, 12, 3)]
    assert [part.data_ptr() - address for part in parts] == [0, 5 * ROWS * WIDTH * 4, 17 * ROWS * WIDTH * 4]
    assert pool.free_bytes == 0
    for number, part in enumerate(parts):
        part.fill_(number)
    assert [set(part.flatten().tolist()) for part in parts] == [{0.0}, {1.0}, {2.0}]
    assert much_smaller.data_ptr() not in range(address, address + 20 * ROWS * WIDTH * 4)


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_free_parts_become_one_buffer_again(order, pool):
    large = pool.empty(12 * ROWS, WIDTH)
    address = large.data_ptr()
    del large
    parts = [pool.empty(rows * ROWS, WIDTH) for rows in (3, 4, 5)]
    for each in order:
        parts[each] = None
    pool.clear()
    assert pool.held_bytes == 0  # parts that are not one would stay
    parts = [pool.empty(12 * ROWS, WIDTH)]
    address = parts[0].data_ptr()
    parts = []
    assert pool.empty(12 * ROWS, WIDTH).data_ptr() == address


def test_memory_of_which_a_part_is_used_stays(pool):
    whole = pool.empty(8 * ROWS, WIDTH)
    del whole
    part = pool.empty(3 * ROWS, WIDTH).fill_(7)
    pool.clear()
    assert pool.free_bytes == 5 * ROWS * WIDTH * 4
    pool.empty(5 * ROWS, WIDTH).fill_(1)
    assert (part == 7).all()


def test_many_sizes_do_not_pile_up(pool):
    for rows in range(ROWS, 20 * ROWS, ROWS // 2):
        tensor = pool.empty(rows, WIDTH)
        del tensor
    assert pool.free_bytes <= 2 * 20 * ROWS * WIDTH * 4


def test_types_and_alignment(pool):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int8):
        tensor = pool.empty(ROWS, 4 * WIDTH, dtype)
        assert tensor.dtype == dtype
        assert tensor.shape == (ROWS, 4 * WIDTH)
        assert tensor.data_ptr() % 4096 == 0


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
