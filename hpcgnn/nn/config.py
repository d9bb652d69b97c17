"""What a model is: its architecture, and the numbers that the papers give it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hpcgnn.errors import HpcgnnError

# The aggregation that each model is made of (hpcgnn.nn.aggregate.make_aggregator); "halo" is that of attention.
MODELS = {
    "sage": "mean",
    "gcn": "gcn",
    "gin": "sum",
    "gat": "halo",
    "gatv2": "halo",
    "gcnii": "gcn",
    "dagnn": "gcn",
    "sgc": "gcn",
    "appnp": "gcn",
    "jknet": "gcn",
}
ATTENTIVE = tuple(name for name, kind in MODELS.items() if kind == "halo")
NORMS = ("layer", "batch", "none")
ACTIVATIONS = ("relu", "elu")
ATTENTIONS = ("halo", "partial")
DECODERS = ("none", "dot", "mlp")


@dataclass(frozen=True)
class ModelConfig:
    """model: of :data:`MODELS`. layers: depth; of dagnn and appnp, that of the dense network before propagation. hidden:
    width; of attention, of all heads together. dropout: before every layer but the first. input_dropout: on the features.
    norm: ``layer``, ``batch`` (statistics over all ranks) or ``none``. activation: ``relu`` or ``elu``. label_inputs:
    whether labels are inputs beside the features (see :mod:`hpcgnn.nn.label_embedding`).

    attention: ``halo``, or ``partial`` (gat) for sums that are made where the sources are, as in the plan of ``strategy``
    (:mod:`hpcgnn.nn.partial_attention`). heads, output_heads: of attention; those of the last layer are averaged.
    attention_dropout: on attention's weights. hops: of sgc, appnp and dagnn; 0: as in their papers. teleport: share of the
    first layer's result in each hop or layer (appnp's and gcnii's alpha). identity: gcnii's theta, by which deeper layers come
    closer to the identity. decoder: of links, from embeddings ``hidden`` wide (:mod:`hpcgnn.nn.decoder`); ``none`` for a model
    of classes.
    """

    model: str = "sage"
    layers: int = 3
    hidden: int = 256
    dropout: float = 0.5
    input_dropout: float = 0.0
    norm: str = "layer"
    activation: str = "relu"
    label_inputs: bool = False
    attention: str = "halo"
    heads: int = 8
    output_heads: int = 1
    attention_dropout: float = 0.0
    hops: int = 0
    teleport: float = 0.1
    identity: float = 0.5
    decoder: str = "none"

    def check(self) -> None:
        """Raise HpcgnnError for values that make no model."""
        choices = {
            "model": MODELS,
            "norm": NORMS,
            "activation": ACTIVATIONS,
            "attention": ATTENTIONS,
            "decoder": DECODERS,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise HpcgnnError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        for name in ("layers", "hidden", "heads", "output_heads"):
            if getattr(self, name) < 1:
                raise HpcgnnError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("dropout", "input_dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise HpcgnnError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if not (0 <= self.teleport <= 1 and self.identity > 0 and self.hops >= 0):
            found = f"{self.teleport}, {self.identity} and {self.hops}"
            raise HpcgnnError(f"teleport must be between 0 and 1, identity positive and hops at least 0, not {found}")
        if self.attention == "partial" and self.model != "gat":
            raise HpcgnnError(
                f"attention partial is for gat, not {self.model}: its scores are sums over an edge's ends"
            )
        if self.model in ATTENTIVE and self.hidden % self.heads:
            raise HpcgnnError(f"heads must divide hidden: {self.heads} heads cannot share a width of {self.hidden}")

    @property
    def num_hops(self) -> int:
        """``hops``, or the papers' number."""
        return self.hops or (2 if self.model == "sgc" else 10)


def describe(config: ModelConfig, in_width: int, out_width: int) -> dict[str, Any]:
    """What two models must have in common to have the same parameters."""
    widths = {"features": in_width, "classes": out_width}
    return {name: value for name, value in asdict(config).items() if not _is_free(name)} | widths


def _is_free(name: str) -> bool:
    """Whether a setting may change from one use of a model's parameters to the next."""
    return "dropout" in name or name == "attention"


def described(description: dict[str, Any]) -> ModelConfig:
    """The inverse of :func:`describe`, but for dropouts. Settings that the description is older than have their defaults."""
    return ModelConfig(**{name: value for name, value in description.items() if name not in ("features", "classes")})
