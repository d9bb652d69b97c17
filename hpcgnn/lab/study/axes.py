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

import msgspec

from hpcgnn.base.errors import HpcgnnError, nearest
from hpcgnn.base.settings import Setting, as_flag, check_value, kind_of
from hpcgnn.lab.bench.names import DGL, PEERS, SAR, PeerSettings
from hpcgnn.lab.study.records import short_hash
from hpcgnn.lab.virtual.network import UNLIMITED, check_rate
from hpcgnn.nn.config import ModelConfig, plan_in_use
from hpcgnn.partition.options import METHODS, MINIMISED, OBJECTIVES, PartitionOptions
from hpcgnn.train.config import LOWER_IS_BETTER
from hpcgnn.train.run_config import RunConfig, as_typed, as_written, settings_by_name

TRAIN, STRONG, WEAK, PREPARE, BENCH = KINDS = ("train", "strong", "weak", "prepare", "bench")
HPCGNN, NATIVE = "hpcgnn", "native"
# The settings that a training by another library takes, and those that do not apply to it: it computes and sends float32.
OF_PEER = ("model", "layers", "hidden", "heads", "norm", "activation", "dropout", "epochs", "eval_every", "lr", "weight_decay",
          "seed", "device")  # fmt: skip
_NOTHING_TO_PEER = {"checkpoint_every": None, "compute": "float32", "strategy": None, "bits": "32"}
OF_SAMPLING = ("fanouts", "batch_size", "workers")  # axes that DGL's trainings have beside those
# Environment variables that restrict our kernels, torch's, oneDNN and MKL to an instruction set.
ENVIRONMENTS = {
    "avx2": {"HPCGNN_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
             "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}  # fmt: skip
PARTS_WORD, GRAPH_WORD = "{parts}", "{graph}"
ON_ONE = ("plan", "ranks")  # benches that read the parts of all ranks in one process
SEED_WORD = "{seed}"  # stands for the seed of each run where a setting takes a whole number, such as link_seed


class CombinationError(HpcgnnError):
    """A combination of values that cannot run. axes: the axes that cause it, the most likely one first."""

    def __init__(self, message: str, *axes: Any) -> None:
        super().__init__(message)
        self.axes = axes


# Axes that are no settings of `hpcgnn train`. threads = 0: the launcher divides the cores. hosts = 0: ranks run on this machine,
# or on the nodes of a batch job. framework: the library that trains. bench: the words of a `hpcgnn bench` command, in which
# {parts} and {graph} stand for the files that are made from the other axes.
OF_STUDY = {
    name: Setting(name=name, attribute=name, type=type(default), default=default, **about)
    for name, default, about in (
        ("name", "", {}),
        ("graph", "", {}),
        ("ranks", 1, {"least": 1, "below": 1 << 31}),
        ("threads", 0, {"least": 0}),
        ("ranks_per_node", 0, {"least": 1}),
        ("hosts", 0, {"least": 0}),
        ("rate", "", {}),
        ("partitioner", "auto", {"choices": METHODS}),
        ("objective", "cut", {"choices": OBJECTIVES}),
        ("balance", "edges,train", {}),
        ("framework", HPCGNN, {"choices": (HPCGNN, *PEERS)}),
        ("fanouts", "", {}),
        ("batch_size", PeerSettings.batch_size, {"least": 1}),
        ("workers", PeerSettings.workers, {"least": 0}),
        ("isa", NATIVE, {"choices": (NATIVE, *ENVIRONMENTS)}),
        ("bench", "", {}),
    )
}
# A record's configuration has these axes only if the specification gives them.
_RECORDED_IF_GIVEN = ("name", "framework", *OF_SAMPLING, "isa", "bench")
# A training's record has these settings even if the specification leaves them at their defaults.
_ALWAYS_RECORDED = ("strategy", "bits", "staleness", "compute", "model", "hidden", "layers", "device")
# Settings that cannot be axes, with the reason.
_NOT_VARIED = {
    "seed": "seeds are given as `seeds = [0, 1, 2]` at the top",
    "replay": "the runs of a study do not repeat other runs",
}


def names_files(bench: str) -> bool:
    """Return whether the words of a bench name files that must be made before it."""
    return PARTS_WORD in bench or GRAPH_WORD in bench


def check_axis(name: str, value: Any) -> None:
    """Raise HpcgnnError if there is no such axis, or it cannot have this value."""
    if name in _NOT_VARIED:
        raise HpcgnnError(f"{name} cannot be an axis: {_NOT_VARIED[name]}")
    axes = OF_STUDY | {name: named.setting for name, named in settings_by_name().items()}
    if name not in axes:
        near = nearest(name, [each for each in axes if each not in _NOT_VARIED])
        raise HpcgnnError(f"there is no axis or setting {name}" + (f": did you mean {near}?" if near else ""))
    if value == SEED_WORD and name not in OF_STUDY and kind_of(axes[name].type)[0] is int:
        return
    check_value(axes[name], value if name in OF_STUDY else as_typed(axes[name], value))
    if name == "rate" and value:
        check_rate(value)
    if name == "metric" and value in LOWER_IS_BETTER:
        raise HpcgnnError(f"metric cannot be {value} in a study, whose figures take a higher metric as better: take r2")


@dataclass(frozen=True)
class Placement:
    """The placement of a run's ranks. threads: of each rank, 0 for the launcher's choice. hosts: virtual ones, whose links have
    the rate; 0 for none."""

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
    """The placement of a configuration's ranks. Raises CombinationError for values that do not go together."""
    ranks, rate = given.get("ranks", 1), given.get("rate", "")
    hosts, per_node = given.get("hosts", 0), given.get("ranks_per_node", 0)
    for name, number in (("ranks_per_node", per_node), ("hosts", hosts)):
        if number and ranks % number:
            raise CombinationError(f"{name} = {number} does not divide ranks = {ranks}", name, "ranks")
    if hosts and per_node and hosts * per_node != ranks:
        said = f"hosts = {hosts} with ranks_per_node = {per_node} have {hosts * per_node} ranks, not ranks = {ranks}"
        raise CombinationError(said, "hosts", "ranks_per_node", "ranks")
    if rate and not hosts:
        if "hosts" in given:
            said = f"rate = {rate!r} needs virtual hosts, but hosts = 0 means that there are none"
            raise CombinationError(said, "rate", "hosts")
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
    useless = ("framework", *OF_SAMPLING, *(() if kind == BENCH else ("bench", "isa", "rate", "hosts", "threads")))
    for name in given:
        if name in useless or (name not in OF_STUDY and name != "strategy"):
            raise CombinationError(f'{name} has no effect in a study of kind = "{kind}"', name)


def check_framework(given: Mapping[str, Any], where: Placement) -> None:
    """Raise CombinationError for values that other libraries cannot take: PyG and DGL train in one process, SAR has one process
    for each host, only DGL samples, and all have few of our settings."""
    framework = given.get("framework", HPCGNN)
    for name in OF_SAMPLING if framework != DGL else ():
        if name in given:
            raise CombinationError(f'{name} needs framework = "{DGL}", not {framework!r}', name, "framework")
    if framework == HPCGNN:
        return
    if framework == SAR and given.get("device", "cpu") != "cpu":
        raise CombinationError(f'framework = "{SAR}" trains on CPUs, not on {given["device"]}', "device", "framework")
    if framework == SAR and where.hosts and where.hosts != where.ranks:
        said = f'framework = "{SAR}" has one rank on each host: ranks must be {where.hosts}, not {where.ranks}'
        raise CombinationError(said, "ranks", "hosts")
    if framework != SAR and (where.ranks > 1 or where.hosts):
        said = f"framework = {framework!r} trains in one process: ranks must be 1, not {where.ranks}, without hosts and rate"
        raise CombinationError(said, "framework", "ranks", "rate", "hosts")
    for name, value in given.items():
        if name not in (*OF_STUDY, *OF_PEER) and _NOTHING_TO_PEER.get(name, NotImplemented) not in (None, value):
            raise CombinationError(f"framework = {framework!r} does not support {name} = {value!r}", name, "framework")


def plan_of(given: Mapping[str, Any]) -> str:
    """The name of the plan that the ranks of a configuration use; an empty text without a strategy."""
    used = {name: given[name] for name in ("model", "edge_types", "attention") if name in given}
    return plan_in_use(ModelConfig.of_used(used), given["strategy"]) if given.get("strategy") else ""


def run_config(given: Mapping[str, Any]) -> RunConfig:
    """The settings of ``hpcgnn train`` in a configuration. Raises CombinationError for those that this command would refuse."""
    settings = {name: value for name, value in given.items() if name not in OF_STUDY}
    try:
        config = RunConfig.from_settings(settings)
        config.check()
    except HpcgnnError as error:
        words = re.findall(r"[\w-]+", str(error))  # those that it names, as flags or by their names, in its order
        named = {word: name for name in settings for word in (name, as_flag(name))}
        raise CombinationError(str(error), *(named[word] for word in words if word in named)) from error
    return config


def recorded(given: Mapping[str, Any], where: Placement, config: RunConfig, kind: str = TRAIN) -> dict[str, Any]:
    """A record's configuration: every axis, including those at their defaults that readers look for; settings as in TOML. Only
    trainings have settings that are recorded even if they are not given."""
    used, place = config.settings(), {"ranks_per_node": where.ranks_per_node, "hosts": where.hosts, "rate": where.rate}
    axes = {name: axis.default for name, axis in OF_STUDY.items() if name in given or name not in _RECORDED_IF_GIVEN}
    names = {name: given.get(name, default) for name, default in axes.items()} | place
    if kind in (PREPARE, BENCH):
        return names | {name: value for name, value in given.items() if name not in names}
    names |= {name: used[name] for name in _ALWAYS_RECORDED if name in used}
    for name, value in given.items():
        if name not in names:
            told = value if value == SEED_WORD else used.get(name, value)
            names[name] = str(told) if name == "bits" else told
    return names


def as_flags(given: Mapping[str, Any]) -> list[str]:
    """The flags of ``hpcgnn train`` for the settings in a configuration."""
    found, known = list[str](), settings_by_name()
    for name, value in given.items():
        if name in OF_STUDY:
            continue
        setting = known[name].setting
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


# -- graphs: sources of `hpcgnn convert`, perhaps with options, or graph files that exist already -------------------------

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


class GraphOptions(msgspec.Struct, kw_only=True):
    """A table ``[graphs.NAME]``: a source of ``hpcgnn convert``, and options of this command."""

    source: str
    split: str = ""
    features: str = ""
    labels: str = ""
    undirected: bool = False
    self_loops: bool = False
    row_normalise: bool = False
    drop_duplicates: bool = False


def graph_source(graph: str | None, named: Mapping[str, GraphOptions], numbers: Mapping[str, int]) -> GraphSource:
    """The graph of a run, which the specification gives as a source, a file, or one of ``named``. numbers: the names that
    formulas may use, and their values. Raises CombinationError for any other graph."""
    if not graph:
        raise CombinationError("graph is missing: name a source of `hpcgnn convert`, or a graph.h5", "graph")
    options = msgspec.structs.asdict(named.get(graph) or GraphOptions(source=graph))
    given = {key: value for key, value in options.items() if value}
    formulas = " ".join(sorted(_names_in(" ".join(map(str, given.values())))))
    try:
        full = {key: filled(value, numbers) if isinstance(value, str) else value for key, value in given.items()}
    except HpcgnnError as error:
        raise CombinationError(f"graph {graph!r}: {error}", "graph") from error
    source = full.pop("source", "")
    path = Path(source) if source.endswith(".h5") else None
    said = ""
    if path is None and not _SOURCE.fullmatch(source):
        said = " is no source of `hpcgnn convert` (such as digits, npz:FILE, rmat:...), no graph.h5 and not in [graphs]"
    elif path is not None and full:
        said = " is a file that was converted already, so options have no effect: remove them"
    elif path is not None and not path.is_file():
        said = f": there is no file {path}"
    if said:
        raise CombinationError(f"graph {graph!r}{said}", "graph")
    if path is not None:
        name = _file_name(path.stem, [str(path.resolve()), _state(source)])
        return GraphSource(name, source, file=path, formulas=formulas)
    words = ((f"--{key.replace('_', '-')}", value) for key, value in full.items())
    flags = [word for flag, value in words for word in (flag, value) if word is not True]
    label = graph if graph in named else source
    return GraphSource(_file_name(label, [source, flags, _state(source)]), source, tuple(flags), formulas=formulas)


def _file_name(label: str, made_of: list[Any]) -> str:
    text = re.sub(r"[^\w.-]+", "_", label.rpartition("/")[2])[:60]
    return f"{text}-{short_hash(made_of)}"


def _state(source: str) -> list[int]:
    """The size and time of the file that a source names, if it names one: a file that was written again is another graph."""
    path = Path(source.partition(":")[2].partition("?")[0] if ":" in source else source)
    if DATA in source or not path.is_file():
        return []
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


# -- formulas in a graph's source, with which graphs grow with ranks: rmat:scale={13 + log2(ranks)} -----------------------

_BRACES = re.compile(r"\{([^{}]*)\}")
_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[float], float]] = {"log2": math.log2, "sqrt": math.sqrt}


def filled(text: str, values: Mapping[str, int]) -> str:
    """``text`` with the value of each formula in braces, which may use the names of ``values``. Raises HpcgnnError for a formula
    that is not valid, or whose value is no whole number."""
    return _BRACES.sub(lambda found: str(_whole(found[1], values)), text)


def _names_in(text: str) -> set[str]:
    """The names that formulas in braces use."""
    return set(re.findall(r"[A-Za-z_]\w*", " ".join(_BRACES.findall(text)))) - _FUNCTIONS.keys()


def _whole(formula: str, values: Mapping[str, int]) -> int:
    try:
        value = _value(ast.parse(formula.strip(), mode="eval").body, values)
    except (SyntaxError, ZeroDivisionError, ValueError, OverflowError) as error:
        said = f"{{{formula}}} is not a formula of numbers, + - * / //, log2() and sqrt() ({error})"
        raise HpcgnnError(said) from error
    if value != int(value):
        of = ", ".join(f"{name} = {values[name]}" for name in sorted(_names_in(f"{{{formula}}}") & values.keys()))
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
    if isinstance(node, ast.Call) and (name := getattr(node.func, "id", "")) in _FUNCTIONS and not node.keywords:
        (argument,) = node.args
        return _FUNCTIONS[name](_value(argument, values))
    raise ValueError("it contains something else")
