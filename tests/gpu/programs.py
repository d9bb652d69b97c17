"""Programs for ranks: the same training on the host and on a device, where dense products may differ in the last bits."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu.proxy import NAME, every_operator, on_device
from ranks.on_device import graph_of, trainer_of
from standin import standin, waits

import hpcgnn
from hpcgnn import kernels
from hpcgnn.devices import CPU, Device, device_of
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.kernels import Csr, spmm
from hpcgnn.nn import make_aggregator
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world import World
from hpcgnn.world.transport import DeviceTransport

EPOCHS = 4
WIDTH = 24


@dataclass
class Losses:
    """The results of one rank. bytes_sent: by all ranks in each epoch. waits: how often the host waited for the device in a step,
    if there is one rank; on a GPU such a wait raises an error, except in MPI."""

    losses: list[float]
    bytes_sent: list[int]
    staged: bool
    waits: int


def device_of_kind(kind: str) -> Device:
    """A device: ``cpu``, ``cuda`` (the first GPU, which ranks share), or ``standin``."""
    if not torch.cuda.is_available():
        standin()  # needed for the host, too: it must exist before the first backward pass of the process
    device = {"cpu": lambda: CPU, "cuda": lambda: device_of(torch.device("cuda", 0)), "standin": standin}[kind]()
    device.use()
    return device


def kind_of_rank(world: World, kind: str) -> str:
    """The kind of this rank's device. For ``mixed cuda``, rank 0 computes on the host, and all others on the device."""
    word, _, other = kind.partition(" ")
    return word if not other else ("cpu" if world.rank == 0 else other)


def losses_of(world: World, folder: Path, kind: str, settings: dict[str, Any]) -> Losses:
    """The losses of a short training, with dropout if the settings have it."""
    graph, mine = graph_of(world, folder, "multigraph"), kind_of_rank(world, kind)
    return over_epochs(trainer_of(graph, device_of_kind(mine), settings | {"epochs": EPOCHS + 1}), mine)


def over_epochs(trainer: hpcgnn.Trainer, kind: str) -> Losses:
    """The results of a trainer's epochs."""
    records = [trainer.run_epoch() for _ in range(EPOCHS)]
    transport, waited = trainer.model.messages.transport, 0
    staged = isinstance(transport, DeviceTransport) and transport.stages
    if kind != "cpu" and trainer.world.size == 1:
        with refused(kind) as asked:
            trainer.step(EPOCHS)
            waited = asked()
    return Losses([each["loss"] for each in records], [each["bytes_sent"] for each in records], staged, waited)


def losses_of_pyg(world: World, folder: Path, kind: str) -> Losses:
    """The losses of a distributed model of PyG's layers."""
    from torch_geometric.nn import GraphSAGE

    graph = graph_of(world, folder, "multigraph").to(device_of_kind(kind_of_rank(world, kind)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GraphSAGE(graph.meta.num_features, 16, 2, graph.meta.num_classes).to(graph.device.torch_device)
    distributed = hpcgnn.distribute(model, graph, check=False)
    config = hpcgnn.TrainConfig(epochs=EPOCHS + 1, eval_every=EPOCHS + 1)
    return over_epochs(hpcgnn.Trainer(distributed, graph, config), "cpu")  # how often PyG waits is not asked


def received_bytes(world: World, folder: Path, kind: str, bits: int) -> str:
    """A digest of the bytes that this rank receives in one exchange of aggregated rows."""
    device = device_of_kind(kind_of_rank(world, kind))
    graph = graph_of(world, folder, "multigraph").to(device)
    messages = Messages(world, MessageConfig(bits=bits, collective="alltoallv"), device=device)
    aggregator = make_aggregator(graph, "sum", "hybrid", messages=messages)
    plan, exchange = aggregator.plan, aggregator.exchange
    x = torch.randn(plan.local.num_cols, WIDTH, generator=torch.Generator().manual_seed(world.rank)).to(
        device.torch_device
    )
    messages.begin_epoch(0)
    step = exchange.step(WIDTH, x.dtype)
    spmm(plan.send, x, out=step.rows_to_send(), accumulate=False)
    message = step.start()
    exchange.wait(message)
    return hashlib.sha256(message.received.cpu().numpy().tobytes()).hexdigest()


def moved_between(world: World, folder: Path, kinds: tuple[str, str]) -> list[float]:
    """The losses of a run that begins on one device and is resumed on another one, from its checkpoint."""
    graph, run = graph_of(world, folder, "multigraph"), RunFolder(folder / "-".join(("run", *kinds)))
    for number, kind in enumerate(kinds):
        settings = {"model": "sage", "epochs": EPOCHS if number else 2, "eval_every": EPOCHS}
        trainer = trainer_of(graph, device_of_kind(kind), settings, run)
        if number:
            trainer.resume()
        trainer.fit()
    return [record["loss"] for record in run.records()]


@contextlib.contextmanager
def refused(kind: str) -> Iterator[Any]:
    """Detect waits for the device: torch raises an error, and the stand-in counts them."""
    if kind == "standin":
        before = waits()
        yield lambda: waits() - before
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield lambda: 0
    finally:
        torch.cuda.set_sync_debug_mode("default")


def by_proxy(world: World) -> list[list[torch.Tensor]]:
    """The results of the stand-in's kernels behind the proxy, and of native kernels."""
    del world
    kernels.register(on_device(standin().torch_device, "standin"))
    csr = Csr(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), 2)
    return [every_operator(name, csr) for name in (NAME, "native")]


def relative(found: list[float], wanted: list[float]) -> float:
    """The largest difference relative to the expected value."""
    return float(np.abs(np.array(found) / np.array(wanted) - 1).max())
