"""The public Python functions, each with a correct call."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

import hpcgnn
from campaign.run import ROOT
from hpcgnn import kernels
from hpcgnn.base.process import StopRequest
from hpcgnn.data.sealing import seal
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.local_graph import load
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.world.thread_world import one_rank

_ROWS, _COLUMNS, _WIDTH = 3, 4, 8
_PARTS, _GRAPHS = (("plain-1.h5", "parts.h5"),), (("plain-graph.h5", "graph.h5"),)
_GRAPH_NODES = 40
_OF_FILES = (
    "does not exist",
    "there is no file",
    "is a folder",
    "cannot be",
    "cannot read",
    "cannot write",
    "source",
)  # these precede the path, which may be any text


@dataclass(frozen=True)
class Call:
    """A correct call. make: returns the function and its arguments. arguments: names of those that are replaced. tensors: an
    example of each argument that is, or may be, a tensor. copies: files that the call reads. words: words that a sentence may
    contain instead of the argument's name. has_reference: whether the call takes a backend.
    """

    make: Callable[[], tuple[Callable[..., Any], dict[str, Any]]]
    arguments: tuple[str, ...]
    tensors: dict[str, Callable[[], torch.Tensor]] = field(default_factory=dict)
    copies: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()
    has_reference: bool = False


def _csr() -> kernels.Csr:
    return kernels.Csr(torch.tensor([0, 2, 2, 5]), torch.tensor([0, 3, 1, 1, 2], dtype=torch.int32), _COLUMNS)


def _rows(count: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.linspace(-1, 1, count * _WIDTH).reshape(count, _WIDTH)


def _index() -> torch.Tensor:
    return torch.tensor([2, 0, 3, 3])


def _edges() -> torch.Tensor:
    return torch.linspace(-1, 1, 10).reshape(5, 2)


def _kernel(function: Callable[..., Any], plain: dict[str, Any], **tensors: Callable[[], torch.Tensor] | None) -> Call:
    """The call of a kernel. tensors: examples; the name of one that the correct call leaves out ends with an underscore."""
    examples = {name.rstrip("_"): example for name, example in tensors.items() if example is not None}

    def make() -> tuple[Callable[..., Any], dict[str, Any]]:
        given = {
            name: value() if callable(value) and name in ("csr", "norm", "mask") else value
            for name, value in plain.items()
        }
        return function, given | {
            name: example() for name, example in tensors.items() if example is not None and name[-1] != "_"
        }

    names = (*plain, *examples, *([] if "backend" in plain or function is kernels.Csr else ["backend"]))
    return Call(make, names, examples, has_reference="backend" in names)


_X, _Y = _rows(_COLUMNS), _rows(_ROWS)
_KERNELS = {
    "spmm": _kernel(
        kernels.spmm,
        {"csr": _csr, "reduce": "sum", "accumulate": True},
        x=_X,
        weight_=lambda: torch.ones(5),
        out_=_Y,
        scale_=lambda: torch.ones(_ROWS),
    ),
    "sddmm": _kernel(kernels.sddmm, {"csr": _csr, "op": "dot", "heads": 2}, a=_Y, b=_X),
    "edge_softmax": _kernel(kernels.edge_softmax, {"csr": _csr}, scores=_edges),
    "edge_sum": _kernel(kernels.edge_sum, {"csr": _csr}, values=_edges),
    "attention_weights": _kernel(
        kernels.attention_weights,
        {"csr": _csr, "slope": 0.2},
        a=lambda: _Y()[:, :2].contiguous(),
        b=lambda: _X()[:, :2].contiguous(),
    ),
    "dense_product": _kernel(
        kernels.dense_product,
        {"compute": "float32"},
        x=_X,
        weight=lambda: torch.ones(_WIDTH, 5),
        bias_=lambda: torch.ones(5),
        plus_=lambda: torch.ones(_COLUMNS, 5),
    ),
    "activation": _kernel(kernels.activation, {"norm": None, "mask": None}, x=_X),
    "dropout": _kernel(kernels.dropout, {"key": 3, "probability": 0.5}, x=_X, ids=_index),
    "gather_rows": _kernel(kernels.gather_rows, {}, x=_X, index=_index),
    "scatter_rows": _kernel(kernels.scatter_rows, {"num_rows": 5}, index=lambda: torch.tensor([2, 0, 3, 1]), src=_X),
    "pack_bf16": _kernel(kernels.pack_bf16, {}, x=_X),
    "unpack_bf16": _kernel(kernels.unpack_bf16, {}, x=lambda: _X().to(torch.bfloat16)),
    "Csr": _kernel(
        kernels.Csr,
        {"num_cols": _COLUMNS, "check": True},
        indptr=lambda: torch.tensor([0, 2, 2, 5]),
        indices=lambda: torch.tensor([0, 3, 1, 1, 2]),
        weight_=lambda: torch.ones(5),
    ),
    "resolve": Call(lambda: (kernels.resolve, {"backend": "auto", "x": _X()}), ("backend", "x"), {"x": _X}),
    "Norm": Call(
        lambda: (_normed, {"weight": torch.ones(_WIDTH), "bias": torch.zeros(_WIDTH), "eps": 1e-5}),
        ("weight", "bias", "eps"),
        {"weight": lambda: torch.ones(_WIDTH), "bias": lambda: torch.zeros(_WIDTH)},
        words=("norm",),
    ),
    "DropoutMask": Call(
        lambda: (_masked, {"ids": _index(), "key": 3, "probability": 0.5}),
        ("ids", "key", "probability"),
        {"ids": _index},
        words=("mask",),
    ),
    "register": Call(lambda: (_register, {"backend": None}), ("backend",)),
}


def _normed(**values: Any) -> torch.Tensor:
    return kernels.activation(_X(), kernels.Norm(**values))


def _masked(**values: Any) -> torch.Tensor:
    return kernels.activation(_X(), None, kernels.DropoutMask(**values))


def _register(backend: Any) -> None:
    if backend is not None:
        kernels.register(backend)


def _graph() -> Any:
    return load("parts.h5", one_rank())


def _model(graph: Any) -> Any:
    return hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=8), graph)


def _train(config: Any, **given: Any) -> None:
    graph = _graph()
    hpcgnn.Trainer(_model(graph), graph, config, **{"stop": StopRequest()} | given).fit()


def _building() -> tuple[Callable[..., Any], dict[str, Any]]:
    given = {
        "config": hpcgnn.ModelConfig("gcn", layers=2, hidden=8),
        "graph": _graph(),
        "strategy": "hybrid",
        "seed": 0,
    }
    return hpcgnn.build_model, given


def _distributing() -> tuple[Callable[..., Any], dict[str, Any]]:
    from torch_geometric.nn import GCNConv

    return hpcgnn.distribute, {"model": GCNConv(6, 3), "graph": _graph(), "check": False}


def _training() -> tuple[Callable[..., Any], dict[str, Any]]:
    graph = _graph()

    def train(**given: Any) -> None:
        hpcgnn.Trainer(**given).fit()

    return train, {
        "model": _model(graph),
        "graph": graph,
        "config": hpcgnn.TrainConfig(epochs=1),
        "stop": StopRequest(),
    }


def _summing() -> tuple[Callable[..., Any], dict[str, Any]]:
    model = torch.nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    return hpcgnn.sum_gradients, {"model": model, "world": one_rank()}


def _splitting() -> tuple[Callable[..., Any], dict[str, Any]]:
    return hpcgnn.split_links, {"graph": _graph(), "config": hpcgnn.LinkConfig()}


def _gathering() -> tuple[Callable[..., Any], dict[str, Any]]:
    return hpcgnn.gather, {"scores": _scores(), "graph": _graph()}


def _over_nodes(name: str) -> Callable[[], tuple[Callable[..., Any], dict[str, Any]]]:
    """The call of a helper for values of all nodes."""
    return lambda: (getattr(hpcgnn, name), {"values" if name == "mean_loss" else "x": _scores(), "graph": _graph()})


def _scores() -> torch.Tensor:
    return torch.linspace(-1, 1, 3 * _GRAPH_NODES).reshape(_GRAPH_NODES, 3)


def _from_pyg() -> tuple[Callable[..., Any], dict[str, Any]]:
    from torch_geometric.data import Data

    data = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([0, 1, 0]))
    return hpcgnn.from_pyg, {"data": data, "path": "out.h5", "mask_column": 0}


def _from_networkx() -> tuple[Callable[..., Any], dict[str, Any]]:
    import networkx as nx

    return hpcgnn.from_networkx, {"graph": nx.path_graph(4), "path": "out.h5"}


def _to_dgl(path: Any) -> None:
    """The call of to_dgl with a stand-in, because DGL does not load with the versions of torch in these tests."""
    sys.path.append(str(ROOT / "tests" / "data"))
    sys.modules["dgl"] = importlib.import_module("dgl_standin").module()
    sys.path.pop()
    hpcgnn.to_dgl(path)


def _of_config(use: Callable[[dict[str, Any]], Any]) -> Callable[[], tuple[Callable[..., Any], dict[str, Any]]]:
    """The call of a configuration, whose fields are the arguments; the object is made and used."""
    return lambda: (lambda **values: use(values), {})


def _names(kind: type, *more: str, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    return (*(each.name for each in fields(kind) if each.name not in ("own", *without)), *more)


def _messages(values: dict[str, Any]) -> None:
    graph = _graph()
    messages = Messages(one_rank(), MessageConfig(**values))
    hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=8), graph, messages=messages)


def _policy(values: dict[str, Any]) -> None:
    _train(
        hpcgnn.TrainConfig(epochs=2, policy=hpcgnn.PolicyConfig(**{"bits": "adaqp", "staleness": "pipeline"} | values))
    )


_FUNCTIONS = {
    "load": Call(
        lambda: (hpcgnn.load, {"path": "parts.h5", "world": one_rank()}),
        ("path", "world", "any_ranks", "device"),
        copies=_PARTS,
        words=_OF_FILES,
    ),
    "build_model": Call(
        _building,
        (
            "config",
            "graph",
            "strategy",
            "seed",
            "messages",
            "backend",
            "dtype",
            "compute",
            "keep_input_aggregation",
            "int8",
        ),
        copies=_PARTS,
    ),
    "distribute": Call(
        _distributing,
        ("model", "graph", "strategy", "messages", "seed", "backend", "check", "compute", "int8"),
        copies=_PARTS,
    ),
    "Trainer": Call(
        _training, ("model", "graph", "config", "run", "stop", "clock", "measure_costs", "on_epoch"), copies=_PARTS
    ),
    "sum_gradients": Call(_summing, ("model", "world")),
    "mean_loss": Call(_over_nodes("mean_loss"), ("values", "graph"), {"values": _scores}, copies=_PARTS),
    **{
        name: Call(_over_nodes(name), ("x", "graph"), {"x": _scores}, copies=_PARTS)
        for name in ("mean", "sum", "max", "min", "softmax")
    },
    "split_links": Call(_splitting, ("graph", "config"), copies=_PARTS),
    "gather": Call(_gathering, ("scores", "graph"), {"scores": _scores}, copies=_PARTS),
    "from_pyg": Call(
        _from_pyg,
        ("data", "path", "mask_column", *_names(ConvertOptions)),
        words=(*_OF_FILES, "the PyG graph", "split="),
    ),
    "from_networkx": Call(
        _from_networkx,
        ("graph", "path", "x", "y", "weight", *_names(ConvertOptions)),
        words=(*_OF_FILES, "the networkx graph"),
    ),
    "to_pyg": Call(lambda: (hpcgnn.to_pyg, {"path": "graph.h5"}), ("path", "sparse"), copies=_GRAPHS, words=_OF_FILES),
    "names": Call(
        lambda: (hpcgnn.names, {"path": "graph.h5"}), ("path", "kind", "numbers"), copies=_GRAPHS, words=_OF_FILES
    ),
    "to_dgl": Call(lambda: (_to_dgl, {"path": "graph.h5"}), ("path",), copies=_GRAPHS, words=_OF_FILES),
    "ModelConfig": Call(
        _of_config(lambda v: hpcgnn.build_model(hpcgnn.ModelConfig(**{"model": "gcn", "hidden": 8} | v), _graph())),
        _names(hpcgnn.ModelConfig, "layers", "dropout", "norm", "activation", "heads"),
        copies=_PARTS,
    ),
    "TrainConfig": Call(
        _of_config(lambda v: _train(hpcgnn.TrainConfig(**{"epochs": 1} | v))),
        _names(hpcgnn.TrainConfig, without=("epochs",)),
        copies=_PARTS,
    ),
    "PolicyConfig": Call(_of_config(_policy), _names(hpcgnn.PolicyConfig, "group_rows", "solver"), copies=_PARTS),
    "LinkConfig": Call(
        _of_config(lambda v: hpcgnn.split_links(_graph(), hpcgnn.LinkConfig(**v))),
        _names(hpcgnn.LinkConfig),
        copies=_PARTS,
    ),
    "RunConfig": Call(_of_config(lambda v: hpcgnn.RunConfig(**v)), _names(hpcgnn.RunConfig)),
    "MessageConfig": Call(_of_config(_messages), _names(MessageConfig), copies=_PARTS),
    "Messages": Call(lambda: (Messages, {"world": one_rank()}), ("world", "config", "seed", "timings", "device")),
    "PartitionOptions": Call(
        _of_config(lambda v: partition(one_rank(), "graph.h5", "out.h5", PartitionOptions(**{"num_parts": 2} | v))),
        _names(PartitionOptions),
        copies=(("plain-graph.h5", "graph.h5"),),
    ),
    "partition": Call(
        lambda: (
            partition,
            {"world": one_rank(), "graph_path": "graph.h5", "parts_path": "out.h5", "options": PartitionOptions(2)},
        ),
        ("world", "graph_path", "parts_path", "options"),
        copies=(("plain-graph.h5", "graph.h5"),),
        words=_OF_FILES,
    ),
    "convert": Call(
        lambda: (convert, {"source": "sbm:nodes=60,blocks=3,degree=4,features=4", "output": "out.h5"}),
        ("source", "output", "options"),
        words=_OF_FILES,
    ),
    "ConvertOptions": Call(
        _of_config(lambda v: convert("sbm:nodes=60,blocks=3,degree=4,features=4", "out.h5", ConvertOptions(**v))),
        _names(ConvertOptions),
    ),
    "seal": Call(lambda: (seal, {"path": "parts.h5"}), ("path",), copies=_PARTS, words=_OF_FILES),
}
CALLS = {f"hpcgnn.kernels.{name}": call for name, call in _KERNELS.items()} | {
    f"hpcgnn.{name}": call for name, call in _FUNCTIONS.items()
}
