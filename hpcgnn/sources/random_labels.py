"""Random labels during a conversion, with which a graph without labels can be trained to measure time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.random_kernels import draws, key_for
from hpcgnn.data.schema import SINGLE_LABEL
from hpcgnn.sources.base import CHUNK_EDGES, ArraySource, Rows, Source
from hpcgnn.sources.edges import EdgeChunk

_LABELS = 41  # number of this use of a seed
_MOST_CLASSES = 2**31 - 1


@dataclass(frozen=True)
class LabelRule:
    """Labels from 0 to ``classes - 1``, drawn with ``seed``."""

    classes: int
    seed: int = 0


def parse_labels(text: str) -> LabelRule:
    """The rule of a text ``random:C[,SEED]``; the default seed is 0. Raises HpcgnnError for any other text."""
    kind, _, rest = text.partition(":")
    words = rest.split(",")
    if kind == "random" and len(words) <= 2 and all(word.isdecimal() for word in words):
        classes, seed = (*map(int, words), 0)[:2]
        if 0 < classes <= _MOST_CLASSES:
            return LabelRule(classes, seed)
    raise HpcgnnError(f"--labels {text!r} is not understood: write random:C[,SEED], with C > 0 classes")


class RandomLabels:
    """A source with random labels in place of its own. The label of a node is a function of the seed and its id. Without masks of
    its own, the nodes are divided by default."""

    def __init__(self, graph: Source, rule: LabelRule, where: str) -> None:
        if rule.classes > graph.info.num_nodes:
            raise HpcgnnError(
                f"--labels random:{rule.classes} asks for more classes than {where} has nodes, {graph.info.num_nodes:,}"
            )
        self._graph = graph.without_labels() if isinstance(graph, ArraySource) else graph
        self._classes, self._key = rule.classes, key_for(rule.seed, _LABELS)
        self.info = replace(
            graph.info,
            task=SINGLE_LABEL,
            num_classes=rule.classes,
            default_split=f"random:0.6,0.2,0.2,{rule.seed}",
            notes=(*graph.info.notes, "labels are random, so accuracies mean nothing"),
        )

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """See :class:`hpcgnn.sources.base.Source`."""
        return self._graph.edges(chunk_edges)

    def features(self, first: int, last: int) -> Rows | None:
        """See :class:`hpcgnn.sources.base.Source`."""
        return self._graph.features(first, last)

    def labels(self, first: int, last: int) -> np.ndarray:
        """See :class:`hpcgnn.sources.base.Source`."""
        drawn = np.empty(last - first, np.uint64)
        draws(self._key, first, drawn)
        return (drawn % np.uint64(self._classes)).astype(np.int64)

    def masks(self, first: int, last: int) -> dict[str, np.ndarray] | None:
        """See :class:`hpcgnn.sources.base.Source`."""
        return self._graph.masks(first, last)
