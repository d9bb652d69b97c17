"""The settings that models have of their own, and the models by name: known without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.registry import Known
from hpcgnn.settings import setting

NORMS = ("layer", "batch", "none")
ACTIVATIONS = ("relu", "elu")
ATTENTIONS = ("halo", "partial")


@dataclass(frozen=True)
class LayerSettings:
    """Of models with layers that are repeated: all but those that say otherwise."""

    layers: int = setting(
        3, "Depth; of dagnn and appnp, that of the dense network before they propagate.", least=1, most=10_000
    )
    dropout: float = setting(0.5, "Before every layer but the first.", least=0, below=1, is_free=True)
    norm: str = setting(
        "layer", "After every layer but the last; batch takes the statistics of all ranks.", choices=NORMS
    )
    activation: str = setting("relu", choices=ACTIVATIONS)


@dataclass(frozen=True)
class AttentionSettings:
    """Of attention with several heads."""

    heads: int = setting(8, "heads that share --hidden.", least=1, most=1 << 20)
    output_heads: int = setting(1, "heads of the last layer, which are averaged.", least=1, most=1 << 10)
    attention_dropout: float = setting(0.0, "dropout of the weights of neighbours.", least=0, below=1, is_free=True)


@dataclass(frozen=True)
class GATSettings:
    """partial: sums are made where the sources are, as in the plan of ``strategy`` (:mod:`hpcgnn.nn.partial_attention`): scores
    that are sums over an edge's ends allow that."""

    attention: str = setting(
        "halo",
        "rows of neighbours travel; or, partial, weighted sums that are made where the neighbours are.",
        choices=ATTENTIONS,
        is_free=True,
    )


@dataclass(frozen=True)
class HopSettings:
    """Of models that propagate."""

    hops: int = setting(0, "how often to propagate; 0 as in their papers (sgc: 2, others: 10).", least=0, most=10_000)

    @property
    def num_hops(self) -> int:
        """``hops``, or the papers' number."""
        return self.hops or 10


@dataclass(frozen=True)
class SGCSettings(HopSettings):
    """With fewer hops than others."""

    @property
    def num_hops(self) -> int:
        """``hops``, or the paper's number."""
        return self.hops or 2


@dataclass(frozen=True)
class TeleportSettings:
    """Of models that mix the first result in."""

    teleport: float = setting(0.1, "alpha, the share of the first result in each hop or layer.", least=0, most=1)


@dataclass(frozen=True)
class GCNIISettings:
    """Of GCNII alone."""

    identity: float = setting(0.5, "theta: deeper layers are nearer to the identity; smaller is nearer.", above=0)


KNOWN = {
    "appnp": Known(
        "hpcgnn.nn.models.appnp",
        "personalised PageRank of a dense network's results, with gcn's aggregations",
        (LayerSettings, HopSettings, TeleportSettings),
    ),
    "dagnn": Known(
        "hpcgnn.nn.models.dagnn",
        "a dense network's results over several of gcn's hops, which each node weighs",
        (LayerSettings, HopSettings),
    ),
    "gat": Known("hpcgnn.nn.models.gat", "with attention", (LayerSettings, GATSettings, AttentionSettings)),
    "gatv2": Known(
        "hpcgnn.nn.models.gatv2",
        "with attention whose order of neighbours depends on the node",
        (LayerSettings, AttentionSettings),
    ),
    "gcn": Known(
        "hpcgnn.nn.models.gcn", "with symmetric normalisation, which also uses edge weights", (LayerSettings,)
    ),
    "gcnii": Known(
        "hpcgnn.nn.models.gcnii", "as gcn, with many layers", (LayerSettings, TeleportSettings, GCNIISettings)
    ),
    "gin": Known("hpcgnn.nn.models.gin", "with sums", (LayerSettings,)),
    "jknet": Known("hpcgnn.nn.models.jknet", "as gcn, with all layers' results joined", (LayerSettings,)),
    "sage": Known("hpcgnn.nn.models.sage", "with mean aggregation", (LayerSettings,)),
    "sgc": Known("hpcgnn.nn.models.sgc", "one linear layer behind gcn's aggregations", (SGCSettings,)),
}
