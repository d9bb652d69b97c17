"""``hpcgnn model``: a cost model fitted to a study's records, and what it predicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich import box
from rich.table import Table

from hpcgnn.cli import console
from hpcgnn.data import plan_store
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.data.plan_worker import fitting_jobs
from hpcgnn.errors import HpcgnnError
from hpcgnn.plan import STRATEGIES

F = TypeVar("F", bound=Callable[..., Any])

_EXAMPLES = """\b
Examples:
  hpcgnn study run fit.toml --out fit && hpcgnn model fit fit --out model.toml
  hpcgnn model predict model.toml parts-16.h5 --rate 300mbit --strategy all --bits 2
  hpcgnn model predict model.toml parts-8192.h5 --network fugaku-like --ranks-per-node 48 --json
  hpcgnn model project fugaku-like parts-*.h5 --out scaling.svg
"""


@click.group(epilog=_EXAMPLES)
def model() -> None:
    """Seconds, bytes and memory of an epoch: fitted to measured runs, predicted for others (docs/cost-model.md)."""


@model.command(epilog="\b\nExample\n  hpcgnn model fit DIR --out model.toml")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="TOML file to write.")
@click.option("--machine", metavar="ID", help="Whose records to take, where DIR has those of several machines.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of tables.")
def fit(folder: Path, out: Path, machine: str | None, quiet: bool, as_json: bool) -> None:
    """Fit the constants of the cost model to the records of a study in DIR, and write them with their intervals."""
    import msgspec

    from hpcgnn.cost_model import fit as fitting
    from hpcgnn.cost_model import model_file
    from hpcgnn.cost_model.cases import cases_of
    from hpcgnn.study import records

    runs = cases_of(folder, records.read(folder), machine)
    with console.progress("fitting, evaluations of the equations", None, quiet=quiet or as_json) as advance:
        found = fitting.fit(runs, folder, advance).model
    model_file.write(found, out)
    if as_json:
        print(json.dumps(msgspec.to_builtins(found) | {"left_out": runs.left_out}))
    elif not quiet:
        for sentence in runs.left_out:
            console.note(f"left out: {sentence}")
        _show_constants([fitting.in_words(name, fitted) for name, fitted in found.constants.items()])
        left = found.residuals
        rows = [
            ("runs", left.runs),
            ("error of an epoch, median", f"{left.median:.1%}"),
            ("at worst", f"{left.worst:.1%}"),
        ]
        rows += [(f"  {phase}, of the epoch", f"{value:.1%}") for phase, value in left.median_by_phase.items()]
        console.table(f"fitted to {folder}: {out}", rows)


def _settings(command: F) -> F:
    """The flags of ``hpcgnn train`` that the equations know, and where it runs."""
    options = [
        click.option("--hidden", type=click.IntRange(1), help="As of `hpcgnn train`, which has the defaults of these."),
        click.option("--layers", type=click.IntRange(1)),
        click.option("--model", "kind", metavar="sage|gcn|gin|gat|...", help="See `hpcgnn train --help`."),
        click.option("--heads", type=click.IntRange(1)),
        click.option("--hops", type=click.IntRange(1)),
        click.option("--staleness", type=click.Choice(["off", "pipeline"])),
        click.option("--compute", metavar="auto|float32|bf16|int8"),
        click.option("--node-aware", type=click.Choice(["auto", "on", "off"])),
        click.option("--cache-input-aggregation", is_flag=True),
        click.option(
            "--threads", type=click.IntRange(1), help="Of each rank. [default: 1; a profile's units for a rank]"
        ),
        click.option("--ranks-per-node", metavar="K", type=click.IntRange(1), help="[default: 1; a profile's]"),
        click.option(
            "--rate", metavar="RATE", help="Virtual hosts on the model's machine, with links of 100mbit, 1gbit, ..."
        ),
        click.option("--network", metavar="NAME", help="Nodes with a profile's network, or that of a file NAME.toml."),
        click.option(
            "--jobs", type=click.IntRange(0), default=0, help="Processes that make missing plans; 0: by cores."
        ),
        click.option("--quiet", is_flag=True, help="Print nothing but errors."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of a table."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@model.command(epilog="\b\nExample\n  hpcgnn model predict model.toml parts.h5 --rate 300mbit --strategy all --bits 2")
@click.argument("fitted", metavar="MODEL.toml|PROFILE")
@click.argument("parts", type=click.Path(path_type=Path))
@click.option("--ranks", type=click.IntRange(1), help="As many as PARTS has parts, which is the default.")
@click.option("--strategy", type=click.Choice([*STRATEGIES, "all"]), default="hybrid", show_default=True)
@click.option("--bits", type=click.Choice(["32", "16", "8", "4", "2", "1"]), default="32", show_default=True)
@_settings
def predict(fitted: str, parts: Path, ranks: int | None, strategy: str, bits: str, **given: Any) -> None:
    """Predict an epoch's seconds by phase, and bytes and memory of each rank, without training.

    Rows and bytes are exact: they are counted from the plan in PARTS, which is made where it is missing.
    """
    from hpcgnn.cost_model.project import project

    with PartsFile(parts) as file:
        held = file.num_parts
    if ranks is not None and ranks != held:
        raise HpcgnnError(f"{parts} has {held} parts, not {ranks}: partition the graph with --parts {ranks}")
    chosen = [(each, int(bits)) for each in (STRATEGIES if strategy == "all" else (strategy,))]
    is_quiet = given["quiet"] or given["as_json"]
    found_model, profile, configuration = _about(fitted, given)
    _make_plans([parts], _wanted(chosen, configuration), given["jobs"], quiet=is_quiet)
    predictions = project(found_model, [parts], chosen, configuration, profile=profile)
    report = {each.setup.run.strategy: each.as_dict() for each in predictions}
    if given["as_json"]:
        print(json.dumps({"model": fitted, "machine": found_model.machine, "predictions": report}))
        return
    for sentence in dict.fromkeys(sentence for each in predictions for sentence in each.warnings):
        console.note(sentence)
    if not given["quiet"]:
        _show_predictions(list(report.values()))


@model.command(
    epilog="\b\nExample\n  hpcgnn model project fugaku-like parts-16.h5 parts-64.h5 parts-256.h5 --out scaling.svg"
)
@click.argument("fitted", metavar="MODEL.toml|PROFILE")
@click.argument("parts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Figure to write, .svg or .pdf.")
@click.option(
    "--bits", "all_bits", default="32,2", show_default=True, metavar="BITS,...", help="Of hybrid; others have the most."
)
@_settings
def project(fitted: str, parts: Sequence[Path], out: Path, all_bits: str, **given: Any) -> None:
    """Draw the epochs of a graph in several PARTS files, by strategy and bits: strong scaling, both axes logarithmic."""
    from hpcgnn.cost_model import project as projection

    bits = _bits(all_bits)
    chosen = projection.contenders(STRATEGIES, bits)
    is_quiet = given["quiet"] or given["as_json"]
    found_model, profile, configuration = _about(fitted, given)
    _make_plans(parts, _wanted(chosen, configuration), given["jobs"], quiet=is_quiet)
    with console.progress("predicting", len(parts) * len(chosen), quiet=is_quiet) as advance:
        predictions = projection.project(
            found_model, parts, chosen, configuration, profile=profile, advance=advance
        )  # fmt: skip
    where = profile.description if profile is not None else found_model.machine.get("processor", "")
    projection.draw(predictions, out, f"{where}: predicted by {Path(fitted).name}")
    report = [each.as_dict(by_rank=False) for each in predictions]
    if given["as_json"]:
        print(json.dumps({"model": fitted, "figure": str(out), "predictions": report}))
        return
    for sentence in dict.fromkeys(sentence for each in predictions for sentence in each.warnings):
        console.note(sentence)
    if not given["quiet"]:
        _show_predictions(report)


def _bits(text: str) -> list[int]:
    known = (1, 2, 4, 8, 16, 32)
    found = [int(each) if each.isdigit() else 0 for each in text.split(",")]
    if not set(found) <= set(known):
        raise HpcgnnError(f"--bits must be some of {', '.join(map(str, known))} with commas between them, not {text!r}")
    return found


def _about(fitted: str, given: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """The model, the profile whose network is meant or None, and the settings as records have them."""
    from hpcgnn.cost_model import model_file, profiles
    from hpcgnn.cost_model.predict import model_of_profile

    if given["rate"] and given["network"]:
        raise HpcgnnError("--rate is of virtual hosts and --network of real ones: choose one of them")
    names = (
        "hidden",
        "layers",
        "heads",
        "hops",
        "staleness",
        "compute",
        "node_aware",
        "threads",
        "ranks_per_node",
        "rate",
    )
    configuration = {name: given[name] for name in names if given[name] is not None}
    configuration |= {"model": given["kind"]} if given["kind"] else {}
    configuration |= {"cache_input_aggregation": True} if given["cache_input_aggregation"] else {}
    profile = None if given["network"] is None else profiles.find(given["network"])
    if Path(fitted).exists() or fitted not in profiles.profiles():
        return model_file.read(Path(fitted)), profile, configuration
    own = profiles.find(fitted)
    if given["rate"]:
        raise HpcgnnError(f"--rate is of virtual hosts on a machine that was measured, and {fitted} is a profile")
    per_node = configuration.get("ranks_per_node", own.ranks_per_node)
    threads = configuration.get("threads", max(own.units_per_node // per_node, 1))
    return model_of_profile(own), profile or own, configuration | {"threads": threads}


def _wanted(chosen: Sequence[tuple[str, int]], configuration: dict[str, Any]) -> list[str]:
    """The plans that are read: attention has one of its own."""
    from hpcgnn.nn.config import MODELS, ModelConfig

    kind = configuration.get("model", "sage")
    uses = MODELS[kind].uses_strategy(ModelConfig(kind))
    return list(dict.fromkeys(strategy for strategy, _ in chosen)) if uses else ["post"]


def _make_plans(files: Sequence[Path], strategies: list[str], jobs: int, *, quiet: bool) -> None:
    for path in files:
        with PartsFile(path) as file:
            missing = [each for each in strategies if not plan_store.is_stored(file, each)]
            total, fitting = len(missing) * file.num_parts, fitting_jobs(file.meta.num_edges, file.num_parts)
        if missing:
            with console.progress(f"planning {path.name}", total, quiet=quiet) as advance:
                plan_store.store_plans(path, missing, advance, jobs=jobs or fitting)


def _show_constants(rows: list[tuple[str, str, str, str]]) -> None:
    shown = Table(title="constants", title_justify="left", box=box.SIMPLE)
    for name in ("name", "value", "95 % interval", "of"):
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console.stdout().print(shown)


def _show_predictions(reports: list[dict[str, Any]]) -> None:
    phases = {
        "aggregation": "aggr.",
        "communication_wait": "wait",
        "quantization": "quant.",
        "synchronisation": "sync.",
        "other": "other",
    }
    shown = Table(title="an epoch, predicted: seconds of the slowest rank", title_justify="left", box=box.SIMPLE)
    for name in ("ranks", "strategy", "bits", "epoch", *phases.values(), "sent", "memory"):
        shown.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    for each in reports:
        seconds = [f"{each['phases_seconds'][phase]:.3g}" for phase in phases]
        sizes = [console.size(each["bytes_sent"]), console.size(each["largest_memory_bytes_of_a_rank"])]
        named = f"{each['ranks']:,}", each["strategy"], str(each["bits"])
        shown.add_row(*named, f"{each['epoch_seconds']:.4g}", *seconds, *sizes)
    console.stdout().print(shown)
