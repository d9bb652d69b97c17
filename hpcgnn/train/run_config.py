"""All settings of a run in one object, what of them goes with what, and their names on the command line and in TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcgnn import typed
from hpcgnn.bit_widths import MESSAGE_BITS
from hpcgnn.comm.device_names import HOST, check_device
from hpcgnn.comm.message_config import MessageConfig
from hpcgnn.errors import HpcgnnError, WrongTypeError, WrongValueError
from hpcgnn.nn.compute_config import COMPUTES, INTEGERS, Int8Config
from hpcgnn.nn.config import DECODERS, MODELS, DistributedConfig, ModelConfig, check_differences, check_kept_input
from hpcgnn.node_order.methods import METHODS
from hpcgnn.plan import STRATEGIES
from hpcgnn.policy.config import BITS_POLICIES, FIXED, SAFE_BITS, PolicyConfig
from hpcgnn.settings import (
    MOST_SEED,
    About,
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
from hpcgnn.train.config import TrainConfig
from hpcgnn.train.schedule import ScheduleConfig
from hpcgnn.train.task_config import LINK_METRICS, METRICS, LabelPropagationConfig, LinkConfig

NODE, LINK = "node", "link"


@dataclass(frozen=True)
class RunConfig(Checked):
    """``RunConfig(model=ModelConfig("gcn"), train=TrainConfig(epochs=50))``; or :meth:`from_settings`, by the names of flags.

    model: of a user's own class, what is known of it. links: of the task ``link``. train: has the schedule, the labels that are
    inputs, and policies. seed: of weights, dropout, rounding and labels. cache_input_aggregation: aggregate the features once.
    """

    task: str = setting(
        NODE,
        "Learn classes of nodes, or which nodes are linked: some links are held out, and the model learns those that it sees "
        "beside pairs that are none.",
        choices=(NODE, LINK),
    )
    model: ModelConfig | DistributedConfig = field(default_factory=ModelConfig)
    links: LinkConfig = field(default_factory=LinkConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    messages: MessageConfig = field(default_factory=MessageConfig)
    seed: int = setting(0, least=0, most=MOST_SEED)
    strategy: str = setting(
        "hybrid",
        "Aggregate cut edges before or after they travel, or whichever sends fewer rows.",
        choices=STRATEGIES,
    )
    node_order: str = setting(
        "none",
        "Order in which each rank keeps its nodes, for the sake of its caches; results are under original ids whatever it is. "
        "auto: each rank measures and takes the fastest, so that a run need not repeat bit for bit; with the others it does.",
        choices=METHODS,
    )
    cache_input_aggregation: bool = setting(
        False,
        "Aggregate the features once, with float32 messages, and keep the result: the first layer then sends nothing. Not to "
        "be used on one side of a comparison only.",
    )
    compute: str = setting(
        "auto",
        "Arithmetic of dense products. bf16: they take bfloat16 where that is faster (8 bits of mantissa) and add in float32; "
        "weights, optimiser and everything else stay float32, and so do checkpoints. auto: bf16 where every rank's CPU is "
        "faster at it, by a short measurement, else float32. bf16 is refused where it is slower; bf16-emulated takes it anyhow. "
        "tf32: 10 bits of mantissa, on GPUs of NVIDIA. int8: products and aggregations in 8-bit integers where that is "
        "faster, as in Tango; the layer before the softmax, weights and evaluations stay float32. int8-always: everywhere, "
        "however slow. int4 is refused: nothing here multiplies it.",
        choices=COMPUTES,
    )
    int8: Int8Config = field(default_factory=Int8Config)
    device: str = setting(
        "auto",
        "What a rank computes on: cpu; cuda, a GPU (AMD's too) of its own; or cuda:N. auto: GPUs where every rank has one of its "
        "own, else cpu.",
        metavar="auto|cpu|cuda[:N]",
    )
    ranks_per_gpu: int = setting(1, "So many ranks of a node may share a GPU.", least=1)
    timeout: float = setting(1800.0, "Seconds to wait for another rank before giving up.", above=0, is_finite=False)
    replay: Path | None = setting(
        None,
        "decisions.jsonl of another run with these settings: see its times in place of the clock, so that policies decide as "
        "they did and the run repeats bit for bit; none to go on with the clock where it ends.",
        metavar="LOG",
    )

    @property
    def policy(self) -> PolicyConfig:
        """Of ``train``."""
        return self.train.policy

    def check(self) -> None:
        """Raise HpcgnnError, a sentence, for values that cannot be, that do not go together, or that nothing uses.

        What depends on a graph's data is checked where that is known.
        """
        super().check()
        check_device(self.device)
        for part in (self.model, self.links, self.train, self.int8):
            part.check()
        _check_delta(self)
        self.messages.check()
        _check_task(self)
        if self.cache_input_aggregation:
            check_kept_input(self.model)
        values, known = self._values(), settings_by_name()
        for name, sentence in self.unused().items():
            if name in values and values[name] != known[name].setting.default:
                raise WrongValueError(sentence)

    # -- by the names of flags ----------------------------------------------------------------------------------------

    @classmethod
    def from_settings(cls, given: Mapping[str, Any], lenient: Collection[str] = ()) -> RunConfig:
        """Of settings by the names that they have in TOML files and on the command line; others have their defaults.

        Args:
            lenient: those that may be there although nothing uses them, as all are in the files of older runs.

        Raises:
            HpcgnnError: for a name that there is not, and for a setting that is given and that nothing uses.
        """
        if not isinstance(given, Mapping):
            raise WrongTypeError(f"settings must be a mapping of names to values, not {given!r}")
        unknown = sorted(map(str, given.keys() - settings_by_name().keys()))
        if unknown:
            raise WrongValueError(f"there is no setting {', '.join(unknown)}")
        unused = _made(cls, given).unused()
        for name in given:
            if name in unused and name not in lenient:
                raise WrongValueError(unused[name])
        return _made(cls, {name: value for name, value in given.items() if name not in unused})

    def settings(self) -> dict[str, Any]:
        """Those that this run uses, by the same names, as TOML has them; but for those that one run alone is to have."""
        unused, values = self.unused(), self._values()
        return {
            name: as_told(each.setting, values[name])
            for name, each in settings_by_name().items()
            if name in values and name not in unused and each.setting.about.is_kept
        }

    def _values(self) -> dict[str, Any]:
        bits = str(self.messages.bits) if self.policy.bits == FIXED else self.policy.bits
        decoder = DECODERS[1] if self.model.decoder == "none" else self.model.decoder
        found: dict[str, Any] = {"bits": bits, "decoder": decoder}
        for part in _parts(self).values():
            for owner in (part, *getattr(part, "own", ())):
                for each in settings_of(type(owner)):
                    if each.name is not None:
                        found[each.name] = getattr(owner, each.attribute)
        return found

    def unused(self) -> dict[str, str]:
        """Settings that nothing in this run uses, by name, each with a sentence that says who does."""
        found: dict[str, str] = {}
        for part in _parts(self).values():
            if isinstance(part, Composed):
                used, names = part.flat(), {each.attribute: each.name for each in _of_sections(type(part))}
                for attribute, users in part.users().items():
                    if attribute not in used:
                        name = names[attribute]
                        found[name] = not_used(as_flag(name), part.chosen(), users)
            for owner in (part, *getattr(part, "own", ())):
                for each in settings_of(type(owner)):
                    if each.name is not None and not each.about.used_if(owner):
                        found[each.name] = f"{as_flag(each.name)} is not used here: {each.about.users}"
        return found | _unused_across(self)


# -- what goes with what -----------------------------------------------------------------------------------------------


def _check_delta(run: RunConfig) -> None:
    """Differences to what the receiver has need rows that are like those before."""
    if run.messages.message_coding != "delta":
        return
    bits, staleness = run.policy.bits_policy, run.policy.staleness_policy
    check_differences(run.messages.message_coding, run.model.drops_rows)
    reasons = {
        "needs --label-redraw once: labels drawn anew would be in each difference": run.train.labels.rate > 0
        and run.train.labels.redraw == "epoch",
        "is not for --task link: gradients of negatives drawn anew are noise to it": run.task == LINK,
        f"needs --staleness off, and --bits other than {_and(_against_delta())}, which go by rows: a difference is to what the "
        "receiver has": not (bits.goes_with_delta and staleness.goes_with_delta),
    }
    for reason, applies in reasons.items():
        if applies:
            raise WrongValueError(f"--message-coding delta {reason}")


def _against_delta() -> list[str]:
    return [name for name in BITS_POLICIES if not BITS_POLICIES[name].goes_with_delta]


def _check_task(run: RunConfig) -> None:
    """A task needs a model that was made for it, and has metrics of its own."""
    metric, is_link = run.train.metric, run.task == LINK
    metrics, learned = (LINK_METRICS, "links") if is_link else (METRICS, "classes of nodes")
    if metric not in ("auto", *metrics):
        raise WrongValueError(f"metric must be auto or one of {', '.join(metrics)} for {learned}, not {metric!r}")
    if is_link and run.model.label_inputs:
        raise WrongValueError("labels cannot be propagated (--label-propagation) where links are learned")
    if is_link and run.model.decoder == "none":
        raise WrongValueError("links need a native model with a decoder: ModelConfig(decoder='dot') or 'mlp'")
    if not is_link and run.model.decoder != "none":
        raise WrongValueError("a model with a decoder learns links: give the trainer what split_links returns")
    if run.model.label_inputs != (run.train.labels.rate > 0):
        raise WrongValueError("ModelConfig.label_inputs must be set where labels are propagated, and nowhere else")


def _unused_across(run: RunConfig) -> dict[str, str]:
    """Those whose use is up to another part."""
    found: dict[str, str] = {}
    if run.task != LINK:
        of_links = ("decoder", *(str(each.name) for each in settings_of(LinkConfig)))
        found |= {name: f"{as_flag(name)} is for --task link: --task node does not use it" for name in of_links}
    model = run.model
    if not (isinstance(model, ModelConfig) and MODELS[model.model].has_dense_parameters):
        users = [name for name in MODELS if MODELS[name].has_dense_parameters]
        found["dense_weight_decay"] = not_used("--dense-weight-decay", model.model, users)
    if isinstance(model, ModelConfig) and not MODELS[model.model].uses_strategy(model):
        users = [name for name in MODELS if MODELS[name].uses_strategy(ModelConfig(name))]
        found["strategy"] = not_used("--strategy", f"{model.model}, whose neighbours' rows travel as they are", users)
    if run.compute not in INTEGERS:
        names = [str(each.name) for each in settings_of(Int8Config)]
        found |= {name: f"{as_flag(name)} is for --compute int8: {run.compute} does not use it" for name in names}
    if run.device == HOST:
        found |= {
            name: f"{as_flag(name)} is for GPUs: --device cpu does not use it" for name in ("gpu_mpi", "ranks_per_gpu")
        }
    if run.policy.is_off:
        found["replay"] = "--replay is not used where nothing is decided: policies of --bits and --staleness use it"
    return found


# -- names -------------------------------------------------------------------------------------------------------------

_OF_BITS = Setting(
    "bits",
    "bits",
    str,
    "32",
    About(
        lambda: (
            "Bits of a value that travels in training: 32 is float32, 16 bfloat16; below that, values are rounded at random to "
            "steps between their row's smallest and largest (delta: to the nearest). Or who decides for each row. "
            f"{BITS_POLICIES.summaries(but=FIXED)}."
        ),
        choices=lambda: (*map(str, reversed(MESSAGE_BITS)), *(name for name in BITS_POLICIES if name != FIXED)),
    ),
)
_OF_DECODER = Setting(
    "decoder",
    "decoder",
    str,
    DECODERS[1],
    About(
        "score of a pair, from embeddings as wide as --hidden: their product, or two dense layers on the element-wise one.",
        choices=DECODERS[1:],
    ),
)


@dataclass(frozen=True)
class Named:
    """A setting by its name. part: of which part of a run. users: who has it, where not all have."""

    setting: Setting
    part: str
    users: tuple[str, ...] = ()


def settings_by_name() -> dict[str, Named]:
    """All settings that flags and TOML files have, also those of models and policies that were registered since."""
    found = {"task": Named(settings_of(RunConfig)[0], "run"), "decoder": Named(_OF_DECODER, "run", (LINK,))}
    found |= _named(LinkConfig, "links", (LINK,))
    found |= _composed(ModelConfig, "model")
    for part, kind in (("labels", LabelPropagationConfig), ("train", TrainConfig), ("schedule", ScheduleConfig)):
        found |= _named(kind, part)
    found |= _named(RunConfig, "run") | {"bits": Named(_OF_BITS, "run")} | _named(MessageConfig, "messages")
    found |= _named(Int8Config, "int8")
    return found | _composed(PolicyConfig, "policy")


def _named(kind: type, part: str, users: tuple[str, ...] = ()) -> dict[str, Named]:
    return {each.name: Named(each, part, users) for each in settings_of(kind) if each.name is not None}


def _composed(kind: type[Composed], part: str) -> dict[str, Named]:
    users = kind.users()
    own = {each.name: Named(each, part, tuple(users[each.attribute])) for each in _of_sections(kind)}
    return _named(kind, part) | own


def _of_sections(kind: type[Composed]) -> Iterable[Setting]:
    return [each for section in kind.all_sections() for each in settings_of(section)]


def _parts(run: RunConfig) -> dict[str, Any]:
    train = run.train
    return {
        "run": run,
        "links": run.links,
        "model": run.model,
        "train": train,
        "schedule": train.schedule,
        "labels": train.labels,
        "messages": run.messages,
        "int8": run.int8,
        "policy": train.policy,
    }


def _made(kind: type[RunConfig], given: Mapping[str, Any]) -> RunConfig:
    """A run of settings by name, without those that the models and policies among them do not use."""
    of_part: dict[str, dict[str, Any]] = {}
    known = settings_by_name()
    for name, value in given.items():
        typed = as_typed(known[name].setting, value)
        check_value(known[name].setting, typed)
        of_part.setdefault(known[name].part, {})[known[name].setting.attribute] = typed
    of_run = of_part.get("run", {})
    bits, decoder = of_run.pop("bits", "32"), of_run.pop("decoder", _OF_DECODER.default)
    is_number = bits in map(str, MESSAGE_BITS)
    labels = LabelPropagationConfig(**of_part.get("labels", {}))
    is_link = of_run.get("task") == LINK
    model = of_part.get("model", {}) | {"label_inputs": labels.rate > 0, "decoder": decoder if is_link else "none"}
    policy = of_part.get("policy", {}) | {"bits": FIXED if is_number else bits}
    schedule = ScheduleConfig(**of_part.get("schedule", {}))
    how: dict[str, Any] = {"schedule": schedule, "labels": labels, "policy": PolicyConfig.of_used(policy)}
    return kind(
        model=ModelConfig.of_used(model),
        links=LinkConfig(**of_part.get("links", {})),
        train=TrainConfig(**of_part.get("train", {}), **how),
        int8=Int8Config(**of_part.get("int8", {})),
        messages=MessageConfig(**of_part.get("messages", {}), bits=int(bits) if is_number else SAFE_BITS),
        **of_run,
    )


def read_file(path: Path) -> dict[str, Any]:
    """The content of a TOML file of settings, not checked yet. Raises HpcgnnError where it cannot be read."""
    text = typed.text_of(path, "surrogateescape")  # names of files may be any bytes
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not an error of usage, which rank 0 tells for all: the file may be missing on one node only.
        raise HpcgnnError(f"cannot read {path}: {error}") from error


def check_file(values: Mapping[str, Any], where: str) -> None:
    """Raise HpcgnnError, which begins with ``where``, for a setting by name that may not be what a file says that it is."""
    known = settings_by_name()
    for name, value in values.items():
        if name in known:
            check_value(known[name].setting, as_typed(known[name].setting, value), where)


def as_typed(setting: Setting, value: Any) -> Any:
    """A value as its field has it, from one as TOML or a program has it."""
    kind, _ = kind_of(setting.type)
    if kind is bool and value in ("on", "off"):
        return value == "on"
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(setting.default, tuple) and isinstance(value, list):
        return tuple(value)
    return next((choice for choice in setting.about.chosen_from() if str(choice) == str(value)), value)


def as_told(setting: Setting, value: Any) -> Any:
    """The inverse of :func:`as_typed`."""
    if isinstance(value, bool) and setting.default is True:
        return "on" if value else "off"
    return list(value) if isinstance(value, tuple) else value


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
