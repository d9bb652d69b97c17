"""The settings that only some models have, and the models by name. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.base.settings import Known, setting

NORMS = ("layer", "batch", "none")
ACTIVATIONS = ("relu", "elu")
ATTENTIONS = ("halo", "partial")


@dataclass(frozen=True)
class LayerSettings:
    """Settings of models with several layers, which are all models except SGC."""

    layers: int = setting(
        3,
        "Number of layers; for dagnn and appnp, the number of dense layers before the propagation.",
        least=1,
        most=10_000,
    )
    dropout: float = setting(0.5, "Dropout rate before every layer except the first.", least=0, below=1, is_free=True)
    norm: str = setting(
        "layer",
        "Normalisation after every layer except the last: layer normalisation, batch normalisation with the statistics of "
        "all ranks, or none.",
        choices=NORMS,
    )
    activation: str = setting("relu", "Activation function between layers.", choices=ACTIVATIONS)


@dataclass(frozen=True)
class AttentionSettings:
    """Settings of models with multi-head attention."""

    heads: int = setting(8, "Number of attention heads; each has --hidden / --heads columns.", least=1, most=1 << 20)
    output_heads: int = setting(
        1, "Number of attention heads of the last layer; their outputs are averaged.", least=1, most=1 << 10
    )
    attention_dropout: float = setting(0.0, "Dropout rate of the attention weights.", least=0, below=1, is_free=True)


@dataclass(frozen=True)
class GATSettings:
    """Settings of GAT alone.

    With ``partial`` attention, the ranks that own the source nodes compute weighted sums according to the plan of ``strategy``
    (:mod:`hpcgnn.nn.partial_attention`). This is possible because GAT's score is a sum of one term for each end of an edge.
    """

    attention: str = setting(
        "halo",
        "Messages of attention. halo: ranks send the rows of boundary nodes; partial: ranks send partial weighted sums, which "
        "the receiver merges (log-sum-exp merge).",
        choices=ATTENTIONS,
        is_free=True,
    )


@dataclass(frozen=True)
class HopSettings:
    """Settings of models that propagate features without weights."""

    hops: int = setting(
        0,
        "Number of propagation steps; 0 takes the number in the model's paper (2 for sgc, 10 for appnp and dagnn).",
        least=0,
        most=10_000,
    )

    @property
    def num_hops(self) -> int:
        """``hops``, or the number in the models' papers if ``hops`` is 0."""
        return self.hops or 10


@dataclass(frozen=True)
class SGCSettings(HopSettings):
    """Settings of SGC, whose paper uses fewer hops."""

    @property
    def num_hops(self) -> int:
        """``hops``, or the number in SGC's paper if ``hops`` is 0."""
        return self.hops or 2


@dataclass(frozen=True)
class TeleportSettings:
    """Settings of models in which every hop or layer mixes in the initial representation."""

    teleport: float = setting(
        0.1, "Share of the initial representation in each hop or layer (alpha in the papers).", least=0, most=1
    )


@dataclass(frozen=True)
class GCNIISettings:
    """Settings of GCNII alone."""

    identity: float = setting(
        0.5,
        "Strength of the weight matrices beside the identity mapping (lambda in the paper, theta in PyG): layer l mixes the "
        "weight matrix in with the share log(theta / l + 1).",
        above=0,
    )


KNOWN = {
    "appnp": Known(
        "hpcgnn.nn.models.appnp",
        "a dense network, then personalised PageRank over GCN's aggregations",
        (LayerSettings, HopSettings, TeleportSettings),
    ),
    "dagnn": Known(
        "hpcgnn.nn.models.dagnn",
        "a dense network, then several GCN aggregations whose results each node weighs",
        (LayerSettings, HopSettings),
    ),
    "gat": Known("hpcgnn.nn.models.gat", "attention over neighbours", (LayerSettings, GATSettings, AttentionSettings)),
    "gatv2": Known(
        "hpcgnn.nn.models.gatv2",
        "attention whose ranking of neighbours depends on the node",
        (LayerSettings, AttentionSettings),
    ),
    "gcn": Known(
        "hpcgnn.nn.models.gcn", "symmetrically normalised sums, with edge weights if there are any", (LayerSettings,)
    ),
    "gcnii": Known(
        "hpcgnn.nn.models.gcnii",
        "deep GCN with initial residual and identity mapping",
        (LayerSettings, TeleportSettings, GCNIISettings),
    ),
    "gin": Known("hpcgnn.nn.models.gin", "sums of neighbours, then a small dense network", (LayerSettings,)),
    "jknet": Known("hpcgnn.nn.models.jknet", "GCN whose last layer sees the outputs of all layers", (LayerSettings,)),
    "sage": Known("hpcgnn.nn.models.sage", "GraphSAGE with mean aggregation", (LayerSettings,)),
    "sgc": Known("hpcgnn.nn.models.sgc", "GCN's aggregations, then one linear layer", (SGCSettings,)),
}
