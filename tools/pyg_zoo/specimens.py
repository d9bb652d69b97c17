"""The models of the zoo: what makes each, and the arguments with which it is called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import nn

from pyg_zoo import custom, expressions, layers


@dataclass(frozen=True)
class Specimen:
    """A model. code: the expression that makes it. takes: the names of its arguments. sorted_edges: PyG's own model runs on
    edges sorted by target only. training: whether it is compared in training, too.
    """

    group: str
    code: str
    takes: tuple[str, ...] = ("x", "edge_index")
    sorted_edges: bool = False
    training: bool = True

    @property
    def arguments(self) -> dict[str, str]:
        """The names of the arguments, and those of the graph's tensors that they are: ``a=x`` in :attr:`takes`, or ``x``."""
        return {name: of or name for name, _, of in (taken.partition("=") for taken in self.takes)}

    def __str__(self) -> str:
        return f"{self.code} ({', '.join(self.takes)})"

    def make(self) -> nn.Module:
        """The model, with the same weights each time."""
        torch.manual_seed(0)
        return eval(self.code, _NAMES.copy())  # noqa: S307  (an expression of this folder)


def mlp(width: int, out: int) -> nn.Module:
    """A network of two layers."""
    return nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, out))


_NAMES: dict[str, Any] = {
    **{name: getattr(pyg, name) for name in dir(pyg)},
    "nn": nn,
    "mlp": mlp,
    "custom": custom,
    "pyg": pyg,
    "DEGREES": torch.tensor([6, 5, 9, 14, 12, 10, 8, 4, 2]),
}
_NEEDS_SORTED = (
    "lstm",
    "LSTM",
    "GRU",
    "SortAggregation",
    "GraphMultiset",
    "MLPAggregation",
    "SetTransformer",
    "LCM",
    "PatchTr",
)


def specimens() -> Iterator[Specimen]:
    """All models."""
    for group, table in (("convolutions", layers.CONVOLUTIONS), ("models", layers.MODELS)):
        for takes, codes in table.items():
            for code in codes:
                yield _specimen(group, code, takes)
    for code in layers.NORMS:
        yield _specimen("norms", f"custom.Normed({code})", "x edge_index")
    for code in layers.TYPED_NORMS:
        yield _specimen("norms", f"custom.NormedByType({code})", "x edge_index node_type")
    yield _specimen("norms", "custom.NormedMessage()", "x edge_index")
    for code, width in layers.AGGREGATIONS.items():
        yield _specimen("aggregations", f"custom.Aggregated({code}, {width})", "x edge_index")
    for line in (*expressions.RIGHT, *expressions.OF_THE_WHOLE_GRAPH):
        yield _specimen("lines", f"custom.Line({line!r})", "x edge_index node_type")
    for takes, codes in custom.MODELS.items():
        for code in codes:
            yield _specimen("custom", f"custom.{code}", takes)


def _specimen(group: str, code: str, takes: str) -> Specimen:
    return Specimen(
        group,
        code,
        tuple(takes.split()),
        sorted_edges=group in ("convolutions", "aggregations") and any(word in code for word in _NEEDS_SORTED),
        training=code not in custom.RANDOM_IN_TRAINING,
    )
