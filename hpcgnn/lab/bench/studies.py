"""The kinds of work to measure: aggregation, the products of a dense layer, and products at the edges of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.devices import Device
from hpcgnn.lab.bench import contenders, gemm_contenders, graphs, sddmm_contenders
from hpcgnn.lab.bench.gemm_contenders import GemmProblem
from hpcgnn.lab.bench.names import DIRECTIONS, EDGE_OPS, PRODUCTS
from hpcgnn.lab.bench.problem import Contender, Problem
from hpcgnn.lab.bench.sddmm_contenders import SddmmProblem


@dataclass(frozen=True)
class Study:
    """One kind of work.

    directions: the results to compute of a problem, such as forward and backward. problem: makes a problem on a device from the
    words of a :class:`Subject`. contenders: returns the contenders by name on a device, given by torch's name.
    """

    directions: tuple[str, ...]
    problem: Callable[..., Any]
    contenders: Callable[[str], Mapping[str, Contender]]


@dataclass(frozen=True)
class Subject:
    """One problem of a study. words: the words that describe it, as the measuring process gets them."""

    study: str
    words: tuple[str, ...]

    @classmethod
    def of(cls, study: str, *words: object) -> Subject:
        """``aggregate`` of a stored graph and a width, ``gemm`` of rows, depth and width, or ``sddmm`` of a stored graph, a width
        and a number of heads."""
        return cls(study, tuple(map(str, words)))

    @property
    def of_study(self) -> Study:
        """The study of that name."""
        return STUDIES[self.study]


def _on_graph(kind: Callable[..., Any]) -> Callable[..., Any]:
    return lambda device, graph, *sizes: kind(graphs.read_graph(Path(graph)), *map(int, sizes), device=device)


def _gemm(device: Device, rows: str, depth: str, width: str) -> GemmProblem:
    return GemmProblem(int(rows), int(depth), int(width), device)


STUDIES = {
    "aggregate": Study(DIRECTIONS, _on_graph(Problem), contenders.by_name),
    "gemm": Study(PRODUCTS, _gemm, gemm_contenders.by_name),
    "sddmm": Study(EDGE_OPS, _on_graph(SddmmProblem), sddmm_contenders.by_name),
}
