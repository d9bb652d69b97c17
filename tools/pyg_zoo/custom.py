"""Models of the zoo as users write them: right ones, and ones that need all nodes, other ranks' rows, or another graph."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
import torch_geometric.utils as utils
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric import EdgeIndex

NODES = 70


# -- parts of models of PyG -------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """An encoder with an activation."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv, self.act = pyg.GCNConv(width, out), nn.PReLU(out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.act(self.conv(x, edge_index))


def summary(z: Tensor, *_: Any, **__: Any) -> Tensor:
    """The summary of a graph."""
    return z.mean(0).sigmoid()


def corrupted(x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    """The arguments for a corrupted graph."""
    return x.flip(0), edge_index


class NodeModel(nn.Module):
    """The model of nodes of a ``MetaLayer``."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Any, u: Any, batch: Any) -> Tensor:
        row, col = edge_index
        return self.lin(torch.cat((x, utils.scatter(x[row], col, 0, x.size(0), "mean")), 1))


class EdgeModel(nn.Module):
    """The model of edges of a ``MetaLayer``."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(19, 3)

    def forward(self, src: Tensor, dst: Tensor, edge_attr: Tensor, u: Any, batch: Any) -> Tensor:
        return self.lin(torch.cat((src, dst, edge_attr), 1)).relu()


class NodeOfEdges(nn.Module):
    """The model of nodes of a ``MetaLayer`` that reads edges."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(11, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Any, batch: Any) -> Tensor:
        return self.lin(torch.cat((x, utils.scatter(edge_attr, edge_index[1], 0, x.size(0), "sum")), 1))


class Corrected(nn.Module):
    """``CorrectAndSmooth``, both steps."""

    def __init__(self, post: nn.Module) -> None:
        super().__init__()
        self.post = post

    def forward(self, y_soft: Tensor, y_true: Tensor, mask: Tensor, edge_index: Tensor) -> Tensor:
        y_soft = self.post.correct(y_soft, y_true[mask], mask, edge_index)
        return self.post.smooth(y_soft, y_true[mask], mask, edge_index)


class Embedded(nn.Module):
    """The embeddings of a ``LightGCN``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, edge_index: Tensor) -> Tensor:
        return self.model.get_embedding(edge_index)


class Deep(nn.Module):
    """A deep layer between two linear ones."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        return self.layer(x, edge_index, *(() if edge_attr is None else (edge_attr,)))


class Normed(nn.Module):
    """A norm between two layers."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.second = pyg.GCNConv(8, 8), norm, pyg.SAGEConv(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


class NormedByType(Normed):
    """A norm that takes the types of nodes between two layers."""

    def forward(self, x: Tensor, edge_index: Tensor, node_type: Tensor) -> Tensor:  # type: ignore[override]
        return self.second(self.norm(self.first(x, edge_index), node_type).relu(), edge_index)


class NormedMessage(nn.Module):
    """``MessageNorm``, as in a ``GENConv``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = pyg.GCNConv(8, 8), pyg.MessageNorm(learn_scale=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x + self.norm(x, self.conv(x, edge_index))


class Aggregated(nn.Module):
    """An aggregation in a layer, and a linear layer."""

    def __init__(self, aggr: Any, width: int) -> None:
        super().__init__()
        self.conv, self.lin = pyg.SimpleConv(aggr=aggr), nn.Linear(width, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.conv(x.tanh(), edge_index)) + x[:, :4]


# -- custom layers -------------------------------------------------------------------------------------------------------


class TutorialGCN(pyg.MessagePassing):
    """The GCNConv of PyG's tutorial: ``deg[row] * deg[col]`` in ``forward``."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.lin, self.bias = nn.Linear(8, 4, bias=False), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = utils.add_self_loops(edge_index, num_nodes=x.size(0))
        x = self.lin(x)
        row, col = edge_index
        deg = utils.degree(col, x.size(0), dtype=x.dtype)
        scale = deg.pow(-0.5)
        scale[scale == float("inf")] = 0
        norm = scale[row] * scale[col]
        return self.propagate(edge_index, x=x, norm=norm) + self.bias

    def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
        return norm.view(-1, 1) * x_j


class DegreesInMessage(pyg.MessagePassing):
    """The same with the degrees as arguments of ``message``: ``deg_i`` and ``deg_j``."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = utils.add_self_loops(edge_index, num_nodes=x.size(0))
        deg = utils.degree(edge_index[1], x.size(0), dtype=x.dtype)
        return self.propagate(edge_index, x=self.lin(x), deg=deg[:, None])

    def message(self, x_j: Tensor, deg_i: Tensor, deg_j: Tensor) -> Tensor:
        return x_j / (deg_i * deg_j).sqrt()


class TutorialEdge(pyg.MessagePassing):
    """The EdgeConv of PyG's tutorial."""

    def __init__(self) -> None:
        super().__init__(aggr="max")
        self.mlp = nn.Sequential(nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 4))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.mlp(torch.cat((x_i, x_j - x_i), 1))


class OwnUpdate(pyg.MessagePassing):
    """A custom ``update`` that reads the node's row."""

    def __init__(self, aggr: str) -> None:
        super().__init__(aggr=aggr)
        self.lin = nn.Linear(16, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j.relu()

    def update(self, out: Tensor, x: Tensor) -> Tensor:
        return self.lin(torch.cat((out, x), 1))


class SubclassUpdate(pyg.SAGEConv):
    """A subclass of ``SAGEConv`` with a custom ``update``."""

    def update(self, out: Tensor) -> Tensor:
        return out.tanh()


class SubclassMessage(pyg.GCNConv):
    """A subclass of ``GCNConv`` with a custom ``message``."""

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return (edge_weight.view(-1, 1) * x_j).tanh()


class SubclassForward(pyg.GCNConv):
    """A subclass of ``GCNConv`` that changes its inputs."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x.relu(), edge_index) + x[:, :4]


class OwnMessage(pyg.MessagePassing):
    """A custom ``message`` of ``x_i``, ``x_j`` and ``edge_attr``."""

    def __init__(self) -> None:
        super().__init__(aggr="mean")
        self.lin = nn.Linear(19, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        return self.lin(torch.cat((x_i, x_j, edge_attr), 1)).relu()


class OwnAttention(pyg.MessagePassing):
    """Attention with ``index``, ``ptr`` and ``size_i`` in ``message``."""

    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.lin, self.att = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, ptr: Any, size_i: int) -> Tensor:
        score = F.leaky_relu(self.att(torch.cat((x_i, x_j), 1)))
        return x_j * utils.softmax(score, index, ptr, size_i)


class OwnAggregate(pyg.MessagePassing):
    """A custom ``aggregate``."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def aggregate(self, inputs: Tensor, index: Tensor, ptr: Any = None, dim_size: int | None = None) -> Tensor:
        return utils.scatter(inputs, index, 0, dim_size, "max") + utils.scatter(inputs, index, 0, dim_size, "mean")


class SourceOfIndex(pyg.MessagePassing):
    """A ``message`` that reads ``edge_index_j``, the number of the source."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor, edge_index_j: Tensor) -> Tensor:
        return x_j * (edge_index_j % 3)[:, None]


class SizeInMessage(pyg.MessagePassing):
    """A ``message`` that divides by ``size_j``, the number of sources."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor, size_j: int) -> Tensor:
        return x_j / size_j


class MeanOfMessages(pyg.MessagePassing):
    """A ``message`` that subtracts the mean over all edges."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j - x_j.mean(0)


class StateOfRows(pyg.MessagePassing):
    """A ``message`` that reads a tensor of all nodes that ``forward`` left in ``self``."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.rows = x
        self.source = edge_index[0]
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j * self.rows[self.source]


class TwoPropagates(pyg.MessagePassing):
    """A layer that propagates along edges and back."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x) + self.propagate(edge_index.flip(0), x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j.tanh()


class Hooked(nn.Module):
    """A layer with PyG's hooks."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(8, 4)
        getattr(self.conv, f"register_{kind}_forward_hook")(lambda module, inputs, out: out * 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


# -- custom models: most have a layer before and a layer after what they are about ----------------------------------------


class Own(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = pyg.GCNConv(8, 8), pyg.SAGEConv(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden = self.first(x, edge_index).relu()
        return self.second(self.between(hidden, edge_index), edge_index)

    def between(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x


class Line(Own):
    """A line of :mod:`pyg_zoo.expressions` between the layers."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self.line, self.weight = line, nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor, edge_index: Tensor, node_type: Tensor) -> Tensor:  # type: ignore[override]
        hidden = self.first(x, edge_index).relu()
        names = {
            "np": np,
            "math": math,
            "checkpoint": checkpoint,
            "self": self,
            "x": hidden,
            "n": hidden.size(0),
            "node_type": node_type,
            "weight": self.weight,
        }
        edges = {"edge_index": edge_index, "row": edge_index[0], "col": edge_index[1]}
        known = {**globals(), **names, **edges}
        return self.second(eval(compile(self.line, "line", "eval"), known), edge_index)  # noqa: S307  (of this folder)


class Centre(torch.autograd.Function):
    """A function with a backward pass of its own that subtracts a mean over all nodes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x - x.mean(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad - grad.mean(0)


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    """A compiled function that subtracts a mean over all nodes."""
    return x - x.mean(0)


class Residual(Own):
    """Residuals."""

    def between(self, x, edge_index):
        return x + self.first(x, edge_index)


class Recurrent(Own):
    """The same layer several times, with a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 8)

    def between(self, x, edge_index):
        for _ in range(3):
            x = self.cell(self.first(x, edge_index), x)
        return x


class VirtualNode(Own):
    """A virtual node: the mean of all nodes is added to each."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def between(self, x, edge_index):
        return x + self.lin(x.mean(0, keepdim=True))


class ThroughItem(Own):
    """A branch on a statistic of all nodes, on whose other side some ranks are."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def between(self, x, edge_index):
        return x * 2 if x.mean() > self.threshold else x


class FixedPoint(Own):
    """Iteration until the rows change little."""

    def between(self, x, edge_index):
        for _ in range(50):
            new = 0.5 * torch.tanh(self.first(x, edge_index))
            if (new - x).norm() < 1e-2:
                break
            x = new
        return x


class FunctionalDropout(Own):
    """``F.dropout`` in evaluation."""

    def between(self, x, edge_index):
        return F.dropout(x, 0.5, self.training)


class DropoutEdge(Own):
    """``dropout_edge`` in evaluation."""

    def between(self, x, edge_index):
        return self.first(x, utils.dropout_edge(edge_index, 0.5, training=self.training)[0])


class Noise(Own):
    """Noise in training only."""

    def between(self, x, edge_index):
        return x + torch.randn_like(x) if self.training else x


class WithLoops(Own):
    """``add_self_loops`` in ``forward``."""

    def forward(self, x, edge_index):
        edge_index, _ = utils.add_self_loops(edge_index, num_nodes=x.size(0))
        return super().forward(x, edge_index)


class WithInferredLoops(Own):
    """``add_self_loops`` that infers the number of nodes from the edges."""

    def forward(self, x, edge_index):
        edge_index, _ = utils.add_self_loops(edge_index)
        return super().forward(x, edge_index)


class WithRemainingLoops(Own):
    """``add_remaining_self_loops`` in ``forward``."""

    def forward(self, x, edge_index):
        edge_index, _ = utils.add_remaining_self_loops(edge_index, num_nodes=x.size(0))
        return super().forward(x, edge_index)


class WithoutLoops(Own):
    """``remove_self_loops`` in ``forward``."""

    def forward(self, x, edge_index):
        return super().forward(x, utils.remove_self_loops(edge_index)[0])


class TopNodes(Own):
    """The five nodes with the largest values keep their rows."""

    def between(self, x, edge_index):
        mask = torch.zeros_like(x[:, 0])
        mask[x[:, 0].topk(5)[1]] = 1
        return x * mask[:, None]


class NodeEmbedding(Own):
    """An embedding for each node, by ``arange``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NODES, 8)

    def between(self, x, edge_index):
        return x + self.embedding(torch.arange(x.size(0)))


class NodeParameter(Own):
    """A parameter with a row for each node."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(NODES, 8))

    def between(self, x, edge_index):
        return x + self.rows[: x.size(0)]


class Multihead(Own):
    """``MultiheadAttention`` over all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def between(self, x, edge_index):
        return self.attention(x[None], x[None], x[None])[0][0]


class SequenceOfNodes(Own):
    """An LSTM over the nodes as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8)

    def between(self, x, edge_index):
        return self.lstm(x)[0]


class ConvolutionOverNodes(Own):
    """A ``Conv1d`` over the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    def between(self, x, edge_index):
        return self.conv(x.T[None])[0].T


class SparseEdges(Own):
    """A layer that is given a sparse adjacency matrix."""

    def between(self, x, edge_index):
        return self.second(x, utils.to_torch_csr_tensor(edge_index, size=(x.size(0), x.size(0))).t())[:, [0, 1] * 4]


class WithEdgeIndex(Own):
    """PyG's ``EdgeIndex``, made in ``forward``."""

    def forward(self, x, edge_index):
        return super().forward(x, EdgeIndex(edge_index.contiguous(), sparse_size=(x.size(0), x.size(0))))


class Laplacian(Own):
    """``get_laplacian`` in ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GraphConv(8, 8)

    def between(self, x, edge_index):
        edges, weight = utils.get_laplacian(edge_index, normalization="sym", num_nodes=x.size(0), dtype=x.dtype)
        return self.conv(x, edges, weight)


class Normalised(Own):
    """``gcn_norm`` in ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GraphConv(8, 8)

    def between(self, x, edge_index):
        edges, weight = pyg.conv.gcn_conv.gcn_norm(edge_index, num_nodes=x.size(0), dtype=x.dtype)
        return self.conv(x, edges, weight)


class KeepsEdges(Own):
    """Edges that the first pass keeps in the model."""

    kept: Any = None

    def forward(self, x, edge_index):
        if self.kept is None:
            self.kept = utils.add_self_loops(edge_index, num_nodes=x.size(0))[0]
        return super().forward(x, self.kept)


class ChangesInPlace(Own):
    """A result that is changed in place."""

    def between(self, x, edge_index):
        x = x * 1
        x[x > 1] = 1
        x += 0.5
        return x


class Checkpointed(Own):
    """``checkpoint`` around a layer."""

    def between(self, x, edge_index):
        return checkpoint(self.first, x, edge_index, use_reentrant=False)


class CheckpointedReentrant(Own):
    """``checkpoint`` with ``use_reentrant=True`` around a layer."""

    def between(self, x, edge_index):
        return checkpoint(self.first, x, edge_index, use_reentrant=True)


class NormOfWeights(Own):
    """``spectral_norm`` of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

    def between(self, x, edge_index):
        return self.lin(x)


class NormWithBatch(Own):
    """A norm that is given ``batch``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = pyg.GraphNorm(8)

    def between(self, x, edge_index):
        return self.norm(x, x.new_zeros(x.size(0), dtype=torch.long))


class Detached(Own):
    """A layer without gradients."""

    def between(self, x, edge_index):
        with torch.no_grad():
            return self.first(x, edge_index)


class Unused(Own):
    """A layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.third = pyg.GATConv(8, 8)

    def between(self, x, edge_index):
        return x


class UsedAtRandom(Own):
    """A branch that is drawn by chance in training."""

    def between(self, x, edge_index):
        return self.first(x, edge_index) if self.training and torch.rand(()) < 0.5 else x


class Readout(Own):
    """One row for the whole graph."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index).mean(0, keepdim=True)


class MeanLoss(Own):
    """A number for the whole graph."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index).mean()


class TwoResults(Own):
    """A tuple of two results."""

    def forward(self, x, edge_index):
        y = super().forward(x, edge_index)
        return y, x


class NamedResults(Own):
    """A dictionary of results."""

    def forward(self, x, edge_index):
        return {"scores": super().forward(x, edge_index)}


class Attentions(Own):
    """A result with the weights of attention of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GATConv(8, 8)

    def between(self, x, edge_index):
        x, (_, alpha) = self.conv(x, edge_index, return_attention_weights=True)
        return x * (1 + alpha.detach().mean())


class ResultOfEdges(Own):
    """A row for each edge."""

    def forward(self, x, edge_index):
        y = super().forward(x, edge_index)
        return y[edge_index[0]] * y[edge_index[1]]


class Labels(Own):
    """The class of each node, by ``argmax``."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index).argmax(1)


class OneColumn(Own):
    """A vector with a value for each node."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index)[:, 0]


class ThreeDimensions(Own):
    """A tensor with three dimensions."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index).view(-1, 2, 2)


class Transposed(Own):
    """A result with nodes in the second dimension."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index).T


class OtherNames(Own):
    """Arguments with other names."""

    def forward(self, features, adjacency):
        return super().forward(features, adjacency)


class PairOfSizes(Own):
    """A layer that is given ``size``."""

    def between(self, x, edge_index):
        return self.second((x, x), edge_index, size=(x.size(0), x.size(0)))[:, [0, 1] * 4]


class ListOfLayers(nn.Module):
    """A ``ModuleList`` with a norm and ``JumpingKnowledge``."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.GCNConv(8, 8) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in range(3))
        self.jump, self.last = pyg.JumpingKnowledge("cat"), nn.Linear(24, 4)

    def forward(self, x, edge_index):
        found = []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x, edge_index)).relu()
            found.append(x)
        return self.last(self.jump(found))


# -- custom models with attributes of edges or nodes ----------------------------------------------------------------------


class LearnedWeights(nn.Module):
    """Edge weights that a small network makes of ``edge_attr``."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.weigh, self.conv = nn.Linear(3, 1), conv

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.conv(x, edge_index, self.weigh(edge_attr).sigmoid()[:, 0])


class CentredAttributes(nn.Module):
    """``edge_attr`` from which the mean over all edges is subtracted."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GATConv(8, 4, edge_dim=3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_attr - edge_attr.mean(0))


class LargestWeight(nn.Module):
    """Edge weights, divided by the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_weight / edge_weight.max())


class LearnedScale(nn.Module):
    """Edge weights times a learned number, in a ``ChebConv``."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.conv = nn.Parameter(torch.ones(())), pyg.ChebConv(8, 4, K=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_weight * self.scale)


class ByType(nn.Module):
    """A layer for each type of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.SAGEConv(8, 4) for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return sum(conv(x, edge_index[:, edge_type == kind]) for kind, conv in enumerate(self.convs))


class TypesThatOccur(ByType):
    """A layer for each type of edges that occurs."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        kinds = edge_type.unique().tolist()
        return x[:, :4] + sum(self.convs[kind](x, edge_index[:, edge_type == kind]) for kind in kinds)


class EmbeddedTypes(nn.Module):
    """An embedding of the types of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.conv = nn.Embedding(2, 8), pyg.GCNConv(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor, node_type: Tensor) -> Tensor:
        return self.conv(x + self.embedding(node_type), edge_index)


class OnlyTypes(nn.Module):
    """A model of types of nodes, without features."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.conv = nn.Embedding(2, 8), pyg.GATConv(8, 4)

    def forward(self, node_type: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(self.embedding(node_type), edge_index)


class Distances(nn.Module):
    """``edge_attr`` made of the positions of both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GATConv(8, 4, edge_dim=3)

    def forward(self, x: Tensor, edge_index: Tensor, pos: Tensor) -> Tensor:
        return self.conv(x, edge_index, pos[edge_index[0]] - pos[edge_index[1]])


class OptionalAttributes(nn.Module):
    """``edge_attr`` that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix = pyg.GCNConv(8, 4), nn.Linear(3, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        y = self.conv(x, edge_index)
        if edge_attr is not None:
            y = y + self.mix(edge_attr).mean(0)
        return y


MODELS = {
    "x edge_index": [
        "TutorialGCN()",
        "ThroughItem(0.157)",
        "DegreesInMessage()",
        "TutorialEdge()",
        "OwnUpdate('add')",
        "OwnUpdate('max')",
        "SubclassUpdate(8, 4)",
        "SubclassMessage(8, 4)",
        "SubclassForward(8, 4)",
        "OwnAttention()",
        "OwnAggregate()",
        "SourceOfIndex()",
        "SizeInMessage()",
        "MeanOfMessages()",
        "StateOfRows()",
        "TwoPropagates()",
        "Hooked('propagate')",
        "Hooked('message')",
        "Hooked('aggregate')",
        "Own()",
        "Residual()",
        "Recurrent()",
        "VirtualNode()",
        "FixedPoint()",
        "FunctionalDropout()",
        "DropoutEdge()",
        "Noise()",
        "WithLoops()",
        "WithInferredLoops()",
        "WithRemainingLoops()",
        "WithoutLoops()",
        "TopNodes()",
        "NodeEmbedding()",
        "NodeParameter()",
        "Multihead()",
        "SequenceOfNodes()",
        "ConvolutionOverNodes()",
        "SparseEdges()",
        "WithEdgeIndex()",
        "Laplacian()",
        "Normalised()",
        "KeepsEdges()",
        "ChangesInPlace()",
        "Checkpointed()",
        "CheckpointedReentrant()",
        "NormOfWeights()",
        "NormWithBatch()",
        "Detached()",
        "Unused()",
        "UsedAtRandom()",
        "Readout()",
        "MeanLoss()",
        "TwoResults()",
        "NamedResults()",
        "Attentions()",
        "ResultOfEdges()",
        "Labels()",
        "OneColumn()",
        "ThreeDimensions()",
        "Transposed()",
        "PairOfSizes()",
        "ListOfLayers()",
    ],
    "features=x adjacency=edge_index": [
        "OtherNames()",
    ],
    "x edge_index edge_attr": [
        "OwnMessage()",
        "LearnedWeights(pyg.GraphConv(8, 4))",
        "LearnedWeights(pyg.GCNConv(8, 4))",
        "LearnedWeights(pyg.ChebConv(8, 4, 2))",
        "CentredAttributes()",
        "OptionalAttributes()",
    ],
    "x=large edge_index": [
        "ThroughItem(15.7)",
    ],
    "x edge_index edge_weight": [
        "LargestWeight()",
        "LearnedScale()",
    ],
    "x edge_index edge_type": [
        "ByType()",
        "TypesThatOccur()",
    ],
    "x edge_index node_type": [
        "EmbeddedTypes()",
    ],
    "node_type edge_index": [
        "OnlyTypes()",
    ],
    "x edge_index pos": [
        "Distances()",
    ],
}
# Models that draw random numbers in training, so that there is nothing to compare with.
RANDOM_IN_TRAINING = ("custom.FunctionalDropout()", "custom.DropoutEdge()", "custom.Noise()", "custom.UsedAtRandom()")
