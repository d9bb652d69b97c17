"""The modules that a rank imports, and the memory that it holds when there are many ranks."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch

import hpcgnn
from hpcgnn.data import plan_pieces, plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.exchange import Messages
from hpcgnn.kernels import resolve
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.train.run_config import RunConfig
from hpcgnn.world.placement import RANKS_PER_NODE
from hpcgnn.world.thread_world import Meeting, ThreadWorld, on_threads

RANKS = (4, 8, 24)
NODES = 8  # nodes of a rank, each with an edge from the part before and the part after its own
SETTINGS = {
    "exact": {},
    "two bits": {"bits": "2"},
    "differences": {"bits": "2", "message_coding": "delta", "dropout": 0.0},
    "adaqp": {"bits": "adaqp"},
    "sylvie": {"bits": "sylvie", "staleness": "sylvie"},
    "pipeqs": {"staleness": "pipeqs"},
    "attention": {"model": "gat", "heads": 2},
    "nodes": {"node_aware": "on"},
}
# Each of these modules takes megabytes and tenths of a second on each rank.
NEEDLESS = {"scipy", "numba", "networkx", "sklearn", "matplotlib", "pandas", "torch_geometric", "triton", "sympy"}
NEEDLESS |= {"torch._dynamo", "torch._inductor"}
TRAIN = """
import json, sys
from hpcgnn.cli.main import main
sys.argv = ["hpcgnn", "train", *sys.argv[1:], "--epochs", "2", "--quiet"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.slow
@pytest.mark.mpi
def test_a_rank_imports_nothing_that_its_training_does_not_need(tmp_path):
    path = tmp_path / "parts.h5"
    graph = small_graphs.random_multigraph()
    small_graphs.write_parts(path, graph, np.zeros(graph.num_nodes, np.int64), 1)
    with PartsFile(path) as parts:  # with a plan, as `hpcgnn partition` writes it
        plan_pieces.make(parts, "hybrid", tmp_path, 0)
    plan_store.add_plan(path, "hybrid", tmp_path)
    command = [sys.executable, "-c", TRAIN, str(path), "--out", str(tmp_path / "run")]
    modules = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert "torch" in modules
    # Without a compiler, numba provides the kernels.
    needless = NEEDLESS if resolve() == "native" else NEEDLESS - {"numba"}
    assert needless & set(modules) == set()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0 < summary["private_memory_bytes_per_rank"] <= summary["peak_memory_bytes_per_rank"]
    assert 0 < summary["startup_seconds"] < 600


_OF_ALL = (ModuleType, type, FrameType, BuiltinFunctionType, torch.dtype, torch.device)


def held_bytes(thing: Any, *, without: tuple[type, ...] = ()) -> int:
    """The bytes that can be reached from ``thing``, each counted once, without code and objects of types in ``without``."""
    seen: dict[int, Any] = {}  # keeps the objects alive: the id of a freed object could be reused
    memory: dict[int, int] = {}  # arrays and tensors by address, because several may be views of the same memory
    tables, left = 0, [thing]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, (*_OF_ALL, *without)):
            continue
        seen[id(each)] = each
        if isinstance(each, FunctionType):
            left += [each.__closure__, each.__defaults__]
        elif isinstance(each, torch.Tensor):
            storage = each.untyped_storage()
            memory[storage.data_ptr()] = max(memory.get(storage.data_ptr(), 0), storage.nbytes())
            left += [each.grad] if each.is_leaf else []
        elif isinstance(each, np.ndarray):
            if each.base is None:
                memory[each.ctypes.data] = max(memory.get(each.ctypes.data, 0), each.nbytes)
            left.append(each.base)
        else:
            tables += sys.getsizeof(each)
            left += gc.get_referents(each)
    return tables + sum(memory.values())


def ring(path: Path, parts: int) -> Path:
    """A parts file in which every rank has the same work and the same number of partners, whatever the number of ranks."""
    nodes = NODES * parts
    node = np.arange(nodes)
    edges = np.stack((np.concatenate(((node + NODES) % nodes, (node - NODES) % nodes)), np.tile(node, 2)))
    graph = replace(small_graphs.even_graph(nodes, 1), edge_index=edges)
    small_graphs.write_parts(path, graph, node // NODES, parts)
    return path


def held_by_a_rank(path: Path, parts: int, settings: dict[str, Any]) -> int:
    """The bytes held after two epochs by rank 0 or by a typical rank, whichever holds more."""
    config = RunConfig.from_settings({"layers": 2, "hidden": 8, "epochs": 3, "eval_every": 1} | settings)
    costs = LinkCosts({"node": 1e-9, "network": 1e-8}, {"node": 1e-6, "network": 1e-5})

    def program(world: ThreadWorld) -> int:
        graph = hpcgnn.load(path, world)
        messages = Messages(world, config.messages)
        model = hpcgnn.build_model(config.model, graph, messages=messages, compute="float32")
        trainer = hpcgnn.Trainer(model, graph, config.train, measure_costs=lambda: costs)
        for _ in range(2):
            trainer.run_epoch()
        messages.drain()
        # Without the objects through which all ranks of a process meet.
        return held_bytes(trainer, without=(Meeting,)) if world.rank in (0, parts // 2) else 0

    return max(on_threads(parts, program))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("exact", "nodes") else pytest.mark.slow) for name in SETTINGS]
)
def test_what_a_rank_holds_grows_no_faster_than_there_are_ranks(tmp_path, monkeypatch, name):
    if name == "nodes":
        monkeypatch.setenv(RANKS_PER_NODE, "2")
    held = [held_by_a_rank(ring(tmp_path / f"{parts}.h5", parts), parts, SETTINGS[name]) for parts in RANKS]
    few, many = np.diff(held) / np.diff(RANKS)
    assert 0 < many < 2 * max(few, 100), held  # quadratic growth would make it 2.7 times as steep
    assert many < 4096, held  # 32 MiB with 8,192 ranks


def collectives_to_the_first_epoch(path: Path, parts: int) -> list[int]:
    """The number of collective calls that each rank makes from reading its part to the end of its first epoch."""
    config = RunConfig.from_settings({"layers": 2, "hidden": 8, "epochs": 1})

    def program(world: ThreadWorld) -> int:
        calls = 0
        shared = world._shared

        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return shared(*arguments)

        world._shared = counted  # type: ignore[assignment,method-assign]
        graph = hpcgnn.load(path, world)
        messages = Messages(world, config.messages)
        model = hpcgnn.build_model(config.model, graph, messages=messages, compute="float32")
        hpcgnn.Trainer(model, graph, config.train).run_epoch()
        messages.drain()
        return calls

    return on_threads(parts, program)


def test_a_start_makes_as_many_collective_calls_at_any_number_of_ranks(tmp_path):
    # From 8 ranks on, each exchanges rows with fewer than half of the others, so neighbourhood collectives are tried.
    counts = {}
    for parts in (8, 24):
        counts[parts] = collectives_to_the_first_epoch(ring(tmp_path / f"{parts}.h5", parts), parts)
    assert len({*counts[8], *counts[24]}) == 1, counts


def test_what_an_object_holds():
    array = np.zeros(1000)
    assert held_bytes({"a": array, "b": array[10:], "c": [array]}) == pytest.approx(8000, abs=1000)
    assert held_bytes(lambda: array.sum()) == pytest.approx(8000, abs=1000)
