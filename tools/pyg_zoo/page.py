"""The page of the zoo: tables of all models, with the error of each, or the sentence that refuses it."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections import Counter
from pathlib import Path

from pyg_zoo import custom, layers
from pyg_zoo.run import EQUAL, TOLERANCE, Outcome
from pyg_zoo.specimens import Specimen

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "reference" / "pyg-layers.md"
Row = tuple[Specimen, list[Outcome]]
_GROUPS = {
    "convolutions": "Convolutions of PyG",
    "models": "Models of PyG",
    "norms": "Norms between two layers",
    "aggregations": "Aggregations in a layer",
    "custom": "Custom layers and models",
    "lines": "Lines between two layers",
}
_LINES = """\
The model has the line between two layers. `x` (n, 8) are the rows of the nodes, `n` is `x.size(0)`, `row` and `col` are those of
`edge_index`, `weight` is a parameter, and `self.first` and `self.second` are the layers.
"""
_INTRODUCTION = """\
`python tools/pyg_zoo` makes this page: it gives {models} layers and models of PyG {version} to `hpcgnn.distribute`, and compares
each with the same PyG model on one machine. On three ranks, {equal} are equal, {refused} are refused, and none gives other
values.
[From a single-machine PyG script to 512 ranks](../from_pyg.md) says how the models are distributed.

- **The graph** has 70 nodes, some of them isolated, and 300 directed edges, with self-loops and attributes, in no order.
  `hpcgnn.from_pyg` converts it, and `hpcgnn partition` cuts it into random parts.
- **Compared** are the results of two passes of training and one of evaluation, the gradients of all parameters and of the
  features, and buffers, in float32 and without dropout. Errors are relative to the largest value of the tensor, and rounded up;
  that of an equal model is at most {tolerance}.
- **Models** stand in the tables as Python makes them, with names of `torch_geometric.nn`; `mlp` is a network of two linear
  layers. The edges are those of the whole graph, and other arguments are tensors with a row for each node or edge.
"""


def page(rows: list[Row], version: str) -> str:
    """The text of the page. version: of PyG."""
    counts = Counter(outcomes[-1].kind for _, outcomes in rows)
    about = {"models": len(rows), "version": version, "tolerance": f"{TOLERANCE:g}"}
    lines = ["# Layers and models of PyG", "", *_INTRODUCTION.format(**about, **counts).splitlines()]
    for group, title in _GROUPS.items():
        lines += ["", f"## {title}", "", *([*_LINES.splitlines(), ""] if group == "lines" else [])]
        lines += _table([row for row in rows if row[0].group == group])
    lines += ["", "## Convolutions that do not run on a plain graph", "", "| layer | reason |", "| --- | --- |"]
    lines += [f"| `{name}` | {reason} |" for name, reason in sorted(layers.NOT_ON_A_PLAIN_GRAPH.items())]
    return "\n".join([*lines, ""])


def without_numbers(text: str) -> str:
    """The text without its numbers: errors differ between processors, and lines move."""
    return re.sub(r"\d+", "0", text)


def _table(rows: list[Row]) -> list[str]:
    return [
        "| model | arguments | 1 rank | 3 ranks | reason |",
        "| --- | --- | --- | --- | --- |",
        *(line(specimen, outcomes) for specimen, outcomes in rows),
    ]


def line(specimen: Specimen, outcomes: list[Outcome]) -> str:
    """A model's line in its table."""
    cells = [_name(specimen), ", ".join(specimen.takes), *map(_cell, outcomes), outcomes[-1].text]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _name(specimen: Specimen) -> str:
    code = specimen.code
    if specimen.group == "lines":
        return f"`{ast.literal_eval(code.removeprefix('custom.Line'))}`"
    if specimen.group != "custom":
        return f"`{code.replace('custom.', '')}`"
    kind = getattr(custom, re.sub(r"custom[.](\w+).*", r"\1", code))
    return f"`{code.removeprefix('custom.')}`: {inspect.getdoc(kind)}"


def _cell(outcome: Outcome) -> str:
    """The error, rounded up to a power of ten, or the kind of the outcome."""
    if outcome.kind != EQUAL:
        return outcome.kind
    return f"1e-{min(math.floor(-math.log10(outcome.error or 1e-9)), 7)}"
