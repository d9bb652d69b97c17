"""Random draws of a model's own code: ranks draw different numbers for their rows, also after ``torch.manual_seed`` with the same
seed, and the same ones for anything else, such as a vector of the whole graph or a choice between branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels.keyed import derive_key


@contextmanager
def draws_of_rank(graph: LocalGraph) -> Iterator[None]:
    """In this context, torch's global generators are seeded from their next number and from the rank; then they go on as if
    they had drawn only that one. With one rank nothing changes.
    """
    if graph.world.size == 1:
        yield
        return
    number = int(torch.randint(2**62, (), dtype=torch.int64))
    with seeded(graph, derive_key(number, graph.world.rank)):
        yield


@contextmanager
def seeded(graph: LocalGraph, key: int) -> Iterator[None]:
    """In this context, torch's global generators begin from ``key``, a 64-bit number."""
    generators = [torch.default_generator]
    if graph.device.torch_device.type == "cuda":
        generators.append(torch.cuda.default_generators[graph.device.torch_device.index or 0])
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(key >> 1)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
