"""Settings of what is learned: links, labels that are inputs, and metrics; no torch is imported for them."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.errors import WrongValueError
from hpcgnn.settings import MOST_SEED, Checked, setting

METRICS = ("accuracy", "micro-f1", "roc-auc")
LINK_METRICS = ("roc-auc", "hits@10", "hits@50", "hits@100")
REDRAWS = ("epoch", "once")


@dataclass(frozen=True)
class LinkConfig(Checked):
    """link_split: shares of the links that are held out for validation and for testing. link_seed: of that split, and of the
    negatives that evaluations take. negatives: for each link. negative_pool: nodes drawn in each epoch, from which the
    negatives of all links take their sources; every rank gets their embeddings."""

    link_split: tuple[float, float] = setting(
        (0.05, 0.1),
        "shares of the links held out for validation and testing, an edge's both directions together.",
        metavar="VAL TEST",
    )
    link_seed: int = setting(
        0,
        "which are held out, and which other pairs they are compared with; --seed changes neither.",
        least=0,
        most=MOST_SEED,
    )
    negatives: int = setting(1, "pairs without a link for each link, drawn anew in each epoch.", least=1)
    negative_pool: int = setting(
        2048,
        "nodes drawn in each epoch for the other ends of those pairs; every rank gets their embeddings.",
        least=1,
    )

    def check(self) -> None:
        """Raise HpcgnnError for values that leave nothing to learn from."""
        super().check()
        if not (min(self.link_split) >= 0 and sum(self.link_split) < 1):  # nor with a NaN
            raise WrongValueError(f"link-split must be two shares below 1 in all, not {self.link_split}")


@dataclass(frozen=True)
class LabelPropagationConfig(Checked):
    """rate: share of the training labels that are inputs while training; 0 = none, ever. redraw: ``epoch`` or ``once``."""

    rate: float = setting(
        0.0,
        "Share of the training labels that are inputs: their embedding is added to the features, and the loss is on the other "
        "training nodes (SuperGCN's code: 0.62; 0 = off). Evaluation and prediction are given all training labels and no "
        "others, so the training metric is then about nodes whose label is known.",
        name="label_propagation",
        metavar="RATE",
        least=0,
        below=1,
    )
    redraw: str = setting(
        "epoch",
        "When the propagated labels are drawn: anew every epoch, or once for the run.",
        name="label_redraw",
        choices=REDRAWS,
        used_if=lambda own: own.rate > 0,
        users="--label-propagation above 0 uses it",
    )
