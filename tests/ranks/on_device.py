"""Programs for ranks: training in the memory of a device (tests/standin), compared with the same training on the host."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import small_graphs
import torch
from ranks.devices import taking_device_memory
from standin import bytes_to_host, standin, waits

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.cli import main
from hpcgnn.devices import CPU, Device
from hpcgnn.exchange import Messages
from hpcgnn.exchange.mailbox import Message
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.policy.clock import Clock, read_log
from hpcgnn.train import checkpoint
from hpcgnn.train import predict as prediction
from hpcgnn.train.links import LinkSplit
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world import World
from hpcgnn.world.transport import DeviceTransport

EPOCHS = 5
SMALL = {"layers": 3, "hidden": 16, "epochs": EPOCHS, "eval_every": EPOCHS, "compute": "float32"}


@dataclass
class Trained:
    """The results of one rank. waits: number of times in each epoch, without evaluations, that the host waited for the device.
    bytes_to_host: bytes copied by these. The other fields must not depend on the device.
    """

    losses: list[float]
    metrics: list[float | None]
    weights: str
    bytes_sent: list[int]
    bits: list[Any]
    stale: list[bool]
    waits: list[int]
    bytes_to_host: list[int]
    device: str
    staged: bool

    def same(self) -> tuple[Any, ...]:
        """The fields to compare."""
        return self.losses, self.metrics, self.weights, self.bytes_sent, self.bits, self.stale


def graph_of(world: World, folder: Path, kind: str) -> LocalGraph:
    """An even graph or a multigraph with types of edges, which may be weighted, sparse or multi-label."""
    arrays = small_graphs.even_graph(200, 1000)
    if kind != "even":
        arrays = small_graphs.random_multigraph(nodes=200, edges=1500, weighted=kind == "weighted")
    if kind == "sparse":
        arrays.x = small_graphs.sp.csr_matrix(np.where(arrays.x > 0.8, arrays.x, 0).astype(np.float32))
    if kind == "multi-label":
        arrays.y = (np.arange(4)[None, :] <= arrays.y[:, None]).astype(np.uint8)
    return small_graphs.on_ranks(world, small_graphs.with_typed_edges(arrays), folder / f"{kind}-{world.size}.h5")


def trainer_of(
    graph: LocalGraph, device: Device, settings: dict[str, Any], run: RunFolder | None = None, log: Path | None = None
) -> hpcgnn.Trainer:
    """A trainer like that of ``hpcgnn train``."""
    config, world = hpcgnn.RunConfig.from_settings(SMALL | settings), graph.world
    graph = graph.reordered(config.node_order).to(device)
    data: LocalGraph | LinkSplit = graph
    if config.task == "link":
        data = hpcgnn.split_links(graph, config.links)
    assert isinstance(config.model, hpcgnn.ModelConfig)
    model = hpcgnn.build_model(
        config.model,
        data if isinstance(data, LocalGraph) else data.train,
        messages=Messages(world, config.messages, device=device),
        strategy=config.strategy,
        seed=config.seed,
        compute=config.compute,
        keep_input_aggregation=config.cache_input_aggregation,
    )
    clock = Clock(None if log is None else read_log(world, log))
    return hpcgnn.Trainer(model, data, config.train, run=run, stop=StopRequest(), clock=clock)


def trained(trainer: hpcgnn.Trainer) -> Trained:
    """The results of a training."""
    asked, copied = [], []
    step = trainer.step

    def counted(epoch: int) -> tuple[float, float]:
        before = waits(), bytes_to_host()
        result = step(epoch)
        asked.append(waits() - before[0])
        copied.append(bytes_to_host() - before[1])
        return result

    trainer.step = counted  # type: ignore[method-assign]
    trainer.fit()
    transport = trainer.model.messages.transport
    records = trainer.run.records() if trainer.run else trainer.records
    return Trained(
        [record["loss"] for record in records],
        [records[-1][f"{name}_metric"] for name in ("train", "val", "test")],
        digest(trainer),
        [record["bytes_sent"] for record in records],
        [record["bits"] for record in records],
        [record["stale"] for record in records],
        asked,
        copied,
        trainer.device.torch_device.type,
        isinstance(transport, DeviceTransport) and transport.stages,
    )


def digest(trainer: hpcgnn.Trainer) -> str:
    """A digest of all weights."""
    state = trainer.model.state_dict()
    values = [state[name].detach().cpu().numpy().tobytes() for name in sorted(state)]
    return hashlib.sha256(b"".join(values)).hexdigest()[:16]


def here_and_there(world: World, folder: Path, kind: str, settings: dict[str, Any]) -> list[Trained]:
    """The results on the host, on the device, and with odd ranks on the device; policies see the host's times in all three."""
    device, found = standin(), []
    folder = Path(world.broadcast(tempfile.mkdtemp(dir=folder) if world.rank == 0 else None))
    graph = graph_of(world, folder, kind)
    for number, mine in enumerate((CPU, device, device if world.rank % 2 else CPU)):
        log = folder / "0" / "decisions.jsonl" if number and settings.keys() & {"bits", "staleness"} else None
        log = log if log is not None and log.exists() else None
        found.append(trained(trainer_of(graph, mine, settings, RunFolder(folder / str(number)), log)))
    return found


def directly(world: World, folder: Path, settings: dict[str, Any]) -> list[Trained]:
    """The results on the device if MPI reads and writes its memory, which every MPI can do with the stand-in's memory."""
    device = standin()
    graph = graph_of(world, folder, "multigraph")
    with taking_device_memory(world):
        return [trained(trainer_of(graph, mine, settings)) for mine in (CPU, device)]


def moved_between(world: World, folder: Path, settings: dict[str, Any]) -> list[str]:
    """Digests of the weights of an uninterrupted run, and of one that is resumed on the other device, in either direction."""
    device = standin()
    graph = graph_of(world, folder, "even")
    found = [trained(trainer_of(graph, CPU, settings)).weights]
    for first, then in ((CPU, device), (device, CPU)):
        name = world.broadcast(tempfile.mkdtemp(dir=folder) if world.rank == 0 else None)
        run = RunFolder(Path(name) / "run")
        short = trainer_of(graph, first, settings | {"epochs": 2, "eval_every": EPOCHS}, run)
        short.fit()
        longer = trainer_of(graph, then, settings, run)
        longer.resume()
        found.append(trained(longer).weights)
    return found


def raised(world: World, attempt: Callable[[], object]) -> str:
    """The sentence of an error on which all ranks agree."""
    try:
        attempt()
    except hpcgnn.HpcgnnError as error:
        return str(error) if error.agreed else f"this rank alone: {error}"
    return "nothing"


def trouble(world: World, folder: Path) -> str:
    """The sentence about a NaN that a device sends."""
    graph = graph_of(world, folder, "multigraph")
    assert isinstance(graph.features, torch.Tensor)
    if world.rank == 1:
        graph.features[:] = torch.nan
    trainer = trainer_of(graph, standin(), {"bits": "4"})
    return raised(world, trainer.fit)


@dataclass
class Compared:
    """The results of one rank. losses: of all epochs. wires: digests of the bytes received in each exchange, in order."""

    losses: list[float]
    wires: list[str]


def with_backends(world: World, folder: Path, backends: list[str], settings: dict[str, Any]) -> Compared:
    """The results of a training in which ranks use different kernel backends."""
    config = hpcgnn.RunConfig.from_settings(SMALL | settings)
    arrays = small_graphs.random_multigraph(nodes=60, edges=300)
    graph = small_graphs.on_ranks(world, arrays, folder / f"backends-{world.size}.h5")
    assert isinstance(config.model, hpcgnn.ModelConfig)
    messages = Messages(world, config.messages)
    model = hpcgnn.build_model(config.model, graph, messages=messages, backend=backends[world.rank])
    trainer = hpcgnn.Trainer(model, graph, config.train, stop=StopRequest())
    wires, wait = [], messages.wait

    def noted(message: Message) -> None:
        wait(message)
        wires.append(hashlib.sha256(message.received.numpy().tobytes()).hexdigest()[:16])

    messages.wait = noted  # type: ignore[method-assign]
    trainer.fit()
    return Compared([record["loss"] for record in trainer.records], wires)


def distributed(world: World, folder: Path) -> list[Trained]:
    """The results of distributed PyG models on the host and on the device."""
    from ranks.distributed import models

    device, graph, found = standin(), graph_of(world, folder, "weighted"), []
    config = hpcgnn.TrainConfig(epochs=EPOCHS, eval_every=EPOCHS)
    for name in ("gcn", "sage and gat", "cheb and appnp"):
        for mine in (CPU, device):
            moved = graph.to(mine)
            plain = models(graph.meta.num_features, graph.meta.num_classes)[name].to(mine.torch_device)
            model = hpcgnn.distribute(plain, moved, check=False)
            found.append(trained(hpcgnn.Trainer(model, moved, config, stop=StopRequest())))
    return found


def predicted(world: World, folder: Path) -> bool:
    """Return whether the device computes the same scores from a checkpoint that the host wrote."""
    graph = graph_of(world, folder, "sparse")
    run = RunFolder(Path(world.broadcast(tempfile.mkdtemp(dir=folder) if world.rank == 0 else None)) / "run")
    trainer_of(graph, CPU, {"model": "gat"}, run).fit()
    content = checkpoint.read(world, checkpoint.folder(run.path) / "last.pt", None)
    host, device = (prediction.predict(graph.to(each), content) for each in (CPU, standin()))
    return torch.equal(host, device.cpu()) and device.device.type == "standin"


def out_of_memory(world: World) -> str:
    """The sentence of the command if the device's memory is exhausted."""
    standin()
    torch.ops.standin.limit_memory(torch.ops.standin.counts()[3] + 1000)
    try:
        torch.empty(10**6, device="standin")
    except torch.OutOfMemoryError as error:
        return main._sentence_of(error)
    finally:
        torch.ops.standin.limit_memory(2**62)
    return "nothing"
