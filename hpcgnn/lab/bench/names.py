"""Names that commands offer: contenders' modes, directions and types; no torch is imported for them."""

from __future__ import annotations

from dataclasses import dataclass

HOST_NAME = "cpu"  # torch's name of the host
MODES, ABLATION = ("kernel", "user"), "ablation"
DIRECTIONS = ("forward", "backward")
PRODUCTS, PRODUCT_DTYPES = ("y", "dx", "dW", "layer", "product"), ("float32", "tf32", "bf16", "int8")
EDGE_OPS, EDGE_DTYPES = ("dot", "add"), ("float32", "int8")
PYG_MODELS, NORMS, ACTIVATIONS = ("gcn", "sage", "gat"), ("layer", "batch", "none"), ("relu", "elu")


@dataclass(frozen=True)
class PygSettings:
    """Settings of PyG's training, as those of `hpcgnn train`. hidden: width of all heads together. threads: threads of the
    process."""

    model: str = "sage"
    layers: int = 3
    hidden: int = 256
    heads: int = 8
    norm: str = "layer"
    activation: str = "relu"
    dropout: float = 0.5
    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 0.0
    seed: int = 0
    threads: int = 1
