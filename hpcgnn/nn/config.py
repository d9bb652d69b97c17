"""The configuration of a model: its name, the settings that all models have, and the settings of its own class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcgnn.base.errors import WrongValueError
from hpcgnn.base.settings import Checked, Composed, Registry, merged, setting, settings_of
from hpcgnn.nn.model_settings import KNOWN, LayerSettings

# Subclasses of hpcgnn.nn.graph_model.GraphModel, which imports this module.
MODELS: Registry[Any] = Registry("model", KNOWN)
register = MODELS.register
DECODERS = ("none", "dot", "mlp")


@dataclass(frozen=True, init=False)
class ModelConfig(Composed):
    """Settings of a model: those that all models have, and those of the chosen model.

    Example:
        ``ModelConfig("gat", layers=2, heads=4)``

    Attributes:
        model: name of the model, ``sage`` by default; ``hpcgnn train --help`` lists all.
        hidden: number of columns of the hidden layers; with attention, of all heads together.
        input_dropout: dropout rate of the input features, in [0, 1).
        label_inputs: whether labels are inputs beside the features, as label propagation needs.
        decoder: ``dot`` or ``mlp`` for a model that scores links from embeddings of ``hidden`` columns; ``none`` for a model
            of classes.
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
    label_inputs: bool = setting(False, name=None)
    decoder: str = setting("none", name=None, choices=DECODERS)
    own: tuple[Any, ...] = ()
    by_place = 1

    def sections(self) -> tuple[type, ...]:
        """See :meth:`Composed.sections`."""
        return MODELS.settings(self.model)

    @classmethod
    def all_sections(cls) -> dict[type, list[str]]:
        """See :meth:`Composed.all_sections`."""
        return merged((name, MODELS.settings(name)) for name in MODELS)

    def chosen(self) -> str:
        """See :meth:`Composed.chosen`."""
        return self.model

    def check(self) -> None:
        """Raise HpcgnnError for values with which no model can be built."""
        super().check()
        MODELS[self.model].check_settings(self)

    @property
    def drops_rows(self) -> float:
        """The largest rate of the dropouts that mask a layer's input anew in each epoch."""
        return max(self.section(LayerSettings).dropout if LayerSettings in self.sections() else 0.0, self.input_dropout)


@dataclass(frozen=True)
class DistributedConfig(Checked):
    """Facts about a user's own model ``model`` (:func:`hpcgnn.distribute`). drops_rows: the largest rate of its dropouts."""

    model: str
    drops_rows: float = 0.0
    hidden: int = 0
    input_dropout: float = 0.0
    label_inputs: bool = False
    decoder: str = "none"


def check_kept_input(config: ModelConfig | DistributedConfig) -> None:
    """Raise HpcgnnError if the aggregation of the input cannot be kept, because it changes from epoch to epoch."""
    begins = isinstance(config, ModelConfig) and MODELS[config.model].begins_with_exchange
    reasons = {
        f"{config.model} does not begin with one": not begins,
        "dropout changes the features in each epoch (--input-dropout)": config.input_dropout > 0,
        "labels are added to the features (--label-propagation)": config.label_inputs,
    }
    for reason, applies in reasons.items():
        if applies:
            raise WrongValueError(f"the aggregation of the input cannot be kept: {reason}")


def check_differences(message_coding: str, drops_rows: float) -> None:
    """Raise HpcgnnError if messages would carry differences between rows that are masked anew in each epoch."""
    if message_coding == "delta" and drops_rows > 0:
        raise WrongValueError(
            f"--message-coding delta needs --dropout 0 and --input-dropout 0, not {drops_rows:g}: masks that are drawn anew in "
            "each epoch would be most of each difference"
        )


def describe(config: ModelConfig, in_width: int, out_width: int) -> dict[str, Any]:
    """The settings in which two models must agree to have the same parameters."""
    free = {
        each.attribute
        for section in (type(config), *config.sections())
        for each in settings_of(section)
        if each.about.is_free
    }
    return {name: value for name, value in config.flat().items() if name not in free} | {
        "features": in_width,
        "classes": out_width,
    }


def described(description: dict[str, Any]) -> ModelConfig:
    """The inverse of :func:`describe`, except for free settings. Settings that an older description lacks get their defaults;
    settings that the model does not use, which older descriptions may have, are left out.
    """
    return ModelConfig.of_used(description)
