"""The page of the zoo: the models that are equal, by their arguments, and those that are refused, by the reason."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
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
each with the same PyG model on one machine, on one rank and on three. On three ranks, {equal} are equal, {refused} are refused,
and none gives other values.
[From a single-machine PyG script to 512 ranks](../from_pyg.md) says how the models are distributed.

- **The graph** has 70 nodes, some of them isolated, and 300 directed edges, with self-loops and attributes, in no order.
  `hpcgnn.from_pyg` converts it, and `hpcgnn partition` cuts it into random parts.
- **Compared** are the results of two passes of training and one of evaluation, the gradients of all parameters and of the
  features, and buffers, in float32 and without dropout. Errors are relative to the largest value of the tensor; that of an equal
  model is at most {tolerance}.
- **Models** stand here as Python makes them, with names of `torch_geometric.nn`; `mlp` is a network of two linear layers. Equal
  models are listed by their arguments: the edges of the whole graph, and tensors with a row for each node or edge. Refused ones
  are listed by the reason that `hpcgnn.distribute` tells, after the name of the layer or line.
"""
_PLACE = re.compile(r" [(](?:line|custom[.]py), line \d+[)]")
_SUBJECT = re.compile(r"^[^:]* cannot be distributed: ")


def page(rows: list[Row], version: str) -> str:
    """The text of the page. version: of PyG."""
    counts = Counter(outcomes[-1].kind for _, outcomes in rows)
    about = {"models": len(rows), "version": version, "tolerance": f"{TOLERANCE:g}"}
    lines = ["# Layers and models of PyG", "", *_INTRODUCTION.format(**about, **counts).splitlines()]
    for group, title in _GROUPS.items():
        lines += ["", f"## {title}", "", *([*_LINES.splitlines(), ""] if group == "lines" else [])]
        lines += _lists([row for row in rows if row[0].group == group])
    lines += ["", "## Convolutions that do not run on a plain graph", "", "| layer | reason |", "| --- | --- |"]
    lines += [f"| `{name}` | {reason} |" for name, reason in sorted(layers.NOT_ON_A_PLAIN_GRAPH.items())]
    return "\n".join([*lines, ""])


def _lists(rows: list[Row]) -> list[str]:
    equal = [row for row in rows if row[1][-1].kind == EQUAL]
    refused = [row for row in rows if row[1][-1].kind != EQUAL]
    return ["Equal:", "", *_by(arguments, equal), *(["", "Refused:", "", *_by(reason, refused)] if refused else [])]


def _by(key: Callable[[Row], str], rows: list[Row]) -> Iterator[str]:
    """An item for each key, with its models."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(name(row[0]))
    yield from (f"- {words}: {', '.join(names)}" for words, names in found.items())


def arguments(row: Row) -> str:
    """The names of the arguments of a model."""
    return ", ".join(row[0].takes)


def reason(row: Row) -> str:
    """The reason of a refusal, without the layer or line that it names."""
    return _PLACE.sub("", _SUBJECT.sub("", row[1][-1].text))


def name(specimen: Specimen) -> str:
    """A model as the page names it."""
    code = specimen.code
    if specimen.group == "lines":
        return f"`{ast.literal_eval(code.removeprefix('custom.Line'))}`"
    if specimen.group != "custom":
        return f"`{code.replace('custom.', '')}`"
    kind = getattr(custom, re.sub(r"custom[.](\w+).*", r"\1", code))
    return f"`{code.removeprefix('custom.')}` ({(inspect.getdoc(kind) or '').removesuffix('.')})"
