"""The axes of a study: the graph, parts and hosts of a run, the program that it starts, and every setting of ``hpcgnn train``."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError, nearest
from hpcgnn.base.settings import About, Setting, as_flag, check_value, kind_of
from hpcgnn.lab.study.records import short_hash
from hpcgnn.lab.virtual.network import UNLIMITED, check_rate
from hpcgnn.partition.options import METHODS, MINIMISED, OBJECTIVES, PartitionOptions
from hpcgnn.train.run_config import Named, RunConfig, as_typed, as_written, settings_by_name

TRAIN, STRONG, WEAK, PREPARE, BENCH = KINDS = ("train", "strong", "weak", "prepare", "bench")
HPCGNN, PYG, NATIVE = "hpcgnn", "pyg", "native"
# The settings that PyG's training takes, and those that do not apply to it: it uses float32 and makes no evaluations.
OF_PYG = (
    *("model", "layers", "hidden", "heads", "norm", "activation", "dropout"),
    *("epochs", "lr", "weight_decay", "seed", "device"),
)
_NOTHING_TO_PYG = {"eval_every": None, "checkpoint_every": None, "compute": "float32", "strategy": None}
# Environment variables that restrict our kernels, torch's, oneDNN and MKL to an instruction set.
ENVIRONMENTS = {
    "avx2": {
        "HPCGNN_ISA": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
PARTS_WORD, GRAPH_WORD = "{parts}", "{graph}"
SEED_WORD = "{seed}"  # stands for the seed of each run where a setting takes a whole number, such as link_seed
_MOST_RANKS = 1 << 31


class CombinationError(HpcgnnError):
    """A combination of values that cannot run. axes: the axes that cause it, the most likely one first."""

    def __init__(self, message: str, *axes: str) -> None:
        super().__init__(message)
        self.axes = axes


def _axis(name: str, kind: type, default: Any, **about: Any) -> Setting:
    return Setting(name, name, kind, default, About(**about))


# Axes that are no settings of `hpcgnn train`. threads = 0: the launcher divides the cores. hosts = 0: ranks run on this machine,
# or on the nodes of a batch job; otherwise they run on this number of virtual hosts, whose links have a rate. framework: the
# library that trains; PyG trains in one process. bench: the words of a `hpcgnn bench` command, in which {parts} and {graph}
# stand for the files that are made from the other axes.
OF_STUDY = {
    each.name: each
    for each in (
        _axis("name", str, ""),
        _axis("graph", str, ""),
        _axis("ranks", int, 1, least=1, below=_MOST_RANKS),
        _axis("threads", int, 0, least=0),
        _axis("ranks_per_node", int, 0, least=1),
        _axis("hosts", int, 0, least=0),
        _axis("rate", str, ""),
        _axis("partitioner", str, "auto", choices=METHODS),
        _axis("objective", str, "cut", choices=OBJECTIVES),
        _axis("balance", str, "edges,train"),
        _axis("framework", str, HPCGNN, choices=(HPCGNN, PYG)),
        _axis("isa", str, NATIVE, choices=(NATIVE, *ENVIRONMENTS)),
        _axis("bench", str, ""),
    )
}
# A record's configuration has these axes only if the specification gives them.
_RECORDED_IF_GIVEN = ("name", "framework", "isa", "bench")
# A training's record has these settings even if the specification leaves them at their defaults.
_ALWAYS_RECORDED = ("strategy", "bits", "staleness", "compute", "model", "hidden", "layers", "device")
# Settings that cannot be axes, with the reason.
_NOT_VARIED = {
    "seed": "seeds are given as `seeds = [0, 1, 2]` at the top",
    "replay": "the runs of a study do not repeat other runs",
}


def known() -> dict[str, Setting]:
    """All axes by name."""
    of_train = {name: named.setting for name, named in settings_by_name().items() if name not in _NOT_VARIED}
    return OF_STUDY | of_train


def check_axis(name: str, value: Any) -> None:
    """Raise HpcgnnError if there is no such axis, or it cannot have this value."""
    axes = known()
    if name in _NOT_VARIED:
        raise HpcgnnError(f"{name} cannot be an axis: {_NOT_VARIED[name]}")
    if name not in axes:
        near = nearest(name, axes)
        raise HpcgnnError(f"there is no axis or setting {name}" + (f": did you mean {near}?" if near else ""))
    if value == SEED_WORD and name not in OF_STUDY and kind_of(axes[name].type)[0] is int:
        return
    check_value(axes[name], value if name in OF_STUDY else as_typed(axes[name], value))
    if name == "rate" and value:
        check_rate(value)


@dataclass(frozen=True)
class Placement:
    """The placement of a run's ranks. threads: threads of each rank, 0 for the launcher's choice. hosts: number of virtual hosts,
    0 for none. rate: speed of their links."""

    ranks: int
    threads: int
    ranks_per_node: int
    hosts: int
    rate: str

    @property
    def nodes(self) -> int:
        """Number of nodes on which the ranks run."""
        return self.ranks // self.ranks_per_node


def placement(given: Mapping[str, Any]) -> Placement:
    """The placement of a configuration's ranks.

    Raises:
        CombinationError: for values that do not go together.
    """
    ranks, rate = given.get("ranks", 1), given.get("rate", "")
    hosts, per_node = given.get("hosts", 0), given.get("ranks_per_node", 0)
    if per_node and ranks % per_node:
        raise CombinationError(
            f"ranks_per_node = {per_node} does not divide ranks = {ranks}", "ranks_per_node", "ranks"
        )
    if hosts and ranks % hosts:
        raise CombinationError(f"hosts = {hosts} does not divide ranks = {ranks}", "hosts", "ranks")
    if hosts and per_node and hosts * per_node != ranks:
        said = f"hosts = {hosts} with ranks_per_node = {per_node} have {hosts * per_node} ranks, not ranks = {ranks}"
        raise CombinationError(said, "hosts", "ranks_per_node", "ranks")
    if rate and not hosts:
        if "hosts" in given:
            raise CombinationError(
                f"rate = {rate!r} needs virtual hosts, but hosts = 0 means that there are none", "rate", "hosts"
            )
        hosts = ranks // (per_node or 1)
    per_node = per_node or (ranks // hosts if hosts else ranks)
    return Placement(ranks, given.get("threads", 0), per_node, hosts, rate or (UNLIMITED if hosts else ""))


def check_partition(given: Mapping[str, Any], where: Placement) -> None:
    """Raise CombinationError if the partition cannot be made."""
    method, objective = given.get("partitioner", "auto"), given.get("objective", "cut")
    balance = tuple(given.get("balance", OF_STUDY["balance"].default).split(","))
    try:
        PartitionOptions(where.ranks, method, objective, balance, ranks_per_node=where.ranks_per_node)
    except HpcgnnError as error:
        raise CombinationError(str(error), "balance", "partitioner") from error
    # The objective "rows" moves nodes after any method; "auto" takes a method that has the objective.
    if method != "auto" and objective not in (*MINIMISED[method], "rows"):
        able = " and ".join(name for name, minimised in MINIMISED.items() if objective in minimised)
        said = f"partitioner = {method!r} cannot minimise objective = {objective!r}: {able} can"
        raise CombinationError(said, "partitioner", "objective")


def check_kind(given: Mapping[str, Any], kind: str) -> None:
    """Raise CombinationError for axes that have no effect in runs of a kind, and for one that they need and lack."""
    own = {BENCH: "bench", PREPARE: "graph"}
    if kind not in own:
        if "bench" in given:
            raise CombinationError(f'the axis bench needs kind = "{BENCH}", not kind = "{kind}"', "bench")
        return
    if not str(given.get(own[kind], "")).strip():
        raise CombinationError(f'a study of kind = "{kind}" needs the axis {own[kind]}', own[kind])
    useless = ("framework",) if kind == BENCH else ("framework", "bench", "isa", "rate", "hosts", "threads")
    for name in given:
        if name in useless or (name not in OF_STUDY and name != "strategy"):
            raise CombinationError(f'{name} has no effect in a study of kind = "{kind}"', name)


def check_framework(given: Mapping[str, Any], where: Placement) -> None:
    """Raise CombinationError for values that PyG's training cannot take: it runs in one process, and has few of our settings."""
    if given.get("framework", HPCGNN) != PYG:
        return
    if where.ranks > 1 or where.hosts:
        said = f"framework = {PYG!r} trains in one process: ranks must be 1, not {where.ranks}, without hosts and rate"
        raise CombinationError(said, "framework", "ranks", "rate", "hosts")
    for name, value in given.items():
        if name not in (*OF_STUDY, *OF_PYG) and _NOTHING_TO_PYG.get(name, NotImplemented) not in (None, value):
            raise CombinationError(f"framework = {PYG!r} does not support {name} = {value!r}", name, "framework")


def run_config(given: Mapping[str, Any]) -> RunConfig:
    """The settings of ``hpcgnn train`` in a configuration, checked as that command does.

    Raises:
        CombinationError: for settings that ``hpcgnn train`` would refuse.
    """
    settings = {name: value for name, value in given.items() if name not in OF_STUDY}
    try:
        config = RunConfig.from_settings(settings)
        config.check()
    except HpcgnnError as error:
        raise CombinationError(str(error), *_named_in(str(error), settings)) from error
    return config


def _named_in(sentence: str, settings: Mapping[str, Any]) -> list[str]:
    """The settings that a sentence names, as flags or by their names, in the order of the sentence."""
    found = {}
    for name in settings:
        places = [re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", sentence) for word in (as_flag(name), name)]
        if any(places):
            found[name] = min(place.start() for place in places if place)
    return sorted(found, key=lambda name: found[name])


def recorded(given: Mapping[str, Any], where: Placement, config: RunConfig, kind: str = TRAIN) -> dict[str, Any]:
    """A record's configuration: every axis, including those at their defaults that readers look for; settings as in TOML.

    kind: kind of the study; only trainings have settings that are recorded even if they are not given.
    """
    used = config.settings()
    names = {
        name: given.get(name, axis.default)
        for name, axis in OF_STUDY.items()
        if name in given or name not in _RECORDED_IF_GIVEN
    }
    names |= {"ranks_per_node": where.ranks_per_node, "hosts": where.hosts, "rate": where.rate}
    if kind in (PREPARE, BENCH):
        return names | {name: value for name, value in given.items() if name not in names}
    names |= {name: used[name] for name in _ALWAYS_RECORDED if name in used}
    others = {
        name: value if value == SEED_WORD else used.get(name, value)
        for name, value in given.items()
        if name not in names
    }
    return names | {name: str(value) if name == "bits" else value for name, value in others.items()}


def as_flags(given: Mapping[str, Any]) -> list[str]:
    """The flags of ``hpcgnn train`` for the settings in a configuration."""
    found: list[str] = []
    named: dict[str, Named] = settings_by_name()
    for name, value in given.items():
        if name in OF_STUDY:
            continue
        setting = named[name].setting
        shown = as_written(setting, as_typed(setting, value))
        if isinstance(shown, bool):  # a setting that is off by default: its flag has no value
            found += [as_flag(name)] * shown
        else:
            found += [as_flag(name), *map(str, shown if isinstance(shown, list) else [shown])]
    return found


def matches(configuration: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a configuration has the wanted values of axes; a list stands for any of its values."""
    return all(
        str(configuration.get(axis)) in map(str, value if isinstance(value, list) else [value])
        for axis, value in wanted.items()
    )


_TEXTS, _FLAGS = (
    ("source", "split", "features", "labels"),
    ("undirected", "self_loops", "row_normalise", "drop_duplicates"),
)
DATA = "$DATA"  # stands in a source for the folder of `--data`, so that no result depends on the place of the files
_SOURCE = re.compile(r"[a-z]+:.+|digits")


@dataclass(frozen=True)
class GraphSource:
    """The source of a graph. name: name of its files. options: flags of ``convert``. file: a graph.h5 that is used as it is.
    formulas: names in its formulas, which tell whether the graph grows."""

    name: str
    source: str
    options: tuple[str, ...] = ()
    file: Path | None = None
    formulas: str = ""


def check_options(name: str, options: Any) -> None:
    """Raise CombinationError unless ``options`` is a valid table ``[graphs.NAME]``."""
    if not isinstance(options, dict):
        raise CombinationError(f"graphs.{name} must be a table with the key source")
    for key, value in options.items():
        if key not in (*_TEXTS, *_FLAGS):
            raise CombinationError(
                f"graphs have no option {key}: their options are {', '.join((*_TEXTS, *_FLAGS))}", key
            )
        if not isinstance(value, bool if key in _FLAGS else str):
            raise CombinationError(
                f"{key} must be {'true or false' if key in _FLAGS else 'a text'}, not {value!r}", key
            )
    if "source" not in options:
        raise CombinationError(f"graphs.{name} has no source")


def graph_source(graph: str | None, named: Mapping[str, dict[str, Any]], numbers: Mapping[str, int]) -> GraphSource:
    """The graph of a run.

    Args:
        graph: the specification's value: a source, a file, or one of ``named``.
        named: tables of options by name.
        numbers: the names that formulas may use, and their values.

    Raises:
        CombinationError: if it is none of these.
    """
    if not graph:
        raise CombinationError("graph is missing: name a source of `hpcgnn convert`, or a graph.h5", "graph")
    options = named.get(graph, {"source": graph})
    text = " ".join(str(options[key]) for key in _TEXTS if key in options)
    try:
        full = {key: filled(value, numbers) if key in _TEXTS else value for key, value in options.items()}
    except HpcgnnError as error:
        raise CombinationError(f"graph {graph!r}: {error}", "graph") from error
    source = full["source"]
    formulas = " ".join(sorted(names_in(text)))
    if source.endswith(".h5"):
        return _file(graph, source, full, formulas)
    if not _SOURCE.fullmatch(source):
        said = (
            f"graph {graph!r} is no source of `hpcgnn convert` (such as digits, npz:FILE, rmat:...), no graph.h5 and not in "
            "[graphs]"
        )
        raise CombinationError(said, "graph")
    flags = [word for key in _TEXTS[1:] if key in full for word in (f"--{key}", full[key])]
    flags += [f"--{key.replace('_', '-')}" for key in _FLAGS if full.get(key)]
    label = graph if graph in named else source
    return GraphSource(_file_name(label, [source, flags, _state(source)]), source, tuple(flags), formulas=formulas)


def _file(graph: str, source: str, options: Mapping[str, Any], formulas: str) -> GraphSource:
    if len(options) > 1:
        raise CombinationError(
            f"graph {graph!r} is a file that was converted already, so options have no effect: remove them", "graph"
        )
    path = Path(source)
    if not path.is_file():
        raise CombinationError(f"graph {graph!r}: there is no file {path}", "graph")
    return GraphSource(
        _file_name(path.stem, [str(path.resolve()), _state(source)]), source, file=path, formulas=formulas
    )


def _file_name(label: str, made_of: list[Any]) -> str:
    text = re.sub(r"[^\w.-]+", "_", label.rpartition("/")[2])[:60]
    return f"{text}-{short_hash(made_of)}"


def _state(source: str) -> list[int]:
    """The size and time of the file that a source names, if it names one: a file that was written again is another graph."""
    if DATA in source:
        return []
    path = Path(source.partition(":")[2].partition("?")[0] if ":" in source else source)
    if not path.is_file():
        return []
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


_BRACES = re.compile(r"\{([^{}]*)\}")
_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: dict[str, Callable[[float], float]] = {"log2": math.log2, "sqrt": math.sqrt}


def filled(text: str, values: Mapping[str, int]) -> str:
    """``text`` with each formula in braces replaced by its value, a whole number.

    values: the names that formulas may use, and their values.

    Raises:
        HpcgnnError: for a formula that is not valid, or whose value is no whole number.
    """
    return _BRACES.sub(lambda found: str(_whole(found[1], values)), text)


def names_in(text: str) -> set[str]:
    """The names that the formulas of ``text`` use."""
    inside = " ".join(_BRACES.findall(text))
    return set(re.findall(r"[A-Za-z_]\w*", inside)) - _FUNCTIONS.keys()


def _whole(formula: str, values: Mapping[str, int]) -> int:
    try:
        value = _value(ast.parse(formula.strip(), mode="eval").body, values)
    except (SyntaxError, ZeroDivisionError, ValueError, OverflowError) as error:
        raise HpcgnnError(
            f"{{{formula}}} is not a formula of numbers, + - * / //, log2() and sqrt() ({error})"
        ) from error
    if value != int(value):
        of = ", ".join(f"{name} = {values[name]}" for name in sorted(names_in(f"{{{formula}}}") & values.keys()))
        raise HpcgnnError(f"{{{formula}}} is {value:.4g} for {of}, but must be a whole number")
    return int(value)


def _value(node: ast.expr, values: Mapping[str, int]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in values:
            raise HpcgnnError(f"a formula cannot use {node.id}: it may use {', '.join(sorted(values))}")
        return values[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, values)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _FUNCTIONS
        and not node.keywords
    ):
        (argument,) = node.args
        return _FUNCTIONS[node.func.id](_value(argument, values))
    raise ValueError("it contains something else")
