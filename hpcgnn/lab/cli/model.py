"""``hpcgnn model``: a cost model that is fitted to the records of a study, and its predictions."""

from __future__ import annotations

import functools
import json
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli import console
from hpcgnn.cli.options import AS_JSON, COUNT, QUIET, SectionedCommand
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_pieces import fitting_jobs
from hpcgnn.lab.study.tables import Table
from hpcgnn.plan import STRATEGIES
from hpcgnn.plan.relations import BY_TYPE

_EXAMPLES = """\b
Examples:
  hpcgnn study run fit --out fit && hpcgnn model fit fit --out model.toml
  hpcgnn study run unseen --out unseen && hpcgnn model compare model.toml unseen
  hpcgnn model predict model.toml parts-16.h5 --rate 300mbit --strategy all --bits 2
  hpcgnn model predict model.toml parts-8192.h5 --network fugaku-like --ranks-per-node 48 --json
  hpcgnn model project fugaku-like parts-*.h5 --out scaling.svg
"""

_NAMES = ("hidden", "layers", "heads", "hops", "staleness", "message_coding", "compute", "node_aware", "threads",
          "ranks_per_node", "rate")  # fmt: skip
_PHASES = {"aggregation": "aggr.", "communication_wait": "wait", "quantization": "quant.", "synchronisation": "sync.",
           "other": "other"}  # fmt: skip
_ENDINGS = (".svg", ".pdf", ".md", ".html", ".json")
_EVERY_MESSAGE = 1 << 62
_LEAST_WIDTH = 110  # columns of the table: its figures must not be cut


_fitted = click.argument("fitted", metavar="MODEL.toml|PROFILE")
_folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_machine = click.option(
    "--machine", metavar="ID", help="Identifier of the machine whose records count, if DIR has several."
)
# The options that `predict` and `project` share: settings of `hpcgnn train` that the equations cover, those of the machine, and
# assumptions about policies.
_SHARED = (
    click.option("--hidden", type=click.IntRange(1), help="Number of columns of the hidden layers. This and the settings below "
                 "are those of `hpcgnn train`, with the same defaults."),
    click.option("--layers", type=click.IntRange(1), help="Number of layers."),
    click.option("--model", "kind", metavar="sage|gcn|gin|gat|...", help="Model: see `hpcgnn train --help`."),
    click.option("--heads", type=COUNT, help="Number of attention heads."),
    click.option("--hops", type=COUNT, help="Number of propagation steps."),
    click.option("--compute", metavar="auto|float32|bf16|int8", help="Arithmetic of dense products."),
    click.option("--node-aware", type=click.Choice(["auto", "on", "off"]), help="Aggregation by node."),
    click.option("--cache-input-aggregation", is_flag=True, help="Aggregate the input features once."),
    click.option("--set", "others", metavar="NAME=VALUE", multiple=True,
                 help="Another setting of `hpcgnn train`, such as one of a policy; may be given several times."),
    click.option("--threads", type=COUNT,
                 help="Number of threads of each rank.  [default: 1; with a profile, its units for each rank]"),
    click.option("--ranks-per-node", metavar="K", type=COUNT,
                 help="Number of ranks of a node.  [default: 1; with a profile, its own]"),
    click.option("--rate", metavar="RATE", help="Speed of the links, such as 100mbit or 1gbit, of virtual hosts on the machine "
                 "of MODEL.toml."),
    click.option("--network", metavar="NAME", help="Profile, or file NAME.toml, whose network connects the nodes."),
    click.option("--like", metavar="RUN", multiple=True, type=click.Path(path_type=Path),
                 help="Run folder whose policies' decisions are assumed; may be given several times, for several policies."),
    click.option("--shares", metavar="BITS:SHARE,...", help="Assumed share of rows with each bit-width, such as "
                 "2:0.7,4:0.2,8:0.1, for policies that choose bit-widths."),
    click.option("--stale-share", type=float, help="Assumed share of epochs that use stale rows, 0 to 1."),
    click.option("--sent-share", type=float, help="Assumed share of epochs that send messages, 0 to 1."),
    click.option("--every-message", is_flag=True,
                 help="Compute the time of every single message, even if there are very many."),
    click.option("--jobs", type=click.IntRange(0), default=0, help="Number of processes that compute missing plans; 0 starts "
                 "one for each core that this process may use.  [default: 0]"),
    QUIET,
    AS_JSON,
)  # fmt: skip
# The shared options under the titles of the help; each command puts its own in the first section.
_SECTIONS = {
    "Run": ("hidden", "layers", "kind", "heads", "hops", "compute", "node_aware", "cache_input_aggregation", "others"),
    "Machine": ("threads", "ranks_per_node", "network", "rate"),
    "Assumptions about policies": ("like", "shares", "stale_share", "sent_share"),
    "Computation and output": ("every_message", "jobs", "quiet", "as_json"),
}


def _with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options to a command."""
    return functools.reduce(lambda found, option: option(found), reversed(_SHARED), command)


def _command(example: str, *own: str) -> dict[str, Any]:
    """Arguments for the decorator of a command with the shared options, whose own options are ``own``."""
    sections = _SECTIONS | {"Run": (*own, *_SECTIONS["Run"])}
    return {"cls": SectionedCommand, "sections": sections, "epilog": f"\b\nExample\n  hpcgnn model {example}"}


@click.group(epilog=_EXAMPLES)
def model() -> None:
    """Fit a cost model to measured runs, and predict seconds, bytes and memory of an epoch of other runs.

    docs/cost-model.md describes the equations. PROFILE is the name of a machine that ships with the package, such as
    fugaku-like, with constants from published figures.
    """


@model.command(epilog="\b\nExample\n  hpcgnn model fit DIR --out model.toml")
@_folder
@click.option("--out", required=True, type=click.Path(path_type=Path), help="TOML file to write with the constants.")
@_machine
@QUIET
@AS_JSON
def fit(folder: Path, out: Path, machine: str | None, quiet: bool, as_json: bool) -> None:
    """Fit the constants of the cost model to the records of a study.

    DIR is the folder of the study. The constants are written with 95 % intervals.
    """
    import msgspec

    from hpcgnn.lab.cost_model import fit as fitting
    from hpcgnn.lab.cost_model.constants import write_model
    from hpcgnn.lab.study import records

    runs = fitting.cases_of(folder, records.read(folder), machine)
    with console.progress("fitting (evaluations of the equations)", None, quiet=quiet or as_json) as advance:
        found = fitting.fit(runs, folder, advance)
    write_model(found, out)
    if as_json:
        print(json.dumps(msgspec.to_builtins(found) | {"left_out": runs.left_out}))
    elif not quiet:
        for sentence in runs.left_out:
            console.note(f"left out: {sentence}")
        constants = [fitting.row_of(name, fitted) for name, fitted in found.constants.items()]
        Table("constants", ("name", "value", "95 % interval", "of"), tuple(constants), label_columns=4).show()
        left = found.residuals
        rows = [
            ("runs", left.runs),
            ("relative error of an epoch, median", f"{left.median:.1%}"),
            ("relative error of an epoch, largest", f"{left.worst:.1%}"),
        ]
        rows += [(f"  {phase}, share of the epoch", f"{value:.1%}") for phase, value in left.median_by_phase.items()]
        console.table(f"fitted to {folder}: {out}", rows)


@model.command(epilog="\b\nExample\n  hpcgnn study run unseen --out unseen && hpcgnn model compare model.toml unseen")
@click.argument("fitted", metavar="MODEL.toml", type=click.Path(path_type=Path))
@_folder
@_machine
@QUIET
@AS_JSON
def compare(fitted: Path, folder: Path, machine: str | None, quiet: bool, as_json: bool) -> None:
    """Compare predictions of the cost model with measurements.

    Every finished run of the study in DIR is compared. Runs that the equations do not cover are named and left out. `hpcgnn
    study report DIR --model MODEL.toml` draws the same comparison.
    """
    from hpcgnn.lab.cost_model.compare import compare as comparison_of
    from hpcgnn.lab.cost_model.constants import read_model
    from hpcgnn.lab.report.study_page import model_tables
    from hpcgnn.lab.study import records

    found = comparison_of(read_model(fitted), folder, records.read(folder), machine)
    if as_json:
        print(json.dumps({"model": str(fitted), "folder": str(folder)} | found.as_dict()))
    elif not quiet:
        for sentence in (*found.notes, *(f"left out: {each}" for each in found.left_out)):
            console.note(sentence)
        for table in model_tables(found):
            table.show()
        print(found.in_words())


@model.command(
    **_command("predict model.toml parts.h5 --rate 300mbit --strategy all --bits 2", "ranks", "strategy", "bits", "staleness",
               "message_coding", "memory")
)  # fmt: skip
@_fitted
@click.argument("parts", type=click.Path(path_type=Path))
@click.option(
    "--ranks", type=click.IntRange(1), help="Number of ranks, to check it against PARTS.  [default: that of PARTS]"
)
@click.option("--strategy", type=click.Choice([*STRATEGIES, "all"]), default="hybrid", show_default=True,
              help="Place where edges between parts are aggregated: see `hpcgnn train --help`. all predicts the three strategies."
              )  # fmt: skip
@click.option("--bits", metavar="32|16|8|4|2|1|adaqp|sylvie|pipeqs|uniform", default="32", show_default=True,
              help="Bit-width of each value in messages, or the policy that chooses it.")  # fmt: skip
@click.option("--staleness", metavar="off|pipeline|sylvie|pipeqs|sancus", help="Policy of stale rows.  [default: off]")
@click.option("--message-coding", metavar="plain|delta",
              help="Content of messages: rows, or differences from the last rows.  [default: plain]")  # fmt: skip
@click.option("--memory", is_flag=True,
              help="Also predict what each part of the memory takes on the rank with the most, by a trial of the training on "
                   "small graphs, which takes seconds.")  # fmt: skip
@_with_settings
def predict(
    fitted: str, parts: Path, ranks: int | None, strategy: str, bits: str, memory: bool, **given: Any
) -> None:  # fmt: skip
    """Predict seconds, bytes and memory of an epoch, without training.

    The seconds are those of each phase, on the slowest rank. Rows and bytes are exact: they are counted from the plan in
    PARTS, which is computed if it is missing. Decisions of policies are assumptions, which are printed as notes.
    """
    from hpcgnn.lab.cost_model import predict as predicting

    with PartsFile(parts) as file:
        held = file.num_parts
    if ranks is not None and ranks != held:
        raise HpcgnnError(f"{parts} has {held} parts, not {ranks}: partition the graph with --parts {ranks}")
    chosen = STRATEGIES if strategy == "all" else (strategy,)
    quiet = given["quiet"] or given["as_json"]
    found_model, profile, configuration = _about(fitted, given)
    _make_plans([parts], _wanted(chosen, configuration), given["jobs"], quiet)
    with PartsFile(parts) as file:
        how = _how(given) | {"profile": profile, "read": {}}
        settings = [configuration | {"strategy": each, "bits": bits} for each in chosen]
        predictions = [predicting.predict(found_model, file, each, **how).as_dict() for each in settings]
        for each, found in zip(settings, predictions, strict=True) if memory else ():
            rank = found["memory_bytes_of_ranks"].index(found["largest_memory_bytes_of_a_rank"])
            parts_of = predicting.memory_parts(file, each, found_model.auto_compute, rank)
            found["memory_parts_bytes"] = parts_of | {"total": sum(parts_of.values())}
    report = {each["strategy"]: each for each in predictions}
    if given["as_json"]:
        print(json.dumps({"model": fitted, "machine": found_model.machine, "predictions": report}))
    elif not quiet:
        _show_predictions(list(report.values()))
        if memory:
            _show_memory(report)


@model.command(
    **_command(
        "project fugaku-like parts-16.h5 parts-64.h5 parts-256.h5 --out scaling.svg", "outs", "ways", "all_bits", "weak"
    )
)
@_fitted
@click.argument("parts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", "outs", required=True, multiple=True, type=click.Path(path_type=Path),
              help="File to write. The ending chooses the kind: .svg or .pdf for a figure, .md or .html for a report, .json for "
                   "all numbers. May be given several times.")  # fmt: skip
@click.option("--ways", default="strategies", show_default=True, metavar="NAME,...",
              help="Ways of sending to compare: strategies (short for vanilla,pre,hybrid,int2), policies (short for "
                   "vanilla,int8,adaqp,sylvie,pipeqs), or a list of names such as vanilla,nodes-int2,pipeline. The ideal line is "
                   "drawn for the first one.")  # fmt: skip
@click.option("--bits", "all_bits", metavar="BITS,...",
              help="Instead of --ways: compare all strategies, and hybrid with each of these bit-widths.")  # fmt: skip
@click.option("--weak", multiple=True, type=click.Path(path_type=Path), help="Parts file of a graph that grows with the number "
              "of parts, for weak scaling; may be given several times.")  # fmt: skip
@_with_settings
def project(
    fitted: str, parts: Sequence[Path], outs: Sequence[Path], ways: str, all_bits: str | None, weak: Sequence[Path],
    **given: Any,
) -> None:  # fmt: skip
    """Draw the predicted seconds of an epoch over the number of ranks.

    PARTS are several parts files of one graph, with different numbers of parts, for strong scaling; --weak adds weak scaling.
    Both axes are logarithmic.
    """
    from hpcgnn.lab.cost_model import predict as predicting

    for path in outs:
        if path.suffix not in _ENDINGS:
            raise HpcgnnError(f"--out {path}: the name must end in one of {', '.join(_ENDINGS)}")
    chosen = predicting.ways_of(ways) if all_bits is None else predicting.contenders(STRATEGIES, _bits(all_bits))
    quiet = given["quiet"] or given["as_json"]
    found_model, profile, configuration = _about(fitted, given)
    how = _how(given)
    strategies = _wanted((each["strategy"] for each in chosen.values()), configuration)
    _make_plans([*parts, *weak], strategies, given["jobs"], quiet)
    files = {predicting.STRONG: parts, predicting.WEAK: weak}
    with console.progress("predicting", len((*parts, *weak)) * len(chosen), quiet) as advance:
        points = predicting.project(found_model, files, chosen, configuration, advance, profile=profile, **how)
    found = {
        "model": Path(fitted).name,
        "where": profile.description if profile is not None else found_model.machine.get("processor", ""),
        "points": points,
        "command": f"hpcgnn {shlex.join(sys.argv[1:])}",
        "sources": [] if profile is None else list(profile.sources),
        "numbers": {} if profile is None else profile.numbers,
    }
    for path in outs:
        _write(path, found)
    if given["as_json"]:
        print(json.dumps({"model": fitted, "written": [str(path) for path in outs], "predictions": points}))
    elif not quiet:
        _show_predictions(points)


def _write(path: Path, found: dict[str, Any]) -> None:
    """Write a projection as the kind of file that the name ends with."""
    import msgspec

    from hpcgnn.lab.report import page, study_page

    projection = msgspec.convert(found, study_page.Projection)
    files: dict[str, str] = {}
    match path.suffix:
        case ".json":
            content: str | bytes = json.dumps(found, indent=1) + "\n"
        case ".html":
            content = page.as_html(study_page.projection_page(projection))
        case ".md":
            content, files = page.as_markdown(study_page.projection_page(projection), path.stem)
        case _:
            content = study_page.projection_picture(projection, path.suffix.removeprefix("."))
    try:
        for name, each in {path.name: content, **files}.items():
            with whole_file.replacing(path.with_name(name)) as temporary:
                temporary.write_bytes(each if isinstance(each, bytes) else each.encode())
    except OSError as error:
        raise HpcgnnError(f"cannot write {path}: {error.strerror}") from error


def _bits(text: str) -> list[int]:
    known = (1, 2, 4, 8, 16, 32)
    found = [int(each) if each.isdigit() else 0 for each in text.split(",")]
    if not set(found) <= set(known):
        raise HpcgnnError(f"--bits must be a list of {', '.join(map(str, known))}, separated by commas, not {text!r}")
    return found


def _about(fitted: str, given: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """The model, the profile whose network connects the nodes (or None), and the settings as records have them."""
    from hpcgnn.lab.cost_model import profiles
    from hpcgnn.lab.cost_model.constants import read_model

    if given["rate"] and given["network"]:
        raise HpcgnnError("--rate is for virtual hosts and --network for real ones: give only one of them")
    configuration = {name: given[name] for name in _NAMES if given.get(name) is not None}
    configuration |= {"model": given["kind"]} if given["kind"] else {}
    configuration |= {"cache_input_aggregation": True} if given["cache_input_aggregation"] else {}
    configuration |= dict(_other(each) for each in given["others"])
    profile = None if given["network"] is None else profiles.find(given["network"])
    if Path(fitted).exists() or fitted not in profiles.profiles():
        return read_model(Path(fitted)), profile, configuration
    own = profiles.find(fitted)
    if given["rate"]:
        raise HpcgnnError(
            f"--rate is for virtual hosts on a machine that was measured, and {fitted} is a profile: leave --rate out, or give "
            "a MODEL.toml"
        )
    per_node = configuration.get("ranks_per_node", own.ranks_per_node)
    threads = configuration.get("threads", max(own.units_per_node // per_node, 1))
    return profiles.model_of_profile(own), profile or own, configuration | {"threads": threads}


def _other(text: str) -> tuple[str, Any]:
    """The name of a setting and its value, which is TOML or else a word."""
    from hpcgnn.train.run_config import settings_by_name

    name, equals, value = text.partition("=")
    name = name.replace("-", "_")
    if not equals or name not in settings_by_name():
        raise HpcgnnError(f"--set must be NAME=VALUE with the name of a setting of `hpcgnn train`, not {text!r}")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def _how(given: dict[str, Any]) -> dict[str, Any]:
    """The assumed decisions of policies, and the number of messages that are timed one by one."""
    from hpcgnn.lab.cost_model.policies import Assumptions, decided_by
    from hpcgnn.lab.cost_model.predict import MOST_ONE_BY_ONE

    decided = [decided_by(path) for path in given["like"]]
    told = (given["shares"], given["stale_share"], given["sent_share"])
    if any(each is not None for each in told):
        shares = None if given["shares"] is None else _shares(given["shares"])
        decided.append(Assumptions(shares, given["stale_share"], given["sent_share"]))
    return {"decided": decided, "most_messages": _EVERY_MESSAGE if given["every_message"] else MOST_ONE_BY_ONE}


def _shares(text: str) -> dict[int, float]:
    found = {}
    for each in text.split(","):
        bits, _, share = each.partition(":")
        try:
            found[_bits(bits.strip())[0]] = float(share)
        except (HpcgnnError, ValueError) as error:
            said = f"--shares must be a list of BITS:SHARE such as 2:0.7,4:0.2,8:0.1, not {text!r}"
            raise HpcgnnError(said) from error
    return found


def _wanted(strategies: Iterable[str], configuration: dict[str, Any]) -> list[str]:
    """The plans that are read. Attention over the halo uses the post plan, whatever the strategy is."""
    from hpcgnn.lab.study.axes import plan_of

    return list({plan_of(configuration | {"strategy": each}).removesuffix(BY_TYPE): None for each in strategies})


def _make_plans(files: Sequence[Path], strategies: list[str], jobs: int, quiet: bool) -> None:
    for path in files:
        with PartsFile(path) as file:
            missing = [each for each in strategies if not plan_store.is_stored(file, each)]
            total, fitting = len(missing) * file.num_parts, fitting_jobs(file.meta.num_edges, file.num_parts)
        if missing:
            with console.progress(f"planning {path.name}", total, quiet=quiet) as advance:
                plan_store.store_plans(path, missing, advance, jobs=jobs or fitting)


def _show_predictions(reports: list[dict[str, Any]]) -> None:
    """Print each warning and assumption once, and a table."""
    for sentence in dict.fromkeys(sentence for each in reports for sentence in each["warnings"]):
        console.note(sentence)
    assumed: dict[str, dict[str, None]] = {}  # bit-widths and policies by the sentence that they have in common
    for each in reports:
        for sentence in each["assumes"]:
            assumed.setdefault(sentence, {})[str(each["bits"])] = None
    for sentence, labels in assumed.items():
        console.note(f"{', '.join(labels)}: {sentence}")
    ways = ("scaling", "way") if "way" in reports[0] else ()
    rows = []
    for each in reports:
        bits, staleness = str(each["bits"]), each["staleness"]
        rows.append((
            *(each[name] for name in ways), f"{each['ranks']:,}", each["strategy"],
            bits if staleness in ("off", bits) else f"{bits}+{staleness}", _milliseconds(each["epoch_seconds"]),
            *(_milliseconds(each["phases_seconds"][phase]) for phase in _PHASES),
            console.size(each["bytes_sent"]), console.size(each["largest_memory_bytes_of_a_rank"]),
        ))  # fmt: skip
    header = (*ways, "ranks", "strategy", "bits", "epoch", *_PHASES.values(), "sent", "memory")
    title = "predicted epoch: milliseconds of the slowest rank"
    shown = Table(title, header, tuple(rows), label_columns=len(ways)).rich()
    shown.padding = (0, 1, 0, 0)
    for column in shown.columns:
        column.no_wrap = True
    shown.columns[len(ways) + 1].justify = "left"
    out = console.stdout()
    out.width = max(out.width, _LEAST_WIDTH)
    out.print(shown)
    timed = {each["messages_timed"] for each in reports}
    out.print(f"messages timed {' or '.join(sorted(timed))}", highlight=False)


def _show_memory(reports: dict[str, dict[str, Any]]) -> None:
    """Print the parts of memory by strategy."""
    found = [each["memory_parts_bytes"] for each in reports.values()]
    rows = [
        (part, *(console.size(each[part]) for each in found)) for part in found[0] if any(each[part] for each in found)
    ]
    Table("memory of the rank with the most, by a trial", ("part", *reports), tuple(rows), label_columns=1).show()


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.3g}" if seconds > 1e-12 else "0"
