"""Epochs on a device, one JSON object for each training. Started by bench_gpu.py.

    bench_gpu_epochs.py ours PARTS.h5 --model gcn       our model, on the one part of PARTS.h5
    bench_gpu_epochs.py pyg PARTS.h5 --model gcn        the same model of PyG's layers, on the same graph
    hpcgnn launch -n 2 python bench_gpu_epochs.py policies PARTS.h5    full precision and policies of messages, by turns

Models have --layers layers of --hidden columns with layer norm, ReLU and dropout between them, and Adam. PyG's are used as well
as they allow: GCN normalises its edges once. Seconds are those of a step, without evaluations, until the device has done it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

import hpcgnn
from hpcgnn.comm import MessageConfig, Messages, MpiWorld, World
from hpcgnn.comm.devices import choose_device
from hpcgnn.comm.thread_world import one_rank
from hpcgnn.comm.threads import use_threads
from hpcgnn.devices import Device
from hpcgnn.graph import LocalGraph
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.stop import StopRequest

WARM_UP = 3  # epochs that do not count: kernels are compiled, and what is kept of matrices is made
DROPOUT, LR = 0.5, 0.01
# Of `policies`: bits of messages, and who decides. The first one is what the others are beside.
POLICIES: dict[str, tuple[int, dict[str, str]]] = {
    "full precision": (32, {}),
    "AdaQP": (8, {"bits": "adaqp"}),
    "Sylvie": (8, {"bits": "sylvie", "staleness": "sylvie"}),
    "PipeQS": (8, {"bits": "pipeqs", "staleness": "pipeqs"}),
}


def main() -> None:
    """Train, and print."""
    arguments = parse()
    if arguments.who == "policies":
        policies(arguments)
        return
    world = one_rank()
    device = choose_device(world, arguments.device)
    graph = hpcgnn.load(arguments.parts, world).to(device)
    found = (of_ours if arguments.who == "ours" else of_pyg)(arguments, graph)
    print(json.dumps(found | {"peak_bytes": device.peak_bytes(), "device": device.name}))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who", choices=("ours", "pyg", "policies"))
    parser.add_argument("parts")
    parser.add_argument("--model", choices=("gcn", "sage", "gat"), default="sage")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compute", choices=("float32", "int8"), default="float32", help="of ours")
    for name, default in (("layers", 3), ("hidden", 256), ("heads", 8), ("epochs", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def reduced(seconds: list[float], loss: float) -> dict[str, Any]:
    """Of a training: the median of the epochs that count."""
    return {"epoch_seconds": statistics.median(seconds[WARM_UP:]), "seconds": seconds, "loss": loss}


# -- ours --------------------------------------------------------------------------------------------------------------


def trainer_of(
    arguments: argparse.Namespace, graph: LocalGraph, bits: int = 32, policy: dict[str, str] | None = None
) -> hpcgnn.Trainer:
    """A training of so many epochs that count."""
    heads = {"heads": arguments.heads} if arguments.model == "gat" else {}
    config = hpcgnn.ModelConfig(
        arguments.model, layers=arguments.layers, hidden=arguments.hidden, dropout=DROPOUT, **heads
    )
    messages = Messages(graph.world, MessageConfig(bits=bits), device=graph.device)
    epochs = WARM_UP + arguments.epochs
    settings = hpcgnn.TrainConfig(
        epochs=epochs + 1,
        eval_every=epochs + 1,
        checkpoint_every=epochs + 1,
        lr=LR,
        policy=PolicyConfig(**policy or {}),
    )
    model = hpcgnn.build_model(config, graph, messages=messages, compute=arguments.compute)
    return hpcgnn.Trainer(model, graph, settings, stop=StopRequest())


def of_ours(arguments: argparse.Namespace, graph: LocalGraph) -> dict[str, Any]:
    """Our model on one rank."""
    trainer = trainer_of(arguments, graph)
    records = [trainer.run_epoch() for _ in range(WARM_UP + arguments.epochs)]
    return reduced([record["seconds"] for record in records], records[-1]["loss"])


def policies(arguments: argparse.Namespace) -> None:
    """Each policy's training in turn, on ranks that may share a GPU; rank 0 prints a line for each. Collective."""
    world: World = MpiWorld()
    use_threads(world)
    graph = hpcgnn.load(arguments.parts, world).to(choose_device(world, arguments.device, world.size))
    for name, (bits, policy) in POLICIES.items():
        trainer = trainer_of(arguments, graph, bits, policy)
        records = [trainer.run_epoch() for _ in range(WARM_UP + arguments.epochs)]
        trainer.model.messages.drain()
        sent = statistics.mean(record["bytes_sent"] for record in records[WARM_UP:])
        found = reduced([record["seconds"] for record in records], records[-1]["loss"])
        if world.rank == 0:
            print(json.dumps({"policy": name, "bytes_sent": sent, "ranks": world.size} | found), flush=True)


# -- PyG's -------------------------------------------------------------------------------------------------------------


class OfPyg(torch.nn.Module):
    """The same model of PyG's layers."""

    def __init__(self, arguments: argparse.Namespace, in_width: int, out_width: int) -> None:
        super().__init__()
        widths = [in_width, *[arguments.hidden] * (arguments.layers - 1), out_width]
        self.layers = torch.nn.ModuleList(
            layer_of_pyg(arguments, width, next_width, is_last=depth == arguments.layers - 1)
            for depth, (width, next_width) in enumerate(pairwise(widths))
        )
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for width in widths[1:-1])

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """(n, classes) scores."""
        for depth, layer in enumerate(self.layers):
            x = layer(x, edge_index)
            if depth < len(self.norms):
                x = F.dropout(self.norms[depth](x).relu(), DROPOUT)
        return x


def layer_of_pyg(arguments: argparse.Namespace, width: int, next_width: int, *, is_last: bool) -> torch.nn.Module:
    """As users write it."""
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

    if arguments.model == "gat":
        heads = 1 if is_last else arguments.heads
        return GATConv(width, next_width // heads, heads)
    return GCNConv(width, next_width, cached=True) if arguments.model == "gcn" else SAGEConv(width, next_width)


def of_pyg(arguments: argparse.Namespace, graph: LocalGraph) -> dict[str, Any]:
    """PyG's epochs."""
    device: Device = graph.device
    assert isinstance(graph.features, torch.Tensor)
    assert graph.y is not None
    x, edge_index = graph.features, graph.edge_index
    learned = graph.masks["train_mask"].nonzero().flatten()
    y = graph.y[learned].long()
    torch.manual_seed(0)
    model = OfPyg(arguments, x.shape[1], graph.meta.num_classes).to(device.where)
    optimiser = torch.optim.Adam(model.parameters(), lr=LR)
    seconds = []
    for _ in range(WARM_UP + arguments.epochs):
        device.synchronize()
        started = time.perf_counter()
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x, edge_index)[learned], y)
        loss.backward()
        optimiser.step()
        device.synchronize()
        seconds.append(time.perf_counter() - started)
    return reduced(seconds, float(loss.detach()))


if __name__ == "__main__":
    main()
