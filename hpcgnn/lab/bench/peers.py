"""The measurements of ``hpcgnn bench pyg`` and ``hpcgnn bench dgl``: training on a whole graph with the layers of PyG or DGL in
one process, as their users write it.

The model is that of `hpcgnn train` with the same settings: layers with as many parameters, norm, activation and dropout in
the same order, Adam, and the loss over all training nodes. Seconds are those of a training step, without evaluations.
"""

from __future__ import annotations

import importlib
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import peak_memory_bytes
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.devices import CPU, Device
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lab.bench import results
from hpcgnn.lab.bench.names import DGL, PYG, PeerSettings

# Module, name and package of each library.
_LIBRARIES = {PYG: ("torch_geometric", "PyG", "torch-geometric"), DGL: ("dgl", "DGL", "dgl")}


@dataclass(frozen=True)
class Problem:
    """A graph on a device: x (n, F) float32; the edges in the form that the library's layers take beside x; learned (m,) int64
    training nodes, and their labels y, (m,) int64 or (m, C) float32."""

    x: torch.Tensor
    edges: tuple[Any, ...]
    learned: torch.Tensor
    y: torch.Tensor
    classes: int

    def loss(self, scores: torch.Tensor) -> torch.Tensor:
        """The cross-entropy of ``scores`` (n, C) over the training nodes; the binary one if nodes have several labels."""
        learned = scores[self.learned]
        if self.y.dim() == 2:
            return F.binary_cross_entropy_with_logits(learned, self.y)
        return F.cross_entropy(learned, self.y)


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

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *edges: Any) -> torch.Tensor:
        """The layer's result (n, H) for x (n, F)."""
        graph, *weights = edges
        y: torch.Tensor = self.layer(graph, x, edge_weight=weights[0]) if weights else self.layer(graph, x)
        return y.flatten(1)


class Model(torch.nn.Module):
    """The library's layers, with norm, activation and dropout between them."""

    def __init__(self, settings: PeerSettings, in_width: int, classes: int) -> None:
        super().__init__()
        layer_of = _dgl_layer if settings.library == DGL else _pyg_layer
        widths = [in_width, *[settings.hidden] * (settings.layers - 1), classes]
        self.layers = torch.nn.ModuleList(
            layer_of(settings, width, next_width, 1 if depth == settings.layers - 1 else settings.heads)
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

    def forward(self, problem: Problem) -> torch.Tensor:
        """(n, C) scores."""
        x = problem.x
        for depth, layer in enumerate(self.layers):
            x = layer(x, *problem.edges)
            if depth < len(self.norms):
                x = F.dropout(self.activation(self.norms[depth](x)), self.dropout, self.training)
        return x


def run(path: Path, settings: PeerSettings, device: Device = CPU) -> dict[str, Any]:
    """Train on ``graph.h5``; return the figures for a study's record. Raises :class:`HpcgnnError` without the library,
    and for graphs without dense features or training nodes."""
    require(settings.library)
    torch.set_num_threads(settings.threads)
    problem = read(path, settings, device)
    torch.manual_seed(settings.seed)
    model = Model(settings, problem.x.shape[1], problem.classes).to(device.torch_device)
    seconds, loss = train(model, problem, settings, device)
    return {
        "epoch_seconds_median": statistics.median(seconds),
        "epochs": {"seconds": seconds},
        "final_loss": loss,
        "peak_memory_bytes_per_rank": peak_memory_bytes(),
        "peak_device_memory_bytes_per_rank": device.peak_bytes() or 0,
        "device": device.name,
        "threads": settings.threads,
        "versions": results.versions(python=platform.python_version()),
    }


def train(model: Model, problem: Problem, settings: PeerSettings, device: Device) -> tuple[list[float], float]:
    """Train the model; return the seconds of each epoch, and the loss of the last one.

    Backward runs in this thread, for devices too. In a thread of its own for each device, torch may still release the last pass
    when Python exits, and then the process aborts.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    seconds, loss = [], torch.zeros(())
    with torch.autograd.set_multithreading_enabled(False):
        for _ in range(settings.epochs):
            device.synchronize()
            started = time.perf_counter()
            optimiser.zero_grad()
            loss = problem.loss(model(problem))
            loss.backward()
            optimiser.step()
            device.synchronize()
            seconds.append(time.perf_counter() - started)
    return seconds, float(loss.detach())


def read(path: Path, settings: PeerSettings, device: Device) -> Problem:
    """The problem in ``graph.h5``. Only GCN uses edge weights, as in `hpcgnn train`."""
    with GraphFile(path) as file:
        nodes, meta = file.meta.num_nodes, file.meta
        if meta.x_nnz is not None or not meta.num_features:
            raise _no_features(path)
        mask, labels = file.mask("train_mask", 0, nodes), file.labels(0, nodes)
        learned, y = _learned(path, *(None if each is None else torch.from_numpy(each) for each in (mask, labels)))
        indptr, sources = file.edges(0, nodes)
        weights = file.weights(0, sources.size) if settings.model == "gcn" else None
        x = torch.from_numpy(file.features(0, nodes))
    edge_index = torch.from_numpy(np.stack((sources, np.repeat(np.arange(nodes), np.diff(indptr)))))
    x, edge_index, learned, y = (each.to(device.torch_device) for each in (x, edge_index, learned, y))
    given = () if weights is None else (torch.from_numpy(weights).to(device.torch_device),)
    edges = _dgl_edges(settings, edge_index, nodes, *given) if settings.library == DGL else (edge_index, *given)
    return Problem(x, edges, learned, y, meta.num_classes)


def problem_of(graph: LocalGraph) -> Problem:
    """PyG's problem of a rank that owns all nodes, without edge weights. Raises :class:`HpcgnnError` as :func:`read`."""
    x = graph.features
    if not isinstance(x, torch.Tensor):
        raise _no_features(graph.path)
    learned, y = _learned(graph.path, graph.masks.get("train_mask"), graph.y)
    return Problem(x, (graph.edge_index,), learned, y, graph.meta.num_classes)


def _no_features(path: Path) -> HpcgnnError:
    said = "has no dense features, which these layers need: convert the graph again with --features dense"
    return HpcgnnError(f"{path} {said}")


def _learned(path: Path, mask: torch.Tensor | None, labels: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The training nodes whose labels are known, and these labels."""
    if mask is None or labels is None:
        raise HpcgnnError(f"{path} has no labels or no training nodes: convert a graph with labels, and with --split")
    known = labels >= 0 if labels.dim() == 1 else labels.any(dim=1)
    learned = torch.nonzero(mask.bool() & known).flatten()
    y = labels[learned]
    return learned, y.long() if y.dim() == 1 else y.float()


def _pyg_layer(settings: PeerSettings, width: int, next_width: int, heads: int) -> torch.nn.Module:
    """A layer as PyG's users write it."""
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

    if settings.model == "gat":
        return GATConv(width, next_width // heads, heads)
    return GCNConv(width, next_width, cached=True) if settings.model == "gcn" else SAGEConv(width, next_width)


def _dgl_layer(settings: PeerSettings, width: int, next_width: int, heads: int) -> torch.nn.Module:
    """A layer as DGL's users write it. Edge weights of GCN are normalised before training (:func:`_dgl_edges`)."""
    from dgl.nn.pytorch import GATConv, GraphConv, SAGEConv

    if settings.model == "gat":
        return DglLayer(GATConv(width, next_width // heads, heads, allow_zero_in_degree=True))
    if settings.model == "gcn":
        return DglLayer(GraphConv(width, next_width, norm="both", allow_zero_in_degree=True))
    return DglLayer(SAGEConv(width, next_width, "mean"))


def _dgl_edges(settings: PeerSettings, edge_index: torch.Tensor, nodes: int, *weights: torch.Tensor) -> tuple[Any, ...]:
    """DGL's graph with 32-bit ids, which GCN and GAT give an edge from each node to itself."""
    import dgl

    if weights:
        raise HpcgnnError("DGL's GCN is measured without edge weights: convert the graph without them")
    graph = dgl.graph((edge_index[0], edge_index[1]), num_nodes=nodes, idtype=torch.int32)
    if settings.model in ("gcn", "gat"):
        graph = dgl.add_self_loop(dgl.remove_self_loop(graph))
    # Only the scores of edges need a list of edges beside the two matrices.
    return (graph if settings.model == "gat" else graph.formats(["csr", "csc"]),)


def name_of(library: str) -> str:
    """The library's name in sentences."""
    return _LIBRARIES[library][1]


def require(library: str = PYG) -> None:
    """Raise :class:`HpcgnnError` if the library cannot be imported."""
    module, name, package = _LIBRARIES[library]
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise HpcgnnError(f"{name} cannot be imported ({error}): install it with pip install {package}") from error
