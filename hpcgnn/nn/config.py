"""The configuration of a model: its name, the settings that all models have, and the settings of its own class.

The names of arithmetics are explained in :mod:`hpcgnn.nn.compute`, and those of 8-bit integers in :mod:`hpcgnn.nn.int8`. This
module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hpcgnn.base.errors import WrongValueError
from hpcgnn.base.settings import Checked, Composed, LazyEntry, Registry, setting, settings_of
from hpcgnn.base.typed import INT8_BITS
from hpcgnn.exchange.message_config import MessageConfig
from hpcgnn.plan.relations import BY_TYPE

AUTO, FLOAT32, BF16, EMULATED, TF32 = "auto", "float32", "bf16", "bf16-emulated", "tf32"
INT8, INT8_ALWAYS, INT4 = "int8", "int8-always", "int4"
INTEGERS = (INT8, INT8_ALWAYS)
KEEP, RECOMPUTE, EIGHT_BITS = "keep", "recompute", "8bit"
ACTIVATION_MODES = (KEEP, RECOMPUTE, EIGHT_BITS, AUTO)
COMPUTES = (AUTO, FLOAT32, BF16, EMULATED, TF32, *INTEGERS, INT4)
STOCHASTIC, NEAREST = "stochastic", "nearest"
ROW, TENSOR = "row", "tensor"


@dataclass(frozen=True)
class Int8Config(Checked):
    """Settings of training in 8-bit integers; ``most_error`` is that of Tango's Eq. 4."""

    rounding: str = setting(
        STOCHASTIC,
        "Rounding of --compute int8: stochastic has an expected error of 0; nearest rounds to the nearest integer.",
        name="int8_rounding",
        choices=(STOCHASTIC, NEAREST),
    )
    before_softmax: bool = setting(
        False,
        "With --compute int8, also quantize the layer before the softmax and the attention scores, which costs accuracy.",
        name="int8_before_softmax",
    )
    most_error: float = setting(
        0.3,
        "With --compute int8, largest relative error of the first layer's output in the first epoch; at this error or above, "
        "training continues in float32. 1 continues in int8 whatever the error is.",
        name="int8_most_error",
        least=0,
        most=1,
    )
    error_scale: str = setting(
        ROW,
        "Scale for which --int8-most-error measures the error: row, a scale for each row, with which training computes; tensor, "
        "one scale for all rows, as in the paper Tango, which finds larger errors.",
        name="int8_error_scale",
        choices=(ROW, TENSOR),
    )


NORMS = (AUTO, "mean", "batch", "layer", "none")
ACTIVATIONS = ("relu", "elu")
WHOLE, PIECES = "whole", "pieces"


@dataclass(frozen=True)
class LayerSettings:
    """Settings of models with several layers, which are all models except SGC."""

    layers: int = setting(
        3,
        "Number of layers; for dagnn and appnp, the number of dense layers before the propagation. 0, with --task link: no layer "
        "and no messages between nodes, whose learned rows (--embed) or projected features the decoder compares.",
        least=0,
        most=10_000,
    )
    dropout: float = setting(0.6, "Layers' dropout; dagnn, gcnii, transformer: 0.3.", least=0, below=1, is_free=True)
    norm: str = setting(
        AUTO,
        "Normalisation after every layer except the last. mean: subtract the mean over all nodes; batch: batch normalisation "
        "over all nodes; layer: layer normalisation. With layer and none, features of one sign with large sums need a lower "
        "--lr. auto is batch for gin and gine, which have other norms within, and mean for the other models.",
        choices=NORMS,
    )
    activation: str = setting("relu", "Activation function between layers.", choices=ACTIVATIONS)


@dataclass(frozen=True)
class HeadSettings:
    """Settings of models with multi-head attention."""

    heads: int = setting(8, "Number of attention heads; each has --hidden / --heads columns.", least=1, most=1 << 20)
    attention_dropout: float = setting(0.0, "Dropout rate of the attention weights.", least=0, below=1, is_free=True)

    def check_width(self, hidden: int) -> None:
        """Raise WrongValueError unless the heads can share ``hidden`` columns."""
        if hidden % self.heads:
            raise WrongValueError(f"heads must divide hidden: {self.heads} heads cannot share a width of {hidden}")


@dataclass(frozen=True)
class AttentionSettings(HeadSettings):
    """Settings of models whose last layer has attention."""

    output_heads: int = setting(
        1, "Number of attention heads of the last layer; their outputs are averaged.", least=1, most=1 << 10
    )


IGNORE, SUM, MEAN, MAX = "ignore", "sum", "mean", "max"


@dataclass(frozen=True)
class EdgeTypesSettings:
    """Settings of models that may have weights of their own for each type of edges."""

    edge_types: str = setting(
        IGNORE,
        "Use of types of edges by sage, gcn and gat. ignore: none, all edges are alike; sum, mean, max: each type of edges has "
        "weights of its own, and the results of the types that end at a node's type are added up, averaged, or their maximum is "
        "taken, as in PyG's HeteroConv.",
        choices=(IGNORE, SUM, MEAN, MAX),
    )


@dataclass(frozen=True)
class GATSettings:
    """Settings of GAT alone.

    With ``partial`` attention, the ranks that own the source nodes compute weighted sums according to the plan of ``strategy``
    (:mod:`hpcgnn.nn.attention`). This is possible because GAT's score is a sum of one term for each end of an edge.
    """

    attention: str = setting(
        "halo",
        "Messages of attention. halo: ranks send the rows of boundary nodes; partial: ranks send partial weighted sums, which "
        "the receiver merges (log-sum-exp merge).",
        choices=("halo", "partial"),
        is_free=True,
    )


@dataclass(frozen=True)
class HaloSettings:
    """Settings of models that can do without most rows of other ranks."""

    halo: str = setting(
        WHOLE,
        "Rows of other ranks that a rank holds in a layer. whole: those of all boundary nodes; pieces: those of one piece at a "
        "time, which are sent again in the backward pass.",
        choices=(WHOLE, PIECES),
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

    of_paper: ClassVar[int] = 10

    @property
    def num_hops(self) -> int:
        """``hops``, or the number in the model's paper if ``hops`` is 0."""
        return self.hops or self.of_paper


@dataclass(frozen=True)
class SGCSettings(HopSettings):
    """Settings of SGC, whose paper uses fewer hops."""

    of_paper = 2


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


@dataclass(frozen=True)
class BasesSettings:
    """Settings of models with a weight matrix for each type of edges."""

    bases: int = setting(
        0,
        "Number of matrices of which the weights of each type of edges are sums; 0: each type has a matrix of its own.",
        least=0,
        most=1 << 16,
    )


@dataclass(frozen=True)
class RGCNSettings:
    """Settings of R-GCN alone."""

    blocks: int = setting(
        0,
        "Number of diagonal blocks of the weights of each type of edges, in layers whose widths are multiples of it; 0: the "
        "weights are full matrices.",
        least=0,
        most=1 << 16,
    )


ACROSS, WITHIN = "across-relation", "within-relation"


@dataclass(frozen=True)
class RGATSettings:
    """Settings of R-GAT alone."""

    attention_mechanism: str = setting(
        ACROSS,
        "Edges whose attention weights add up to 1 at a node. across-relation: all; within-relation: those of each type by "
        "itself.",
        choices=(ACROSS, WITHIN),
    )


_HOPS = (LayerSettings, HopSettings)
_ATTENTION = (LayerSettings, HaloSettings, AttentionSettings)
_MODULES = {"gine": "edge_models", "transformer": "edge_models", "hgt": "typed_models", "rgat": "typed_models"}
_COPIES_FEATURES = ("gine", "rgat")  # in the first layer, before any product makes them narrow
KNOWN = {
    name: LazyEntry(f"hpcgnn.nn.{_MODULES.get(name, 'models')}", summary, settings)
    for name, summary, settings in (
        ("appnp", "a dense network, then personalised PageRank over GCN's aggregations", (*_HOPS, TeleportSettings)),
        ("dagnn", "a dense network, then several GCN aggregations whose results each node weighs", _HOPS),
        (
            "gat",
            "attention over neighbours",
            (LayerSettings, EdgeTypesSettings, GATSettings, HaloSettings, AttentionSettings),
        ),
        (
            "gatv2",
            "attention whose ranking of neighbours depends on the node, and on features of edges if there are any",
            _ATTENTION,
        ),
        (
            "gcn",
            "symmetrically normalised sums, with edge weights if there are any",
            (LayerSettings, EdgeTypesSettings),
        ),
        (
            "gcnii",
            "deep GCN with initial residual and identity mapping",
            (LayerSettings, TeleportSettings, GCNIISettings),
        ),
        ("gin", "sums of neighbours, then a small dense network", (LayerSettings,)),
        ("gine", "GIN whose messages are sums of the features of a neighbour and of the edge", (LayerSettings,)),
        (
            "hgt",
            "attention by keys and queries of each type of nodes, with weights of each type of edges",
            (LayerSettings, HaloSettings, HeadSettings),
        ),
        ("jknet", "GCN whose last layer sees the outputs of all layers", (LayerSettings,)),
        (
            "rgat",
            "attention over neighbours with weights of each type of edges, and on features of edges if there are any",
            (LayerSettings, BasesSettings, RGATSettings, HaloSettings, AttentionSettings),
        ),
        (
            "rgcn",
            "means over the neighbours by each type of edges, with weights of their own",
            (LayerSettings, BasesSettings, RGCNSettings),
        ),
        ("sage", "GraphSAGE with mean aggregation", (LayerSettings, EdgeTypesSettings)),
        ("sgc", "GCN's aggregations, then one linear layer", (SGCSettings,)),
        (
            "transformer",
            "attention by keys and queries, with values and keys of edges if they have features",
            _ATTENTION,
        ),
    )
}


# Subclasses of hpcgnn.nn.graph_model.GraphModel, which imports this module.
MODELS: Registry[Any] = Registry("model", KNOWN)
register = MODELS.register
DECODERS = ("none", "dot", "mlp", "distmult", "transe", "complex", "rotate")
_OF_COMPLEX_ROWS = DECODERS[-2:]


@dataclass(frozen=True, init=False)
class ModelConfig(Composed):
    """Settings of a model: those that all models have, and those of the chosen model.

    Example:
        ``ModelConfig("gat", layers=2, heads=4)``

    Attributes:
        model: name of the model, ``sage`` by default; ``hpcgnn train --help`` lists all.
        hidden: number of columns of the hidden layers; with attention, of all heads together.
        input_dropout: dropout rate of the input features, in [0, 1).
        embed: types of nodes that have a learned row each, with commas between, or ``all``; none by default. A name with a comma
            is in double quotes.
        label_inputs: whether labels are inputs beside the features, as label propagation needs.
        decoder: ``dot`` or ``mlp`` for a model that scores links from embeddings of ``hidden`` columns; ``distmult``, ``transe``,
            ``complex`` or ``rotate`` for one that also learns a vector for each type of edges; ``none`` for a model of classes.
        own: the dataclasses of the settings that only this model has. Usually these settings are given by name instead:
            ``layers``, ``dropout``, ``norm``, ``activation``, ``heads``, ``hops`` and others.

    Raises:
        HpcgnnError: for an unknown model, and for a setting that this model does not use.
    """

    model: str = setting("sage", lambda: f"Model. {MODELS.summaries()}.", choices=lambda: tuple(MODELS))
    hidden: int = setting(
        256,
        "Number of columns of the hidden layers; with attention, of all heads together.",
        least=1,
        most=1 << 20,
    )
    input_dropout: float = setting(0.0, "Dropout rate of the input features.", least=0, below=1, is_free=True)
    embed: str = setting(
        "",
        "Types of nodes that have a learned row each, an embedding, which is added to their features, or takes the place of "
        "features: names with commas between (those with a comma in double quotes), or all. Only the rank that owns a node holds "
        "its row.",
        metavar="TYPE,...",
    )
    label_inputs: bool = setting(False, name="")
    decoder: str = setting("none", name="", choices=DECODERS)
    own: tuple[Any, ...] = ()
    registries: ClassVar = {"model": (MODELS, "")}

    def chosen(self) -> str:
        """See :meth:`Composed.chosen`."""
        return self.model

    def check(self) -> None:
        """Raise HpcgnnError for values with which no model can be built."""
        super().check()
        if not self.layers and (self.decoder == DECODERS[0] or self.model != ModelConfig.model):
            raise WrongValueError("layers must be at least 1 here: 0 is for --task link, and a --model has layers")
        if self.decoder in _OF_COMPLEX_ROWS and self.hidden % 2:
            raise WrongValueError(
                f"--decoder {self.decoder} needs an even --hidden, for complex rows, not {self.hidden}"
            )
        MODELS[self.model].check_settings(self)

    @property
    def norm_in_use(self) -> str:
        """``norm``, or the model's own one for auto."""
        return str(MODELS[self.model].usual_norm) if self.norm == AUTO else self.norm

    @property
    def drops_rows(self) -> float:
        """The largest rate of the dropouts that mask a layer's input anew in each epoch."""
        return max(self.section(LayerSettings).dropout if LayerSettings in self.sections() else 0.0, self.input_dropout)


@dataclass(frozen=True)
class DistributedConfig(Checked):
    """Facts about a user's own model ``model`` (:func:`hpcgnn.distribute`). drops_rows: the largest rate of its dropouts."""

    model: str
    drops_rows: float = 0.0
    layers: int = 0
    num_hops: int = 0
    hidden: int = 0
    input_dropout: float = 0.0
    label_inputs: bool = False
    decoder: str = "none"
    halo: str = WHOLE


def plan_in_use(config: ModelConfig, strategy: str) -> str:
    """The name of the plan that ranks use: ``post`` for attention over the halo, and with the ending BY_TYPE for sums by types of
    edges."""
    kind = MODELS[config.model]
    by_type = BY_TYPE if kind.sums_by_type or config.edge_types != IGNORE else ""
    return strategy + by_type if kind.uses_strategy(config) else "post"


def why_input_changes(config: ModelConfig | DistributedConfig) -> str:
    """The reason for which a model's first aggregation changes from epoch to epoch; an empty text if it does not."""
    begins = isinstance(config, ModelConfig) and MODELS[config.model].begins_with_exchange
    reasons = {
        f"{config.model} does not begin with one": not begins,
        "dropout changes the features in each epoch (--input-dropout)": config.input_dropout > 0,
        "labels are added to the features (--label-propagation)": config.label_inputs,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def check_kept_input(config: ModelConfig | DistributedConfig) -> None:
    """Raise HpcgnnError if the aggregation of the input cannot be kept."""
    if reason := why_input_changes(config):
        raise WrongValueError(f"the aggregation of the input cannot be kept: {reason}")


def check_features_on_disk(config: ModelConfig | DistributedConfig, compute: str) -> None:
    """Raise HpcgnnError for settings that need all features of a rank in memory."""
    reasons = {
        f"--model {config.model} copies them to other ranks": config.model in _COPIES_FEATURES,
        "--edge-types has weights of each type": isinstance(config, ModelConfig) and config.edge_types != IGNORE,
        "--embed adds learned rows to them": bool(getattr(config, "embed", "")),
        "--label-propagation adds labels to them": config.label_inputs,
        f"--compute {compute} rounds them as a whole": compute in INTEGERS,
    }
    for reason, applies in reasons.items():
        if applies:
            raise WrongValueError(f"--features disk reads features in blocks, and {reason}: leave out one of the two")


def check_kept(
    config: ModelConfig | DistributedConfig, activations: str, compute: str, int8: Int8Config, sent: MessageConfig, *,
    is_stale: bool = False, chooses_bits: bool = False, is_double: bool = False,
) -> None:  # fmt: skip
    """Raise HpcgnnError if rows are forgotten that are needed later, if these would be other rows, or if ``activations`` or
    ``compute`` would do nothing. sent: the settings of messages. is_stale: whether rows of other ranks are used in later
    epochs. chooses_bits: whether a policy may take other bit-widths than those of ``sent``."""
    name, is_int8 = config.model if isinstance(config, ModelConfig) else "", compute in INTEGERS
    keeps_rows, is_coarse = is_stale or sent.message_coding == "delta", chooses_bits or sent.bits < INT8_BITS
    repeats, packs = activations == RECOMPUTE, activations == EIGHT_BITS
    is_single = name not in ("", "sgc") and config.layers <= 1
    propagates = name in ("appnp", "dagnn", "sgc") and config.num_hops > 1
    has_other = propagates or name in ("gcnii", "hgt", "jknet") or (name != "sgc" and not is_single)
    is_one_step = name == "gatv2" or (name == "gat" and not is_coarse)
    nothing = f"--activations {activations} would save nothing, because "
    reasons = {
        f"--message-coding delta needs --dropout 0 and --input-dropout 0, not {config.drops_rows:g}: masks that are drawn anew "
        "in each epoch would be most of each difference": sent.message_coding == "delta" and config.drops_rows > 0,
        "--halo pieces keeps no row for a later epoch, as stale rows and differences need it: take --halo whole, or --staleness "
        "off and --message-coding plain": config.halo == PIECES and keeps_rows,
        f"{nothing}{name} keeps rows of classes only": (repeats or packs) and name == "sgc",
        f"{nothing}{name} keeps one row of a node and layer anyway": repeats and name in ("appnp", "dagnn"),
        f"{nothing}no layer comes before the last one": (repeats or packs) and is_single,
        f"{nothing}--halo pieces computes rows again anyway": repeats and config.halo == PIECES,
        f"{nothing}--compute {compute} would round anew": repeats and is_int8 and not is_one_step,
        f"{nothing}stale rows and differences cannot be made again": repeats and keeps_rows,
        f"{nothing}ranks of a node add rows up (--node-aware on)": repeats and sent.node_aware == "on",
        f"{nothing}values of 64 bits stay as they are": packs and is_double,
        f"--compute {compute} computes nothing in integers with rgat and --halo pieces": is_int8 and name == "rgat"
        and config.halo == PIECES,
        f"--compute {compute} leaves the layer before the softmax in float32, and there is no other": is_int8
        and not (has_other or int8.before_softmax),
    }  # fmt: skip
    for reason in (reason for reason, applies in reasons.items() if applies):
        raise WrongValueError(reason if ": " in reason else f"{reason}: leave it out")


# The numbers of types and of features of edges, in descriptions of models that use them.
OF_EDGES = ("relations", "edge_features")


def describe(config: ModelConfig, in_width: int, out_width: int) -> dict[str, Any]:
    """The settings in which two models must agree to have the same parameters."""
    sections = (type(config), *config.sections())
    free = {each.attribute for section in sections for each in settings_of(section) if each.is_free}
    described = {name: value for name, value in config.flat().items() if name not in free}
    if "norm" in described:
        described["norm"] = config.norm_in_use
    return described | {"features": in_width, "classes": out_width}


def described(description: dict[str, Any]) -> ModelConfig:
    """The inverse of :func:`describe`, except for free settings. Settings that an older description lacks get their defaults;
    settings that the model does not use, which older descriptions may have, are left out.
    """
    return ModelConfig.of_used(description)
