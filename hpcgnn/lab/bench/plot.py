"""The roofline picture: the speed of contenders beside the measured bandwidths of a copy and of a row gather."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.bench.aggregate import gathered_bytes
from hpcgnn.lab.bench.line_up import line_up
from hpcgnn.lab.bench.report import device_of

_VALUE_BYTES = {"ours.bf16": 2, "ours.int8": 1, "ours.int8.counted": 1}
_OURS, _THEIRS = ("o", "D", "^", "v", "s"), ("x", "+", "1", "2", "3", "4", "*", "p", "h", "d")


def roofline(result: dict[str, Any], path: Path) -> None:
    """Draw the forward kernels of every graph in ``result`` (of :func:`hpcgnn.lab.bench.run.run`) to ``path``.

    The intensity of a contender is the number of its additions over the bytes that its entries gather. Weights and results do not
    count, so contenders that store features in the same type have the same intensity.

    Raises:
        HpcgnnError: if ``result`` has no kernels, or the picture cannot be written.
    """
    figure_class, context = _matplotlib()
    graphs = [graph for graph in result["graphs"] if "kernel" in graph]
    if not graphs:
        raise HpcgnnError("the plot needs the measurements of --mode kernel: give --mode kernel or both")
    columns = min(2, len(graphs))
    rows = math.ceil(len(graphs) / columns)
    with context({"svg.hashsalt": "hpcgnn", "font.size": 8}):
        figure = figure_class(figsize=(6.4 * columns, 4.2 * rows), layout="constrained")
        for number, graph in enumerate(graphs):
            _draw(figure.add_subplot(rows, columns, number + 1), graph)
        try:
            with whole_file.replacing(path) as temporary:
                kind = path.suffix.removeprefix(".") or "png"
                figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)
        except ValueError as error:
            raise HpcgnnError(f"{path} cannot be written as a picture: {error}") from error


def roofs(graph: dict[str, Any]) -> dict[str, float]:
    """Bytes a second of a copy and of a row gather, as measured with one graph's forward kernels."""
    timings = graph["kernel"]["forward"]
    moved = {"ceiling.copy": 2 * graph["feature_bytes"], "ceiling.gather": graph["gathered_bytes"]}
    return {name: count / timings[name]["seconds"] for name, count in moved.items() if "seconds" in timings[name]}


def points(graph: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Additions for each gathered byte, and additions a second, of each contender of one graph's forward kernels."""
    found = {}
    for name, timing in graph["kernel"]["forward"].items():
        if "seconds" in timing and not name.startswith("ceiling") and "@" not in name:
            count = gathered_bytes(graph["entries"], graph["width"], _VALUE_BYTES.get(name, 4))
            found[name] = graph["flop"] / count, graph["flop"] / timing["seconds"]
    return found


def _draw(axes: Any, graph: dict[str, Any]) -> None:
    intensities = [0.1, 2.0]
    styles = {"ceiling.copy": ("copy", "--"), "ceiling.gather": ("row gather", "-")}
    for name, bandwidth in roofs(graph).items():
        label, line = styles[name]
        values = [intensity * bandwidth / 1e9 for intensity in intensities]
        axes.plot(intensities, values, line, color="0.4", label=f"{label}: {bandwidth / 1e9:.1f} GB/s")
    known = line_up(device_of(graph)).by_name
    marks = {True: iter(_OURS * 2), False: iter(_THEIRS * 2)}
    for name, (intensity, rate) in points(graph).items():
        ours = name.startswith("ours")
        label = f"{known[name].label}: {rate / 1e9:.2f}"
        axes.plot([intensity], [rate / 1e9], next(marks[ours]), color="C3" if ours else "C0", label=label)
    axes.set(xscale="log", yscale="log", xlabel="additions / gathered byte", ylabel="10⁹ additions / s")
    axes.set_title(f"{graph['name']}, width {graph['width']}, forward", fontsize=8)
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _matplotlib() -> tuple[Any, Any]:
    """matplotlib's figure class and context of settings, imported late because the import takes longer than all others."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    return Figure, rc_context
