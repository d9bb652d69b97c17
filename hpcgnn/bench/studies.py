"""What there is to measure: aggregation, the products of a dense layer, and products at the edges of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.bench import gemm_contenders, graphs, sddmm_contenders
from hpcgnn.bench.gemm_contenders import GemmProblem
from hpcgnn.bench.line_up import line_up
from hpcgnn.bench.problem import DIRECTIONS, Contender, Problem
from hpcgnn.bench.sddmm_contenders import SddmmProblem
from hpcgnn.devices import Device


@dataclass(frozen=True)
class Study:
    """One kind of work.

    directions: what there is to compute of a problem, such as forward and backward. problem: made of the words of a
    :class:`Subject`, on a device, which it has as ``device``. contenders: by name, of a device as torch calls it.
    """

    directions: tuple[str, ...]
    problem: Callable[[tuple[str, ...], Device], Any]
    contenders: Callable[[str], Mapping[str, Contender]]


@dataclass(frozen=True)
class Subject:
    """One problem of a study. words: what it is made of, as a process that measures it is given it."""

    study: str
    words: tuple[str, ...]

    @property
    def of_study(self) -> Study:
        """The study of that name."""
        return STUDIES[self.study]

    def contender(self, name: str, device: str) -> Contender:
        """The contender of that name on a device as torch calls it."""
        return self.of_study.contenders(device)[name]


def aggregation(graph: Path, width: int) -> Subject:
    """Of a stored graph."""
    return Subject("aggregate", (str(graph), str(width)))


def gemm(rows: int, depth: int, width: int) -> Subject:
    """(rows, depth) times (depth, width), and its gradients."""
    return Subject("gemm", (str(rows), str(depth), str(width)))


def sddmm(graph: Path, width: int, heads: int) -> Subject:
    """Of a stored graph."""
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
    "gemm": Study(gemm_contenders.DIRECTIONS, _gemm, gemm_contenders.by_name),
    "sddmm": Study(sddmm_contenders.DIRECTIONS, _sddmm, sddmm_contenders.by_name),
}
