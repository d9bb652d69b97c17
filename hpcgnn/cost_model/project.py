"""Projections: a graph in more and more parts, by strategy and bits, and the figure of their epochs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcgnn import whole_file
from hpcgnn.cost_model.model_file import Model
from hpcgnn.cost_model.predict import Prediction, predict
from hpcgnn.cost_model.profiles import Profile
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.errors import HpcgnnError

# As in SuperGCN's figure of scaling: each strategy in full precision, and the last one in few bits. Told apart without colours.
_LOOKS = (("o", "-"), ("s", "--"), ("^", "-."), ("D", ":"), ("v", "-"), ("P", "--"))
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def contenders(strategies: Sequence[str], bits: Collection[int]) -> list[tuple[str, int]]:
    """Each strategy with the most bits, and the last strategy with the others."""
    most = max(bits)
    return [(strategy, most) for strategy in strategies] + [
        (strategies[-1], each) for each in sorted(bits, reverse=True) if each != most
    ]


def project(
    model: Model,
    files: Sequence[Path],
    chosen: Sequence[tuple[str, int]],
    configuration: Mapping[str, Any],
    *,
    profile: Profile | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> list[Prediction]:
    """A prediction for each parts file and each (strategy, bits)."""
    found = []
    for path in files:
        with PartsFile(path) as file:
            of_strategy: dict[str, Prediction] = {}
            for strategy, bits in chosen:
                about = dict(configuration) | {"strategy": strategy, "bits": str(bits)}
                before = of_strategy.get(strategy)
                parts = None if before is None else before.workload.parts
                of_strategy[strategy] = predict(model, file, about, profile=profile, parts=parts)
                found.append(of_strategy[strategy])
                advance(1)
    return found


def draw(predictions: Sequence[Prediction], path: Path, title: str) -> None:
    """Seconds of an epoch over ranks, both logarithmic, a line for each strategy and bits; as SVG or PDF by the file's name.

    Raises:
        HpcgnnError: where it cannot be written.
    """
    from matplotlib.figure import Figure  # a second, which other commands need not wait for

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for each in predictions:
        key = each.setup.strategy, each.setup.run.messages.bits
        lines.setdefault(key, []).append((each.setup.ranks, each.epoch.total))
    for number, ((strategy, bits), points) in enumerate(lines.items()):
        (marker, dashes), colour = _LOOKS[number % len(_LOOKS)], _COLOURS[number % len(_COLOURS)]
        ranks, seconds = zip(*sorted(points), strict=True)
        axes.plot(ranks, seconds, dashes, marker=marker, color=colour, label=f"{strategy}, {bits} bits")
    every = sorted({each.setup.ranks for each in predictions})
    first = max(each.epoch.total for each in predictions if each.setup.ranks == every[0])
    axes.plot(every, [first * every[0] / ranks for ranks in every], color="0.6", linewidth=0.8, label="ideal")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(every, [f"{ranks:,}" for ranks in every])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.set_ylabel("seconds of an epoch, predicted")
    axes.set_title(title, fontsize="medium")
    axes.grid(visible=True, which="major", color="0.9")
    axes.legend(fontsize="small")
    try:
        with whole_file.replacing(path) as temporary:
            figure.savefig(temporary, format=path.suffix.removeprefix(".") or "svg")
    except (OSError, ValueError) as error:
        raise HpcgnnError(f"cannot write {path}: {error}") from error
