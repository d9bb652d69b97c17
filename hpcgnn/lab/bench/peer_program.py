"""Trainings by PyG, DGL and SAR, as their users write them, to compare with ours: ``PYTHON peer_program.py JOB.json``.

This file imports nothing of hpcgnn, so that it runs in a library's own environment; ``hpcgnn.lab.bench.peers`` writes its job and
the graph. It prints one JSON object with the figures of a study's record.

The model is that of `hpcgnn train` with the same settings: layers with as many parameters, norm, activation and dropout in the
same order, Adam, and the loss over all training nodes, or over batches of them with neighbours that DGL samples. Seconds are of
training steps, sampling included, without evaluations, which use all neighbours.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

PYG, DGL, SAR = "pyg", "dgl", "sar"
SETS = ("train", "val", "test")
_PACKAGES = ("torch", "torch-geometric", "dgl", "numpy")
# Variables in which launchers tell a process its rank, and the number of ranks.
_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
Settings = Any  # hpcgnn.lab.bench.names.PeerSettings, or its values by name


@dataclass(frozen=True)
class Problem:
    """A graph on a device: x (n, F) float32; the edges in the form that the library's layers take beside x; y, (n,) int64 labels
    or (n, C) float32; ids of nodes of each set, (m,) int64 with known labels."""

    x: torch.Tensor
    edges: tuple[Any, ...]
    y: torch.Tensor
    nodes: dict[str, torch.Tensor]
    classes: int
    types: int = 0

    def loss(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The cross-entropy of ``scores`` (m, C), the binary one if nodes have several labels y; 0 of no nodes."""
        if not len(y):
            return 0 * scores.sum()
        loss = F.binary_cross_entropy_with_logits if y.dim() == 2 else F.cross_entropy
        return loss(scores, y)

    def counts(self, scores: torch.Tensor, part: str) -> torch.Tensor:
        """(2,) float64 hits and their number in a set: correct nodes, or for micro-F1 twice the true positives and the others
        beside them. The metric is their ratio."""
        y, found = self.y[self.nodes[part]], scores[self.nodes[part]]
        if y.dim() == 1:
            return torch.tensor([int((found.argmax(1) == y).sum()), y.numel()], dtype=torch.float64)
        said, true = found > 0, y > 0
        both = 2 * int((said & true).sum())
        return torch.tensor([both, int(said.sum()) + int(true.sum())], dtype=torch.float64)


class MeanSubtraction(torch.nn.Module):
    """A norm that subtracts the means of columns, as PyG's ``MeanSubtractionNorm``, and a bias after it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """X (n, F) less its means, plus the bias."""
        return x - x.mean(dim=0) + self.bias


class DglLayer(torch.nn.Module):
    """A layer of DGL that is called like one of PyG: rows first, and heads side by side."""

    def __init__(self, layer: torch.nn.Module, *, typed: bool = False) -> None:
        super().__init__()
        self.layer, self.typed = layer, typed

    def forward(self, x: torch.Tensor, graph: Any, *values: Any) -> torch.Tensor:
        """The layer's result (n, H) for x (n, F), or for the sources of a block."""
        if self.typed:
            kinds, means, *is_sorted = values
            y: torch.Tensor = self.layer(graph, x, kinds, norm=means, presorted=any(is_sorted))
        else:
            y = self.layer(graph, x)
        return y.flatten(1)


class SarRelations(torch.nn.Module):
    """R-GCN as SAR's users write it: a layer of DGL for the means over each type of edges, and a product for the node itself."""

    def __init__(self, width: int, next_width: int, types: int) -> None:
        super().__init__()
        from dgl.nn.pytorch import GraphConv

        kinds = (
            GraphConv(width, next_width, norm="right", bias=False, allow_zero_in_degree=True) for _ in range(types)
        )
        self.layers, self.own = torch.nn.ModuleList(kinds), torch.nn.Linear(width, next_width)

    def forward(self, x: torch.Tensor, *graphs: Any) -> torch.Tensor:
        """The sum over types (n, H) for x (n, F)."""
        y: torch.Tensor = self.own(x)
        for layer, graph in zip(self.layers, graphs, strict=True):
            y = y + layer(graph, x)
        return y


class Model(torch.nn.Module):
    """The library's layers, with norm, activation and dropout between them."""

    def __init__(self, settings: Settings, problem: Problem) -> None:
        super().__init__()
        layer_of = _pyg_layer if settings.library == PYG else _dgl_layer
        widths = [problem.x.shape[1], *[settings.hidden] * (settings.layers - 1), problem.classes]
        self.layers = torch.nn.ModuleList(
            layer_of(settings, width, next_width, 1 if depth == settings.layers - 1 else settings.heads, problem.types)
            for depth, (width, next_width) in enumerate(pairwise(widths))
        )
        norms: dict[str, Callable[[int], torch.nn.Module]] = {
            "mean": MeanSubtraction,
            "batch": torch.nn.BatchNorm1d,
            "layer": torch.nn.LayerNorm,
            "none": lambda width: torch.nn.Identity(),
        }
        self.norms = torch.nn.ModuleList(map(norms[settings.norm], widths[1:-1]))
        self.activation: Callable[[torch.Tensor], torch.Tensor] = F.elu if settings.activation == "elu" else F.relu
        self.dropout = settings.dropout

    def forward(self, x: torch.Tensor, edges: tuple[Any, ...], blocks: list[Any] | None = None) -> torch.Tensor:
        """(n, C) scores. blocks: DGL's sampled edges of each layer, in place of the edges of all."""
        for depth, layer in enumerate(self.layers):
            x = layer(x, *(edges if blocks is None else (blocks[depth],)))
            if depth < len(self.norms):
                x = F.dropout(self.activation(self.norms[depth](x)), self.dropout, self.training)
        return x


# -- layers ------------------------------------------------------------------------------------------------------------


def _pyg_layer(settings: Settings, width: int, next_width: int, heads: int, types: int) -> torch.nn.Module:
    """A layer as PyG's users write it."""
    from torch_geometric.nn import GATConv, GCNConv, RGCNConv, SAGEConv

    if settings.model == "gat":
        return GATConv(width, next_width // heads, heads)
    if settings.model == "rgcn":
        return RGCNConv(width, next_width, types)
    return GCNConv(width, next_width, cached=True) if settings.model == "gcn" else SAGEConv(width, next_width)


def _dgl_layer(settings: Settings, width: int, next_width: int, heads: int, types: int) -> torch.nn.Module:
    """A layer as users of DGL and SAR write it."""
    from dgl.nn import pytorch as layers

    if settings.model == "gat":
        return DglLayer(layers.GATConv(width, next_width // heads, heads, allow_zero_in_degree=True))
    if settings.model == "rgcn" and settings.library == SAR:
        return SarRelations(width, next_width, types)
    if settings.model == "rgcn":
        return DglLayer(layers.RelGraphConv(width, next_width, types), typed=True)
    if settings.model == "gcn":
        return DglLayer(layers.GraphConv(width, next_width, norm="both", allow_zero_in_degree=True))
    return DglLayer(layers.SAGEConv(width, next_width, "mean"))


# -- graphs ------------------------------------------------------------------------------------------------------------


def read(path: Path, settings: Settings) -> Problem:
    """The problem in the arrays that :func:`hpcgnn.lab.bench.peers.write_arrays` wrote."""
    arrays = _arrays(path, settings.device)
    edge_index = arrays["edge_index"]
    values = [arrays[key] for key in ("edge_weight", "edge_type") if key in arrays]
    edges = (edge_index, *values)
    if settings.library == DGL:
        edges = _dgl_edges(settings, edge_index, len(arrays["y"]), values)
    nodes = {part: arrays[part] for part in SETS}
    return Problem(arrays["x"], edges, arrays["y"], nodes, int(arrays["classes"]), int(arrays["types"]))


def _arrays(path: Path, place: str = "cpu") -> dict[str, torch.Tensor]:
    with np.load(path) as file:
        return {name: torch.from_numpy(file[name]).to(place) for name in file.files}


def _dgl_edges(settings: Settings, edge_index: torch.Tensor, nodes: int, values: list[torch.Tensor]) -> tuple[Any, ...]:
    """DGL's graph with 32-bit ids, which GCN and GAT give an edge from each node to itself; types of edges are sorted. Blocks of
    sampled edges have 64-bit ids, as DGL's conversion of blocks with 32-bit ids fails on several threads."""
    if settings.model == "rgcn":
        kinds, order = torch.sort(values[0], stable=True)
        edge_index = edge_index[:, order]
        return _dgl_graph(edge_index, nodes, torch.int32), kinds, relation_means(edge_index, kinds), True
    ids = torch.int64 if settings.fanouts else torch.int32
    graph = _with_self_loops(settings, _dgl_graph(edge_index, nodes, ids))
    # Only the scores of edges need a list of edges beside the two matrices.
    return (graph if settings.model == "gat" else graph.formats(["csr", "csc"]),)


def _dgl_graph(edge_index: torch.Tensor, nodes: int, ids: torch.dtype) -> Any:
    import dgl

    return dgl.graph((edge_index[0], edge_index[1]), num_nodes=nodes, idtype=ids)


def _with_self_loops(settings: Settings, graph: Any) -> Any:
    import dgl

    return dgl.add_self_loop(dgl.remove_self_loop(graph)) if settings.model in ("gcn", "gat") else graph


def relation_means(edge_index: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
    """(E, 1) float32 factors of edges: one over the number of edges of their type into their destination."""
    kinds = edge_index[1] * (int(types.max()) + 1) + types
    return (1 / torch.bincount(kinds)[kinds].float())[:, None]


# -- training ----------------------------------------------------------------------------------------------------------


@dataclass
class Trainer:
    """A model with its optimiser. Subclasses have another way to make the steps of an epoch, or several ranks."""

    model: Model
    problem: Problem
    settings: Settings

    def __post_init__(self) -> None:
        how = {"lr": self.settings.lr, "weight_decay": self.settings.weight_decay}
        self.optimiser = torch.optim.Adam(self.model.parameters(), **how)

    def epoch(self) -> torch.Tensor:
        """The steps of one epoch; return the loss."""
        problem, learned = self.problem, self.problem.nodes["train"]
        self.optimiser.zero_grad()
        loss = problem.loss(self.model(problem.x, problem.edges)[learned], problem.y[learned])
        return self.step(loss)

    def timed_epoch(self) -> tuple[float, float]:
        """The seconds and the loss of an epoch.

        Backward runs in this thread, for devices too. In a thread of its own for each device, torch may still release the last
        pass when Python exits, and then the process aborts.
        """
        with torch.autograd.set_multithreading_enabled(False):
            _synchronize()
            started = time.perf_counter()
            loss = self.epoch()
            _synchronize()
            return time.perf_counter() - started, self.total(float(loss))

    def step(self, loss: torch.Tensor) -> torch.Tensor:
        """Backward, and a step of Adam; return this rank's part of the loss."""
        loss.backward()
        self.optimiser.step()
        return loss.detach()

    def metrics(self) -> dict[str, float | None]:
        """The metric of validation and test nodes, with all neighbours; None without such nodes."""
        self.model.eval()
        with torch.no_grad():
            scores = self.model(self.problem.x, self.problem.edges)
            counts = self.sums(torch.stack([self.problem.counts(scores, part) for part in SETS[1:]]))
        self.model.train()
        pairs = zip(SETS[1:], counts.tolist(), strict=True)
        return {f"{part}_metric": hits / of if of else None for part, (hits, of) in pairs}

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """The sums of values over ranks."""
        return values

    def total(self, value: float) -> float:
        """The sum of the ranks' values."""
        return float(self.sums(torch.tensor([value], dtype=torch.float64)))

    def largest(self, value: float) -> float:
        """The largest of the ranks' values."""
        return value


class Sampled(Trainer):
    """Batches of training nodes with a few sampled neighbours of each layer, by DGL."""

    def __post_init__(self) -> None:
        super().__post_init__()
        import dgl
        from dgl.dataloading import DataLoader, NeighborSampler

        settings = self.settings
        dgl.seed(settings.seed)
        fanouts = [int(each) for each in settings.fanouts.split(",")][::-1]  # DGL begins with the layer of the input
        self.loader = DataLoader(
            self.problem.edges[0], self.problem.nodes["train"], NeighborSampler(fanouts),
            batch_size=settings.batch_size, shuffle=True, drop_last=False, num_workers=settings.workers,
        )  # fmt: skip

    def epoch(self) -> torch.Tensor:
        """A step for each batch; return the mean loss over their nodes."""
        problem, losses = self.problem, []
        for inputs, outputs, blocks in self.loader:
            self.optimiser.zero_grad()
            scores = self.model(problem.x[inputs], (), blocks)
            losses.append(self.step(problem.loss(scores, problem.y[outputs])) * len(outputs))
        return torch.stack(losses).sum() / problem.nodes["train"].numel()


class OnRanks(Trainer):
    """SAR's training on this rank's partition."""

    def __post_init__(self) -> None:
        import sar

        sar.sync_params(self.model)
        super().__post_init__()
        self.learned = self.total(self.problem.nodes["train"].numel())

    def step(self, loss: torch.Tensor) -> torch.Tensor:
        """As of one process, with the sums of the ranks' gradients."""
        import sar

        loss = loss * (self.problem.nodes["train"].numel() / self.learned)
        loss.backward()
        sar.gather_grads(self.model)
        self.optimiser.step()
        return loss.detach()

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """The sums of values over ranks."""
        return self._reduced(values, torch.distributed.ReduceOp.SUM)

    def largest(self, value: float) -> float:
        """The largest of the ranks' values."""
        return float(self._reduced(torch.tensor([value], dtype=torch.float64), torch.distributed.ReduceOp.MAX))

    def _reduced(self, values: torch.Tensor, how: Any) -> torch.Tensor:
        import sar

        sar.comm.all_reduce(values, how, move_to_comm_device=True)
        return values


def lines(trainer: Trainer) -> Iterator[dict[str, Any]]:
    """Train; yield what `metrics.jsonl` has of each epoch, and the bytes that this host sent in it, evaluations left out."""
    settings, unseen = trainer.settings, dict.fromkeys(("val_metric", "test_metric"))
    for epoch in range(settings.epochs):
        before = _bytes_sent()
        seconds, loss = trainer.timed_epoch()
        line = {"epoch": epoch, "seconds": seconds, "loss": loss, "bytes_sent": _bytes_sent() - before}
        is_seen = not (epoch + 1) % settings.eval_every or epoch + 1 == settings.epochs
        yield line | (trainer.metrics() if is_seen else unseen)


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def measured(problem: Problem, settings: Settings, make: type[Trainer] = Trainer) -> dict[str, Any]:
    """Train; return the figures for a study's record."""
    torch.manual_seed(settings.seed)
    trainer = make(Model(settings, problem).to(settings.device), problem, settings)
    found = [*lines(trainer)]
    epochs = {key: [line[key] for line in found] for key in found[0]}
    epochs["seconds"] = [trainer.largest(each) for each in epochs["seconds"]]
    sent = trainer.total(statistics.mean(epochs.pop("bytes_sent")))
    best = best_of(found)
    return {
        "epoch_seconds_median": statistics.median(epochs["seconds"]),
        "epochs": epochs,
        "final_loss": found[-1]["loss"],
        "best_val_metric": best["val_metric"],
        "test_metric_at_best_val": best["test_metric"],
        "best_epoch": best["epoch"],
        "bytes_sent_per_epoch": sent if settings.hosts or settings.ranks == 1 else None,
        "peak_memory_bytes_per_rank": trainer.largest(_peak_memory_bytes()),
        "peak_device_memory_bytes_per_rank": _peak_device_bytes(),
        "threads": settings.threads,
        "versions": {"python": platform.python_version()} | _versions(),
    }


def best_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The evaluation with the best validation metric, the last of equal ones; without validation nodes, the last one."""
    seen = [line for line in reversed(found) if line["val_metric"] is not None]
    return max(seen, key=lambda line: line["val_metric"]) if seen else found[-1]


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _peak_memory_bytes() -> int:
    """The largest resident memory of this program; what its parent had before the start of this program does not count."""
    try:
        text = Path("/proc/self/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _peak_device_bytes() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0


def _bytes_sent(counters: Path = Path("/proc/net/dev")) -> int:
    """Bytes that this virtual host's network interface has sent, with headers; 0 without one."""
    try:
        rows = [row.split() for row in counters.read_text().splitlines()[2:]]
    except OSError:
        return 0
    return sum(int(row[9]) for row in rows if row[0] == f"{os.environ.get('SAR_SOCKET_NAME')}:")


# -- SAR ---------------------------------------------------------------------------------------------------------------


def divide(path: Path, settings: Settings, folder: Path) -> None:
    """Divide the graph by DGL's METIS into a partition for each rank."""
    import dgl

    arrays = _arrays(path)
    nodes, edge_index = len(arrays["y"]), arrays["edge_index"]
    if settings.model == "rgcn":
        kinds = arrays["edge_type"]
        ends = {_relation(kind): tuple(edge_index[:, kinds == kind]) for kind in range(int(arrays["types"]))}
        graph = dgl.heterograph(ends, num_nodes_dict={"_N": nodes})
    else:
        graph = _with_self_loops(settings, _dgl_graph(edge_index, nodes, torch.int64))
    graph.ndata["x"], graph.ndata["y"] = arrays["x"], arrays["y"]
    for part in SETS:
        graph.ndata[part] = torch.zeros(nodes, dtype=torch.bool).index_fill_(0, arrays[part], True)
    dgl.distributed.partition_graph(graph, "graph", settings.ranks, str(folder), num_hops=1, part_method="metis")


def _relation(kind: int) -> tuple[str, str, str]:
    return "_N", f"type{kind}", "_N"  # SAR asks for DGL's own name of the only type of nodes


def _of_rank(job: dict[str, Any], settings: Settings, rank: int) -> Problem:
    """This rank's partition, in SAR's form."""
    import sar

    data = sar.load_dgl_partition_data(str(Path(job["parts"]) / "graph.json"), rank, torch.device("cpu"))
    x, y, *sets = (sar.suffix_key_lookup(data.node_features, name) for name in ("x", "y", *SETS))
    graph = sar.construct_full_graph(data)
    nodes = {part: torch.nonzero(mask.bool()).flatten() for part, mask in zip(SETS, sets, strict=True)}
    kinds = range(job["types"] if settings.model == "rgcn" else 0)
    edges = tuple(graph[_relation(kind)] for kind in kinds) or (graph,)
    return Problem(x, edges, y, nodes, job["classes"], job["types"])


def _on_ranks(job: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """SAR's training with a process for each rank."""
    rank = next(int(os.environ[variable]) for variable in _RANK if variable in os.environ)
    ranks = next(int(os.environ[variable]) for variable in _RANKS if variable in os.environ)
    import sar
    from dgl.nn.pytorch.conv import gatconv
    from sar.edge_softmax import edge_softmax

    sar.initialize_comms(rank, ranks, sar.nfs_ip_init(rank, job["address"]), "gloo")
    # As sar.patch_dgl, which does not know the class of graph that SAR makes today.
    gatconv.edge_softmax = edge_softmax
    found = measured(_of_rank(job, settings, rank), settings, OnRanks)
    return found if rank == 0 else {}


# -- the program -------------------------------------------------------------------------------------------------------


def main(path: str) -> None:
    """Do the job in a file; print the figures."""
    import types

    job = json.loads(Path(path).read_text())
    settings = types.SimpleNamespace(**job["settings"])
    torch.set_num_threads(settings.threads)
    if job["step"] == "divide":
        divide(Path(job["graph"]), settings, Path(job["parts"]))
        found: dict[str, Any] = {"ranks": settings.ranks}
    elif settings.library == SAR:
        found = _on_ranks(job, settings)
    else:
        problem = read(Path(job["graph"]), settings)
        found = measured(problem, settings, Sampled if settings.fanouts else Trainer)
    if found:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
