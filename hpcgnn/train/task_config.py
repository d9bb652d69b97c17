"""Settings of the task: link prediction, labels as model inputs, and metrics. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.base.errors import WrongValueError
from hpcgnn.base.settings import MOST_SEED, Checked, setting

METRICS = ("accuracy", "micro-f1", "roc-auc")
LINK_METRICS = ("roc-auc", "hits@10", "hits@50", "hits@100")
REDRAWS = ("epoch", "once")


@dataclass(frozen=True)
class LinkConfig(Checked):
    """Settings of link prediction.

    Args:
        link_split: shares of the links that are held out for validation and for testing, below 1 in total.
        link_seed: seed of the split, and of the negative pairs in evaluations.
        negatives: number of negative pairs for each link.
        negative_pool: number of nodes that are drawn in each epoch as sources of all negative pairs. Every rank receives
            their embeddings, so this sets memory and bytes per epoch.

    Raises:
        HpcgnnError: when it is used, for values that are not allowed, or that leave no links for training.
    """

    link_split: tuple[float, float] = setting(
        (0.05, 0.1),
        "Shares of the links that are held out for validation and for testing. Both directions of an edge are in the same set.",
        metavar="VAL TEST",
    )
    link_seed: int = setting(
        0,
        "Seed of the split and of the negative pairs in evaluations; --seed does not change them.",
        least=0,
        most=MOST_SEED,
    )
    negatives: int = setting(
        1, "Negative sampling: number of node pairs without a link that are drawn for each link in each epoch.", least=1
    )
    negative_pool: int = setting(
        2048,
        "Negative sampling: number of nodes drawn in each epoch, which are the sources of all negative pairs; every rank "
        "receives their embeddings.",
        least=1,
    )

    def check(self) -> None:
        """Raise HpcgnnError for values that are not allowed, or that leave no links for training."""
        super().check()
        if not (min(self.link_split) >= 0 and sum(self.link_split) < 1):  # false for a NaN
            raise WrongValueError(
                f"link-split must be two shares of at least 0 whose sum is below 1, not {self.link_split}"
            )


@dataclass(frozen=True)
class LabelPropagationConfig(Checked):
    """Settings of label propagation.

    rate: share of the training labels that are model inputs while training; 0: labels are never inputs. redraw: ``epoch`` or
    ``once``.
    """

    rate: float = setting(
        0.0,
        "Share of the training labels that are model inputs; 0 turns label propagation off, and SuperGCN's code uses 0.62. An "
        "embedding of these labels is added to the features, and the loss is computed on the other training nodes. "
        "Evaluations and predictions take all training labels and no others as inputs, so the training metric then covers "
        "nodes whose label is an input.",
        name="label_propagation",
        metavar="RATE",
        least=0,
        below=1,
    )
    redraw: str = setting(
        "epoch",
        "Time at which the propagated labels are drawn: in every epoch, or once for the whole run.",
        name="label_redraw",
        choices=REDRAWS,
        used_if=lambda own: own.rate > 0,
        users="--label-propagation above 0 uses it",
    )
