"""Names and settings that commands offer, for which no torch is imported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from hpcgnn.base.typed import NotNegative
from hpcgnn.cli import console
from hpcgnn.nn import config
from hpcgnn.train.config import TrainConfig

if TYPE_CHECKING:
    from hpcgnn.devices import Device

HOST_NAME = "cpu"  # torch's name of the host
MODES, ABLATION = ("kernel", "user"), "ablation"
DIRECTIONS = ("forward", "backward")
PRODUCTS, PRODUCT_DTYPES = ("y", "dx", "dW", "layer", "product"), ("float32", "tf32", "bf16", "int8")
EDGE_OPS, EDGE_DTYPES = ("dot", "add"), ("float32", "int8")
PYG, DGL, SAR = PEERS = ("pyg", "dgl", "sar")
PEER_MODELS, ACTIVATIONS, NORMS = ("gcn", "sage", "gat", "rgcn"), ("relu", "elu"), config.NORMS[1:]  # without auto

Advance = Callable[[int], None]
LIMITS = "limits.json"  # in the folder of a run


class Floor(msgspec.Struct, frozen=True):
    """Seconds in an epoch, and the least that the machine allows."""

    seconds: NotNegative
    floor_seconds: NotNegative

    @property
    def to_floor(self) -> float | None:
        """Their ratio; None without a floor."""
        return self.seconds / self.floor_seconds if self.floor_seconds else None


class CallFloor(Floor, frozen=True, kw_only=True):
    """All calls of an epoch with one kernel or operation of torch, and one shape."""

    phase: str
    name: str
    shape: tuple[int, ...]
    calls: NotNegative


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch beside its floor, as ``hpcgnn bench epoch`` measures it: ``phases`` as means over ranks, ``wire`` beside them, and
    the ``calls`` of rank 0 with the most seconds beyond their floor. The floor of the ``epoch`` is the larger one of those of
    computing and of the links."""

    ranks: int
    threads: int
    compute: str
    parts_uuid: str
    epoch: Floor
    compute_floor_seconds: NotNegative
    wire_floor_seconds: NotNegative
    phases: dict[str, Floor]
    wire: Floor
    calls: tuple[CallFloor, ...]

    def __post_init__(self) -> None:
        if not (self.epoch.seconds and self.phases):
            raise ValueError("an epoch takes time, and has phases")

    def advice(self) -> str:
        """A sentence about the phase with the most seconds beyond its floor."""
        name, most = max(self.phases.items(), key=lambda item: item[1].seconds - item[1].floor_seconds)
        share = (most.seconds - most.floor_seconds) / self.epoch.seconds
        limit = "the links" if self.wire_floor_seconds > self.compute_floor_seconds else "computing"
        return (
            f"An epoch takes {self.epoch.to_floor or 1:.2f} times its floor, which {limit} set. The most to gain is in {name}: "
            f"{share:.0%} of the epoch is beyond its floor."
        )

    def rows(self) -> dict[str, Floor]:
        """The lines of a table: phases that take time, and the epoch; with several ranks, the wire beside them."""
        phases = {name: each for name, each in self.phases.items() if each.seconds or each.floor_seconds}
        beside = {"wire (beside the phases)": self.wire} if self.ranks > 1 else {}
        return phases | {"epoch, slowest rank": self.epoch} | beside


@dataclass(frozen=True)
class How:
    """The way to measure contenders. dtypes: types beside float32, which is always measured. quiet: without progress bars."""

    threads: int
    rounds: int
    device_name: str = HOST_NAME
    dtypes: tuple[str, ...] = ()
    quiet: bool = True

    @cached_property
    def device(self) -> Device:
        """The device to measure."""
        from hpcgnn.world.devices import choose_device
        from hpcgnn.world.thread_world import one_rank

        return choose_device(one_rank(), self.device_name)

    @property
    def place(self) -> str:
        """Torch's name of the device."""
        return str(self.device.torch_device)

    def progress(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """A progress bar."""
        return console.progress(title, total, self.quiet)


@dataclass(frozen=True)
class PeerSettings:
    """Settings of a training by PyG, DGL or SAR, as those of `hpcgnn train`. hidden: width of all heads together. fanouts: the
    neighbours that DGL samples for each layer, as "10,10,10"; all of them if empty. workers: DGL's processes that sample.
    threads: those of each process. ranks, hosts, rate: SAR's processes, on virtual hosts if there are any."""

    library: str = PYG
    model: str = "sage"
    layers: int = 3
    hidden: int = 256
    heads: int = 8
    norm: str = "mean"  # that of ``--norm auto``
    activation: str = "relu"
    dropout: float = config.LayerSettings.dropout
    epochs: int = 100
    eval_every: int = TrainConfig.eval_every
    lr: float = TrainConfig.lr
    weight_decay: float = 0.0
    seed: int = 0
    threads: int = 1
    device: str = HOST_NAME
    fanouts: str = ""
    batch_size: int = 1024
    workers: int = 0
    ranks: int = 1
    hosts: int = 0
    rate: str = ""
