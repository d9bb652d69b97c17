"""All settings of a run in one object, the combinations that are allowed, and their names as flags and as keys of TOML files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcgnn.base import typed
from hpcgnn.base.arguments import HOST_DEVICE, check_device_name
from hpcgnn.base.errors import HpcgnnError, WrongTypeError, WrongValueError
from hpcgnn.base.settings import (
    MOST_SEED,
    Checked,
    Composed,
    Setting,
    as_flag,
    check_value,
    kind_of,
    not_used,
    setting,
    settings_of,
)
from hpcgnn.base.typed import MESSAGE_BITS
from hpcgnn.exchange.message_config import MessageConfig
from hpcgnn.graph import DISK, METHODS, PLACES
from hpcgnn.nn.config import (
    ACTIVATION_MODES,
    AUTO,
    COMPUTES,
    DECODERS,
    INTEGERS,
    KEEP,
    MODELS,
    DistributedConfig,
    Int8Config,
    ModelConfig,
    check_features_on_disk,
    check_kept,
    check_kept_input,
)
from hpcgnn.plan import STRATEGIES
from hpcgnn.policy.config import BITS_POLICIES, FALLBACK_BITS, FIXED, OFF, UNIFORM, PolicyConfig
from hpcgnn.train.config import (
    LINK_METRICS,
    METRICS,
    LabelPropagationConfig,
    LinkConfig,
    LossConfig,
    ScheduleConfig,
    TrainConfig,
)

CONFIG, RECORDS, DECISIONS, LINK_COSTS = "config.toml", "metrics.jsonl", "decisions.jsonl", "link_costs.json"
SUMMARY, RANKS = "summary.json", "ranks.json"
NODE, LINK = "node", "link"
# The defaults of models that do not learn some graphs with those of the others: a linear one needs long steps.
_USUAL = {name: {"dropout": 0.3} for name in ("dagnn", "gcnii", "transformer")}
_USUAL |= {"sgc": {"lr": 0.2, "weight_decay": 1e-4}, "gat": {"weight_decay": 5e-4}}


@dataclass(frozen=True)
class RunConfig(Checked):
    """All settings of a run, in parts. It holds settings only: a program hands the parts to the functions that use them.

    Example:
        ``RunConfig(model=ModelConfig("gcn"), train=TrainConfig(epochs=50))``, or by the names of the command line,
        ``RunConfig.from_settings({"model": "gcn", "epochs": 50, "bits": "adaqp"})``.

    Args:
        model: settings of the model (``hpcgnn.ModelConfig``), or the known facts about a distributed PyG model.
        links: the split of links and their negatives (``hpcgnn.LinkConfig``), for the task ``link``.
        train: settings of training (``hpcgnn.TrainConfig``), including the schedule, label propagation and the policies.
        messages: bit-widths and coding of boundary messages (``hpcgnn.exchange.MessageConfig``).
        int8: settings of ``compute="int8"``.
        activations: how a training step keeps what its gradients need (``keep``, ``recompute`` or ``8bit``).

    Raises:
        HpcgnnError: by ``check``, for values that are not allowed, that contradict each other, or that nothing in the run
            uses.
    """

    task: str = setting(
        NODE,
        "Task: classification or regression of nodes, as their labels are, or link prediction, in which some links are held out "
        "and the model learns to tell the others from node pairs without a link.",
        choices=(NODE, LINK),
    )
    target: str = setting(
        "",
        "Type of nodes that are learned, in a graph whose nodes have types; not needed if only one type has labels. With "
        "--task link: the types of edges that are links, by name or number, separated by commas, if not all are; edges "
        "of other types only carry messages.",
        metavar="TYPE",
    )
    model: ModelConfig | DistributedConfig = field(default_factory=ModelConfig)
    links: LinkConfig = field(default_factory=LinkConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    messages: MessageConfig = field(default_factory=MessageConfig)
    seed: int = setting(
        0,
        "Seed of the initial weights, dropout, stochastic rounding, propagated labels and negative sampling.",
        least=0,
        most=MOST_SEED,
    )
    strategy: str = setting(
        "hybrid",
        "Place where edges between parts are aggregated. pre: the sender adds source rows up for each destination node; post: "
        "the sender sends source rows and the receiver adds them up; hybrid: for each edge one of both, such that the fewest "
        "rows are sent (minimum vertex cover).",
        choices=STRATEGIES,
    )
    node_order: str = setting(
        "none",
        "Order in which each rank stores its nodes, which affects the use of caches; predictions are in the order of original "
        "ids in any case. none keeps the order of PARTS; degree, rcm (reverse Cuthill-McKee) and hubs reorder the nodes; auto "
        "takes the order that is fastest in a measurement on each rank, so a repeated run may differ in the last bits.",
        choices=METHODS,
    )
    features: str = setting(
        PLACES[0],
        "Place of the features while training. memory; disk: they stay in PARTS, and each rank reads its own in blocks of rows, "
        "as often as the first layer uses them, which takes longer and leaves their memory free. Only for dense features and "
        "CPUs.",
        choices=PLACES,
    )
    cache_input_aggregation: Literal[False, True, "auto"] = setting(
        False,
        "Aggregate the input features once, with float32 messages, and keep the result, a matrix of their size; the first layer "
        "then sends nothing. on, or no value: refused if the input changes from epoch to epoch; auto: on if the model begins "
        "with a sum of features that stay the same and are dense and in memory, else off. Do not compare a run that uses it "
        "with one that does not.",
        choices=(False, True, AUTO),
    )
    compute: str = setting(
        "auto",
        "Arithmetic of dense products and aggregations; weights, optimiser state and checkpoints are float32 in any case. "
        "float32; bf16: operands of products, and with AVX-512 the rows that are aggregated where that is faster, in bfloat16 (8 "
        "bits of mantissa), and sums in float32, refused if products are slower than in float32; auto: bf16 if a short "
        "measurement shows that its products are faster on every rank, else float32; bf16-emulated: bfloat16 even if slower; "
        "tf32: 10 bits of mantissa, on NVIDIA GPUs; int8: products and aggregations in 8-bit integers where that is faster "
        "(Tango), but not in the layer before the softmax or in evaluations; int8-always: 8-bit integers even where they are "
        "slower; int4: refused, because there is no arithmetic for it.",
        choices=COMPUTES,
    )
    int8: Int8Config = field(default_factory=Int8Config)
    activations: str = setting(
        KEEP,
        "How a training step keeps what its gradients need. keep: in memory; recompute: one row of a node and layer, from which "
        "local arithmetic is repeated, with the same result bit for bit; 8bit: matrices as 8-bit integers with stochastic "
        "rounding, which changes gradients slightly; auto: the first of these that --memory-limit allows. A resumed run may "
        "change it.",
        choices=ACTIVATION_MODES,
    )
    device: str = setting(
        "auto",
        "Device of each rank. cpu; cuda: a GPU for each rank (AMD GPUs too); cuda:N: GPU number N; auto: cuda if there is a GPU "
        "for each rank, else cpu.",
        metavar="auto|cpu|cuda[:N]",
    )
    ranks_per_gpu: int = setting(1, "Largest number of ranks of a node that share a GPU.", least=1)
    timeout: float = setting(
        1800.0, "Seconds that a rank waits for another rank before the job is aborted.", above=0, is_finite=False
    )
    memory_limit: str = setting(
        "none",
        "Memory that the ranks of one machine may take together, such as 20GiB or 500MB. A run that would take more is refused "
        "before it reads the graph, and large blocks return to the system when they are freed, which takes time.",
        metavar="SIZE",
    )
    replay: Path | None = setting(
        None,
        "decisions.jsonl of an earlier run with the same settings. Policies then see the measured times in this file instead of "
        "new ones, so they decide as before and the run repeats bit for bit. After the end of the file, resume with --replay "
        "none.",
        metavar="LOG",
    )

    @property
    def policy(self) -> PolicyConfig:
        """The policies of ``train``."""
        return self.train.policy

    def check(self) -> None:
        """Check the settings; conditions on a graph's data are checked when the graph is known. Not collective.

        Raises:
            HpcgnnError: for values that are not allowed, that contradict each other, or that nothing in this run uses.
        """
        super().check()
        check_device_name(self.device)
        bytes_of(self.memory_limit)
        _check_delta(self)
        is_stale, chooses_bits = self.policy.staleness != OFF, self.policy.bits != FIXED
        way = self.activations, self.compute, self.int8
        check_kept(self.model, *way, self.messages, is_stale=is_stale, chooses_bits=chooses_bits)
        _check_task(self)
        if self.cache_input_aggregation is True:
            check_kept_input(self.model)
        if self.features == DISK:
            check_features_on_disk(self.model, self.compute)
            if self.node_order != METHODS[0]:
                raise WrongValueError("--features disk reads features in the order of PARTS: leave out --node-order")
        values, known = self._values(), settings_by_name()
        for name, sentence in self.unused().items():
            if name in values and values[name] != known[name].setting.default:
                raise WrongValueError(sentence)

    # -- by the names of flags ----------------------------------------------------------------------------------------

    @classmethod
    def from_settings(cls, given: Mapping[str, Any], lenient: Collection[str] = ()) -> RunConfig:
        """Make a run's settings from the names that they have on the command line and in ``config.toml``. Not collective.

        Args:
            given: values by name, such as ``{"model": "gat", "eval_every": 5}``; all others have the model's defaults.
            lenient: names that are accepted even if nothing uses them: ``config.toml`` of older runs holds all settings.

        Returns:
            The settings, in parts.

        Raises:
            HpcgnnError: for an unknown name, a wrong value, and a given setting that nothing in this run uses.
        """
        if not isinstance(given, Mapping):
            raise WrongTypeError(f"settings must be a mapping of names to values, not {given!r}")
        if unknown := sorted(map(str, given.keys() - settings_by_name().keys())):
            raise WrongValueError(f"there is no setting {', '.join(unknown)}: `hpcgnn train --help` lists all settings")
        given = {**_USUAL.get(str(given.get("model")), {}), **given}
        unused = _made(given).unused()
        if refused := [name for name in given if name in unused and name not in lenient]:
            raise WrongValueError(unused[refused[0]])
        return _made({name: value for name, value in given.items() if name not in unused})

    def settings(self) -> dict[str, Any]:
        """The settings that this run uses, by name, with values as TOML has them. Not collective.

        Settings that a repeated run does not take over, such as ``refit_links``, are left out.
        """
        unused, values = self.unused(), self._values()
        return {
            name: as_written(each.setting, values[name])
            for name, each in settings_by_name().items()
            if name in values and name not in unused and each.setting.is_kept
        }

    def _owners(self) -> Iterator[tuple[Any, Setting]]:
        """Each setting that has a name, and the dataclass that has its value."""
        train = self.train
        of_train = train, train.schedule, train.labels, train.loss
        for part in (self, self.links, self.model, *of_train, self.messages, self.int8, train.policy):
            for owner in (part, *getattr(part, "own", ())):
                yield from ((owner, each) for each in settings_of(type(owner)) if each.name)  # type: ignore[arg-type]

    def _values(self) -> dict[str, Any]:
        bits = str(self.messages.bits) if self.policy.bits == FIXED else self.policy.bits
        bits += "" if self.policy.epoch_bytes is None else f":{self.policy.epoch_bytes}"
        decoder = DECODERS[1] if self.model.decoder == "none" else self.model.decoder
        values = {each.name: getattr(owner, each.attribute) for owner, each in self._owners()}
        return {"bits": bits, "decoder": decoder} | values

    def unused(self) -> dict[str, str]:
        """The settings that nothing in this run uses, by name, each with a sentence that names the choices that use it."""
        found: dict[str, str] = {}
        for part in (self.model, self.policy):
            if isinstance(part, Composed):
                used, names = part.flat(), {each.attribute: each.name for each in _of_sections(type(part))}
                for attribute, users in part.users().items():
                    if attribute not in used and (name := names[attribute]):
                        found[name] = not_used(as_flag(name), part.chosen(), users)
        for owner, each in self._owners():
            if not each.used_if(owner):
                found[each.name] = f"{as_flag(each.name)} is not used here: {each.users}"
        return found | _unused_across(self)


# -- combinations of settings ------------------------------------------------------------------------------------------


def _check_delta(run: RunConfig) -> None:
    """Delta coding needs rows that are similar to those of the last epoch."""
    if run.messages.message_coding != "delta":
        return
    bits, staleness = run.policy.bits_policy, run.policy.staleness_policy
    reason = ""
    if run.train.labels.rate > 0 and run.train.labels.redraw == "epoch":
        reason = "needs --label-redraw once, because labels that are drawn in each epoch change every row"
    elif run.task == LINK:
        reason = (
            "cannot be used with --task link, because negative pairs that are drawn in each epoch change every gradient"
        )
    elif not (bits.allows_delta and staleness.allows_delta):
        *others, last = (name for name in BITS_POLICIES if not BITS_POLICIES[name].allows_delta)
        by_rows = f"{', '.join(others)} and {last}" if others else last
        reason = f"needs --staleness off and --bits other than {by_rows}, which decide by rows and not by differences"
    if reason:
        raise WrongValueError(f"--message-coding delta {reason}")


_UNITS = {"": 1, "B": 1, **{f"{name}{unit}": base**power for power, name in enumerate("KMGT", 1)
                            for unit, base in (("B", 1000), ("iB", 1024))}}  # fmt: skip


def bytes_of(size: str) -> int | None:
    """The bytes of a size such as ``20GiB``, ``1.5 GB`` or ``500000``; None for ``none``. Raises WrongValueError otherwise."""
    if size == "none":
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", size)
    if found is not None and found[2] in _UNITS:
        return int(float(found[1]) * _UNITS[found[2]])
    raise WrongValueError(
        f"memory_limit must be a number of bytes with a unit, such as 20GiB or 500MB, or none, not {size!r}"
    )


def _check_task(run: RunConfig) -> None:
    """Raise WrongValueError if the model or the metric does not fit the task."""
    metric, is_link = run.train.metric, run.task == LINK
    metrics = LINK_METRICS if is_link else METRICS
    if metric not in ("auto", *metrics):
        names = ", ".join(metrics)
        raise WrongValueError(f"metric must be auto or one of {names} with --task {run.task}, not {metric!r}")
    if is_link and run.model.label_inputs:
        raise WrongValueError("--label-propagation cannot be used with --task link: leave it out")
    if is_link and run.model.decoder == "none":
        raise WrongValueError(
            f"link prediction needs a native model with a decoder: set decoder in ModelConfig to one of {', '.join(DECODERS[1:])}"
        )
    if not is_link and run.model.decoder != "none":
        raise WrongValueError(
            "a model with a decoder predicts links: give the trainer the LinkSplit that split_links returns"
        )
    if run.model.label_inputs != (run.train.labels.rate > 0):
        raise WrongValueError(
            "ModelConfig.label_inputs must be True if labels are propagated (rate above 0), and False otherwise"
        )


def _unused_across(run: RunConfig) -> dict[str, str]:
    """The settings whose use depends on another part of the run, with a sentence each."""
    found: dict[str, str] = {}
    if run.task != LINK:
        of_links = ("decoder", *(each.name for each in settings_of(LinkConfig) if each.name))
        found |= {name: f"{as_flag(name)} is not used by --task node: --task link uses it" for name in of_links}
    else:
        of_nodes = (each.name for each in settings_of(LossConfig))
        found |= {name: f"{as_flag(name)} is not used by --task link: --task node uses it" for name in of_nodes}
    model = run.model
    if not (isinstance(model, ModelConfig) and MODELS[model.model].has_dense_parameters):
        users = [name for name in MODELS if MODELS[name].has_dense_parameters]
        found["dense_weight_decay"] = not_used("--dense-weight-decay", model.model, users)
    if isinstance(model, ModelConfig) and not MODELS[model.model].uses_strategy(model):
        users = [name for name in MODELS if MODELS[name].uses_strategy(ModelConfig(name))]
        chosen = f"{model.model}, which sends the rows of neighbours as they are"
        found["strategy"] = not_used("--strategy", chosen, users)
    if run.compute not in INTEGERS:
        of_int8 = f"is not used by --compute {run.compute}: --compute int8 uses it"
        found |= {each.name: f"{as_flag(each.name)} {of_int8}" for each in settings_of(Int8Config)}
    if run.device == HOST_DEVICE:
        for name in ("gpu_mpi", "ranks_per_gpu"):
            found[name] = f"{as_flag(name)} is not used by --device cpu: runs on GPUs use it"
    if run.policy.is_off:
        found["replay"] = (
            "--replay is not used by a run without policies: --bits and --staleness with a policy's name use it"
        )
    return found


# -- names -------------------------------------------------------------------------------------------------------------

_OF_BITS = Setting(
    name="bits",
    attribute="bits",
    type=str,
    default="32",
    help=lambda: (
        "Bit-width of each value in messages of training, or the name of a policy that chooses it. 32: float32; 16: "
        "bfloat16; 8 and less: integers between the smallest and the largest value of a row, rounded stochastically (with "
        f"--message-coding delta, to the nearest). Policies: {BITS_POLICIES.summaries(but=FIXED)}."
    ),
    choices=lambda: (
        *map(str, reversed(MESSAGE_BITS)),
        *(name for name in BITS_POLICIES if name != FIXED),
        f"{UNIFORM}:BYTES",
    ),
)
_OF_DECODER = Setting(
    name="decoder",
    attribute="decoder",
    type=str,
    default=DECODERS[1],
    help="Score of a pair of nodes from their embeddings, which have --hidden columns. dot: their product; mlp: two dense layers "
    "on their element-wise product. The others, for graphs with types of edges, learn a vector r for each type. distmult: sum of "
    "the products of both embeddings and r; transe: negative 1-norm of the source plus r minus the target; complex: distmult of "
    "complex numbers, with the conjugate target; rotate: negative 2-norm of the source, whose complex numbers are turned by the "
    "angles r, minus the target. A complex row has its real parts first.",
    choices=DECODERS[1:],
)


@dataclass(frozen=True)
class RunSetting:
    """A setting by its name, the part of a run that has it, and the choices that have it; empty if all have it."""

    setting: Setting
    part: str
    users: tuple[str, ...] = ()


_PARTS: dict[str, type] = {
    "links": LinkConfig,
    "model": ModelConfig,
    "labels": LabelPropagationConfig,
    "loss": LossConfig,
    "train": TrainConfig,
    "schedule": ScheduleConfig,
    "run": RunConfig,
    "messages": MessageConfig,
    "int8": Int8Config,
    "policy": PolicyConfig,
}


def settings_by_name() -> dict[str, RunSetting]:
    """All settings of flags and TOML files, including those of models and policies that other programs registered."""
    found = {"task": RunSetting(settings_of(RunConfig)[0], "run"), "decoder": RunSetting(_OF_DECODER, "run", (LINK,))}
    for part, kind in _PARTS.items():
        users = kind.users() if issubclass(kind, Composed) else {}
        own = _of_sections(kind) if issubclass(kind, Composed) else []
        for each in (*settings_of(kind), *own):
            if each.name:
                has = users.get(each.attribute, [LINK] if kind is LinkConfig else [])
                found[each.name] = RunSetting(each, part, tuple(has))
        if kind is RunConfig:
            found["bits"] = RunSetting(_OF_BITS, part)
    return found


def _of_sections(kind: type[Composed]) -> list[Setting]:
    return [each for section in kind.all_sections() for each in settings_of(section)]


def _made(given: Mapping[str, Any]) -> RunConfig:
    """A run from settings by name, without those that the chosen model and policies do not use."""
    of_part: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
    known = settings_by_name()
    for name, value in given.items():
        typed = as_typed(known[name].setting, value)
        check_value(known[name].setting, typed)
        of_part[known[name].part][known[name].setting.attribute] = typed
    bits, decoder = of_part["run"].pop("bits", "32"), of_part["run"].pop("decoder", _OF_DECODER.default)
    is_number, is_link = bits in map(str, MESSAGE_BITS), of_part["run"].get("task") == LINK
    labels = LabelPropagationConfig(**of_part["labels"])
    of_part["model"] |= {"label_inputs": labels.rate > 0, "decoder": decoder if is_link else "none"}
    of_part["policy"] |= {"bits": FIXED} if is_number else _policy_of_bits(bits)
    of_part["messages"]["bits"] = int(bits) if is_number else FALLBACK_BITS
    schedule, policy = ScheduleConfig(**of_part["schedule"]), PolicyConfig.of_used(of_part["policy"])
    return RunConfig(
        model=ModelConfig.of_used(of_part["model"]),
        links=LinkConfig(**of_part["links"], target=of_part["run"].get("target", "") if is_link else ""),
        train=TrainConfig(
            **of_part["train"], schedule=schedule, labels=labels, loss=LossConfig(**of_part["loss"]), policy=policy
        ),
        int8=Int8Config(**of_part["int8"]),
        messages=MessageConfig(**of_part["messages"]),
        **of_part["run"],
    )


def _policy_of_bits(bits: str) -> dict[str, Any]:
    """The policy in ``bits``, and its number of bytes if there is one, which may be a number with a point."""
    name, colon, told = bits.partition(":")
    try:
        return {"bits": name} | ({"epoch_bytes": round(float(told))} if colon else {})
    except (ValueError, OverflowError):
        raise WrongValueError(
            f"--bits {name}:BYTES needs a number of bytes, such as {name}:2.5e6, not {told}"
        ) from None


def as_typed(setting: Setting, value: Any) -> Any:
    """The value of a setting's field from a value as TOML or a program has it."""
    kind, _ = kind_of(setting.type)
    if kind is bool and value in ("on", "off"):
        return value == "on"
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(setting.default, tuple) and isinstance(value, list):
        return tuple(value)
    choices = setting.chosen_from()
    return next((choice for choice in choices if str(value) in (str(choice), in_words(choice))), value)


def in_words(choice: Any) -> str:
    """A choice as the command line has it."""
    return ("on" if choice else "off") if isinstance(choice, bool) else str(choice)


def as_written(setting: Setting, value: Any) -> Any:
    """The inverse of :func:`as_typed`."""
    if isinstance(value, bool) and setting.default is True:
        return "on" if value else "off"
    return list(value) if isinstance(value, tuple) else value


def read_file(path: Path) -> dict[str, Any]:
    """The unchecked content of a TOML file of settings. Raises HpcgnnError if the file cannot be read."""
    text = typed.text_of(path, "surrogateescape")  # names of files may be any bytes
    try:
        values = tomllib.loads(text)
        str(values)  # Python refuses to print a whole number of thousands of digits
        return values
    except (ValueError, RecursionError) as error:
        # Not a usage error, which rank 0 alone reports: the file may be missing or damaged on one node only.
        raise HpcgnnError(f"cannot read {path}: {error}") from error


def check_file(values: Mapping[str, Any], where: str) -> None:
    """Raise HpcgnnError for a value that its setting does not allow. ``where`` begins the sentence."""
    known = settings_by_name()
    for name, value in values.items():
        if name in known:
            check_value(known[name].setting, as_typed(known[name].setting, value), where)
