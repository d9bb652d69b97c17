"""Names and settings that commands offer, for which no torch is imported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

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
PYG, DGL = PEERS = ("pyg", "dgl")
PEER_MODELS, ACTIVATIONS, NORMS = ("gcn", "sage", "gat"), ("relu", "elu"), config.NORMS[1:]  # without auto

Advance = Callable[[int], None]


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
    """Settings of a training by PyG or DGL, as those of `hpcgnn train`. hidden: width of all heads together. threads: threads of
    the process."""

    library: str = PYG
    model: str = "sage"
    layers: int = 3
    hidden: int = 256
    heads: int = 8
    norm: str = "mean"  # that of ``--norm auto``
    activation: str = "relu"
    dropout: float = config.LayerSettings.dropout
    epochs: int = 100
    lr: float = TrainConfig.lr
    weight_decay: float = 0.0
    seed: int = 0
    threads: int = 1
