"""The kinds of work to measure: aggregation, the products of a dense layer, and products at the edges of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.devices import Device
from hpcgnn.lab.bench import gemm_contenders, graphs, sddmm_contenders
from hpcgnn.lab.bench.gemm_contenders import GemmProblem
from hpcgnn.lab.bench.line_up import line_up
from hpcgnn.lab.bench.names import DIRECTIONS, EDGE_OPS, PRODUCTS
from hpcgnn.lab.bench.problem import Contender, Problem
from hpcgnn.lab.bench.sddmm_contenders import SddmmProblem


@dataclass(frozen=True)
class Study:
    """One kind of work.

    directions: the results to compute of a problem, such as forward and backward. problem: makes a problem from the words of a
    :class:`Subject`, on a device. contenders: returns the contenders by name on a device, given by torch's name.
    """

    directions: tuple[str, ...]
    problem: Callable[[tuple[str, ...], Device], Any]
    contenders: Callable[[str], Mapping[str, Contender]]


@dataclass(frozen=True)
class Subject:
    """One problem of a study. words: the words that describe it, as the measuring process gets them."""

    study: str
    words: tuple[str, ...]

    @property
    def of_study(self) -> Study:
        """The study of that name."""
        return STUDIES[self.study]

    def contender(self, name: str, device: str) -> Contender:
        """The contender ``name`` on a device, given by torch's name."""
        return self.of_study.contenders(device)[name]


def aggregation(graph: Path, width: int) -> Subject:
    """The aggregation over a stored graph."""
    return Subject("aggregate", (str(graph), str(width)))


def gemm(rows: int, depth: int, width: int) -> Subject:
    """The product of (rows, depth) and (depth, width), and its gradients."""
    return Subject("gemm", (str(rows), str(depth), str(width)))


def sddmm(graph: Path, width: int, heads: int) -> Subject:
    """The products at the edges of a stored graph."""
    return Subject("sddmm", (str(graph), str(width), str(heads)))


def _aggregation(words: tuple[str, ...], device: Device) -> Problem:
    graph, width = words
    return Problem(graphs.read_graph(Path(graph)), int(width), device=device)


def _gemm(words: tuple[str, ...], device: Device) -> GemmProblem:
    rows, depth, width = map(int, words)
    return GemmProblem(rows, depth, width, device)


def _sddmm(words: tuple[str, ...], device: Device) -> SddmmProblem:
    graph, width, heads = words
    return SddmmProblem(graphs.read_graph(Path(graph)), int(width), int(heads), device)


STUDIES = {
    "aggregate": Study(DIRECTIONS, _aggregation, lambda device: line_up(device).by_name),
    "gemm": Study(PRODUCTS, _gemm, gemm_contenders.by_name),
    "sddmm": Study(EDGE_OPS, _sddmm, sddmm_contenders.by_name),
}
