"""Run under mpirun: train every case on P ranks and compare with single-process PyG; rank 0 writes a JSON report.

usage: equivalence.py REPORT.json WORKFOLDER [CORA.npz]
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyg_models
import pyg_reference
import small_graphs

import hpcgnn
from hpcgnn.comm import Exchange, MpiWorld, World
from hpcgnn.comm.mailbox import Message
from hpcgnn.data import plan_store
from hpcgnn.graph import LocalGraph
from hpcgnn.nn import GraphModel, make_aggregator
from hpcgnn.node_order import METHODS
from hpcgnn.plan import STRATEGIES

EPOCHS, LR = 20, 0.01
# Of the weights. With some seeds a value comes so close to ReLU's kink that float32 and float64 take different sides of it.
SEED = 1
FEW_EPOCHS = 5  # to compare runs of ours with each other, which would differ from the first epoch on
RANDOM_GRAPHS = ("multigraph", "weighted")  # where the last of three or more ranks is empty
ORDERED = ("gcn-dropout", "sage-batch-norm")  # models that are trained in each node order
PRECISIONS = {"float32": (torch.float32, "auto"), "float64": (torch.float64, "reference")}
CONFIGS = {
    "gcn": hpcgnn.ModelConfig(model="gcn", layers=2, hidden=16, dropout=0.0, norm="layer"),
    "sage": hpcgnn.ModelConfig(model="sage", layers=3, hidden=12, dropout=0.0, norm="none"),
    "sage-batch-norm": hpcgnn.ModelConfig(model="sage", layers=3, hidden=12, dropout=0.0, norm="batch"),
    "gcn-dropout": hpcgnn.ModelConfig(model="gcn", layers=2, hidden=16, dropout=0.5, input_dropout=0.3, norm="none"),
    "sage-dropout": hpcgnn.ModelConfig(model="sage", layers=2, hidden=16, dropout=0.5, input_dropout=0.3),
}


@dataclass
class Case:
    """One graph on disk and in memory."""

    name: str
    arrays: small_graphs.Arrays
    path: Path


def make_cases(world: World, folder: Path, cora: Path | None) -> list[Case]:
    """Write one parts.h5 per graph; the random one leaves the last of three or more ranks empty."""
    graphs = {
        "multigraph": small_graphs.random_multigraph(),
        "weighted": small_graphs.random_multigraph(weighted=True),
    }
    if cora is not None:
        graphs["cora"] = small_graphs.from_npz(cora)
    cases = []
    cut = small_graphs.random_multigraph(seed=2)
    graphs["cut"] = small_graphs.without_local_edges(cut, small_graphs.random_parts(cut.num_nodes, world.size))
    for name, arrays in graphs.items():
        path = folder / f"{name}-{world.size}.h5"
        if world.rank == 0:
            empty = world.size - 1 if world.size >= 3 and name in RANDOM_GRAPHS else None
            part = small_graphs.random_parts(arrays.num_nodes, world.size, empty=empty)
            small_graphs.write_parts(path, arrays, part, world.size)
        world.allreduce(np.zeros(1))  # the file is there
        cases.append(Case(name, arrays, path))
    return cases


def run(
    graph: LocalGraph, model: GraphModel, epochs: int = EPOCHS
) -> tuple[list[float], dict[str, np.ndarray], np.ndarray]:
    """Losses, first gradients by PyG's names, and all scores in original order (gathered: the graphs are tiny)."""
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=epochs, lr=LR))
    losses, gradients = [], {}
    for epoch in range(epochs):
        loss, _ = trainer.step(epoch)
        losses.append(loss)
        if epoch == 0:
            found = {name: p.grad.clone() for name, p in model.named_parameters()}
            gradients = {name: value.numpy() for name, value in pyg_models.to_pyg(model.config, found).items()}
    model.eval()
    with torch.no_grad():
        mine = model(trainer.task.features).double().numpy()
    scores = np.zeros((graph.meta.num_nodes, mine.shape[1]))
    scores[graph.original_ids.numpy()] = mine
    return losses, gradients, graph.world.allreduce(scores)


def relative(found: np.ndarray | list[float], wanted: np.ndarray | list[float]) -> float:
    """Largest difference relative to the largest wanted value."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def reference(case: Case, name: str, precision: str, state: dict[str, torch.Tensor], world: World) -> tuple:
    """What PyG finds; computed once on rank 0, as the initial weights do not depend on strategy or rank count.

    What one launch found is kept beside the graphs for the next, with the weights that it began with.
    """
    key = (case.name, name, precision)
    if key not in _REFERENCES:
        found, path = None, case.path.with_name(f"reference-{'-'.join(key)}.pkl")
        if world.rank == 0:
            if not path.exists():
                dtype, _ = PRECISIONS[precision]
                found = pyg_reference.train(case.arrays, CONFIGS[name], state, EPOCHS, LR, dtype)
                path.write_bytes(pickle.dumps((state, found)))
            begun, found = pickle.loads(path.read_bytes())
            assert begun.keys() == state.keys()
            assert all(torch.equal(begun[name], value) for name, value in state.items())
        _REFERENCES[key] = world.broadcast(found)
    return _REFERENCES[key]


_REFERENCES: dict[tuple[str, str, str], tuple] = {}


def compare(case: Case, name: str, strategy: str, precision: str, world: World) -> dict[str, object]:
    dtype, backend = PRECISIONS[precision]
    graph = hpcgnn.load(case.path, world)
    model = hpcgnn.build_model(CONFIGS[name], graph, strategy=strategy, backend=backend, dtype=dtype, seed=SEED)
    plan = model.aggregator.plan
    rows = world.allreduce(np.array([plan.send_to.post.sum(), plan.send_to.pre.sum()]))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    losses, gradients, scores = run(graph, model)
    wanted_losses, wanted_gradients, wanted_scores = reference(case, name, precision, state, world)
    return {
        "loss_error": max(abs(a - b) / abs(b) for a, b in zip(losses, wanted_losses, strict=True)),
        "gradient_error": _gradient_error(gradients, wanted_gradients),
        "score_error": relative(scores, wanted_scores),
        "post_rows": int(rows[0]),
        "pre_rows": int(rows[1]),
    }


def _gradient_error(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """Largest difference of any parameter's gradient, relative to that parameter's largest value.

    A bias in front of a batch norm has no gradient but rounding; such values are measured against the largest of all.
    """
    largest = max(np.abs(value).max() for value in wanted.values())
    scales = {name: np.abs(value).max() for name, value in wanted.items()}
    return max(
        float(np.abs(found[name] - value).max() / (scales[name] if scales[name] > 1e-4 * largest else largest))
        for name, value in wanted.items()
    )


def sabotages(case: Case, world: World) -> Iterator[tuple[str, float]]:
    """The loss error with a broken exchange: it must be large, or the comparison above proves nothing."""
    start = Exchange.start
    wait = Exchange.wait

    def zeroed(self: Exchange, message: Message) -> None:
        wait(self, message)
        message.received.zero_()

    def skipped_backward(self: Exchange, message: Message) -> None:
        wait(self, message)
        if self.is_backward:
            message.received.zero_()

    def swapped(self: Exchange, message: Message) -> None:
        wait(self, message)
        received = message.received
        pieces = list(received.split(self.receive_counts.tolist()))
        peers = [rank for rank, piece in enumerate(pieces) if piece.numel()]
        if len(peers) > 1:
            pieces[peers[0]], pieces[peers[1]] = pieces[peers[1]], pieces[peers[0]]
        received.copy_(torch.cat(pieces))

    for name, broken in (("zeroed", zeroed), ("no-backward", skipped_backward), ("swapped", swapped)):
        Exchange.wait = broken
        try:
            yield name, float(compare(case, "sage", "hybrid", "float64", world)["loss_error"])
        finally:
            Exchange.start, Exchange.wait = start, wait


def dropout_losses(case: Case, name: str, world: World) -> list[float]:
    graph = hpcgnn.load(case.path, world)
    model = hpcgnn.build_model(CONFIGS[name], graph, backend="reference", dtype=torch.float64, seed=3)
    return run(graph, model, FEW_EPOCHS)[0]


def node_orders(case: Case, world: World) -> dict[str, dict[str, dict[str, object]]]:
    """What training in each node order finds beside the file's order, and whether its aggregations have the same bits."""
    loaded = hpcgnn.load(case.path, world)
    found: dict[str, dict[str, dict[str, object]]] = {name: {} for name in ORDERED}
    in_file_order = {name: _trained_in(loaded, name) for name in ORDERED}
    for method in METHODS:
        graph = loaded.reordered(method, 16)
        same_bits = all(
            _same_bits(loaded, graph, kind, strategy) for kind in ("gcn", "mean") for strategy in STRATEGIES
        )
        moved = graph.order.nodes is not None and not torch.equal(graph.original_ids, loaded.original_ids)
        of_graph = {
            "same_bits": bool(world.allreduce(np.array([same_bits], dtype=np.int64), "min")[0]),
            "same_edges": _edges(graph) == _edges(loaded),
            "ranks_moved": int(world.allreduce(np.array([moved], dtype=np.int64))[0]),
        }
        for name, (losses, gradients, scores) in in_file_order.items():
            other_losses, other_gradients, other_scores = _trained_in(graph, name)
            found[name][method] = of_graph | {
                "loss_error": relative(other_losses, losses),
                "gradient_error": _gradient_error(other_gradients, gradients),
                "score_error": relative(other_scores, scores),
            }
    return found


def _trained_in(graph: LocalGraph, name: str) -> tuple[list[float], dict[str, np.ndarray], np.ndarray]:
    return run(graph, hpcgnn.build_model(CONFIGS[name], graph, dtype=torch.float64, seed=3), FEW_EPOCHS)


def _same_bits(loaded: LocalGraph, graph: LocalGraph, kind: str, strategy: str) -> bool:
    """Whether an aggregation and its gradient are the same in both node orders, row by row."""
    generator = torch.Generator().manual_seed(loaded.world.rank)
    x, upstream = torch.randn(2, loaded.num_nodes, 7, generator=generator)
    results = []
    for one in (loaded, graph):
        nodes = torch.arange(one.num_nodes) if one.order.nodes is None else one.order.nodes
        leaf = x[nodes].requires_grad_()
        z = make_aggregator(one, kind, strategy)(leaf)
        z.backward(upstream[nodes])
        results.append([one.in_loaded_order(values) for values in (z.detach(), leaf.grad)])
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def _edges(graph: LocalGraph) -> list[tuple[int, int]]:
    """``edge_index`` with owned ids as original ones, and those of the halo behind them."""
    ids = torch.cat((graph.original_ids, graph.meta.num_nodes + torch.arange(graph.indices.size)))
    return list(map(tuple, ids[graph.edge_index].T.tolist()))


def stored_plans_equal_built_ones(case: Case, world: World) -> bool:
    """Make the plans as ``hpcgnn plan`` does, read them back, and compare with what the ranks build together."""
    if world.rank == 0:
        plan_store.store_plans(case.path, list(STRATEGIES))
    world.allreduce(np.zeros(1))  # the plans are there
    graph = hpcgnn.load(case.path, world)
    same = True
    for strategy in STRATEGIES:
        stored, built = graph.stored_plan(strategy), graph.built_plan(strategy)
        assert stored is not None
        for name in ("local", "send", "receive", "send_to", "receive_from"):
            one, other = vars(getattr(stored, name)), vars(getattr(built, name))
            same &= all(np.array_equal(one[key], other[key]) for key in one)
    return bool(world.allreduce(np.array([same], dtype=np.int64), "min")[0])


def main() -> None:
    report_path, folder, *cora = map(Path, sys.argv[1:])
    world = MpiWorld(timeout_seconds=120)
    torch.set_num_threads(1)
    report: dict[str, object] = {}
    cases = make_cases(world, folder, cora[0] if cora else None)
    for case in cases:
        for name, orders in node_orders(case, world).items():
            report[f"{case.name}/{name}/orders"] = orders
    for case in cases:
        if case.name == "cut":
            continue
        for name in ("gcn", "sage"):
            for strategy in ("pre", "post", "hybrid"):
                for precision in PRECISIONS:
                    key = f"{case.name}/{name}/{strategy}/{precision}"
                    report[key] = compare(case, name, strategy, precision, world)
        for precision in PRECISIONS:
            report[f"{case.name}/sage-batch-norm/hybrid/{precision}"] = compare(
                case, "sage-batch-norm", "hybrid", precision, world
            )
        for name in ("gcn-dropout", "sage-dropout"):
            report[f"{case.name}/{name}"] = dropout_losses(case, name, world)
        report[f"{case.name}/stored"] = stored_plans_equal_built_ones(case, world)
    if world.size > 1:
        report["sabotage"] = dict(sabotages(cases[0], world))
    if world.rank == 0:
        report_path.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
