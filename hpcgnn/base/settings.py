"""Settings, each defined once: a field of a dataclass has its default, the values that are allowed, and its help.

Checks, options of commands and their help, keys of TOML files and presets are derived from these fields.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import numbers
import operator
import threading
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from hpcgnn.base.arguments import check_choice
from hpcgnn.base.errors import HpcgnnError, WrongTypeError, WrongValueError, quoted
from hpcgnn.base.typed import MOST_FLOAT, MOST_INT, why_invalid

T = TypeVar("T", bound=Any)  # a class, or a function


@dataclass(frozen=True)
class LazyEntry:
    """The description of a class or function of this package, which needs no import of its module, and so not of torch.

    module: the module that registers it. summary: a phrase for a command's help. settings: the dataclasses of its own settings.
    """

    module: str
    summary: str = ""
    settings: tuple[type, ...] = ()


class Registry(Generic[T]):
    """The classes of a ``kind`` by name: the ``known`` ones of this package, and those that other programs register.

    A command lists names, summaries and settings of all classes without importing the modules of any.
    """

    def __init__(self, kind: str, known: Mapping[str, LazyEntry]) -> None:
        self._kind, self._known = kind, known
        self._found: dict[str, T] = {}
        self._importing = threading.RLock()  # ranks may be threads

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a class under ``name``. A known class gets its summary and settings from its
        :class:`LazyEntry`; other classes have them as class attributes."""

        def add(found: T) -> T:
            known = self._known.get(name)
            place = (found.__module__, found.__qualname__)
            before = self._found.get(name)
            if before is None and known is not None and found.__module__ != known.module:
                before = self[name]
            if before is not None and (before.__module__, before.__qualname__) != place:
                raise ValueError(f"there is a {self._kind} {name!r} already: {before.__module__}.{before.__qualname__}")
            if known is not None:
                found.summary, found.settings = known.summary, known.settings
            self._found[name] = found
            return found

        return add

    def __getitem__(self, name: str) -> T:
        """The class of this name. Raises WrongValueError or WrongTypeError where there is none."""
        if not isinstance(name, str) or name not in self._found:
            check_choice(self._kind, name, tuple(self))
            with self._importing:
                importlib.import_module(self._known[name].module)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        """The names in alphabetical order, so that the order of imports does not matter."""
        return iter(sorted({*self._known, *self._found}))

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._found

    def settings(self, name: str) -> tuple[type, ...]:
        """The dataclasses of the settings that a class has of its own. Raises as :meth:`__getitem__`."""
        return self._about(name).settings

    def summaries(self, but: str = "") -> str:
        """All names, except ``but``, each with its summary, for a command's help."""
        told = ((name, self._about(name).summary) for name in self if name != but)
        return "; ".join(f"{name}: {summary}" if summary else name for name, summary in told)

    def _about(self, name: str) -> Any:
        return self._known[name] if isinstance(name, str) and name in self._known else self[name]


_KEY = "hpcgnn"
MOST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A field of a dataclass that is a setting, and what :func:`setting` says about it.

    name: of the flag and of the key in TOML files, usually the field's; empty if there is neither. attribute: name of the field.
    help, choices: may be functions, which are called when they are needed. least, most: inclusive bounds of a number; above,
    below: exclusive ones. used_if: whether an object of the dataclass uses the setting; users: the choices that use it, in words.
    is_kept: whether a repetition of a run takes the setting over. is_free: whether a model's parameters may be used with another
    value. default_in_words: the default as the help shows it.
    """

    name: str
    attribute: str
    type: Any
    default: Any
    help: str | Callable[[], str] = ""
    choices: Sequence[Any] | Callable[[], Sequence[Any]] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    metavar: str | None = None
    used_if: Callable[[Any], bool] = lambda config: True
    users: str = ""
    is_kept: bool = True
    is_free: bool = False
    default_in_words: str = ""
    is_finite: bool = True

    def in_words(self) -> str:
        """The text of the help."""
        return self.help() if callable(self.help) else self.help

    def chosen_from(self) -> Sequence[Any]:
        """The allowed values; empty if the setting is not a choice."""
        return tuple(self.choices() if callable(self.choices) else self.choices)


def setting(default: Any, help: str | Callable[[], str] = "", **about: Any) -> Any:
    """A field of a dataclass of settings; other arguments are those of :class:`Setting`, whose ``name`` may be empty."""
    return field(default=default, metadata={_KEY: {"help": help, **about}})


def as_flag(name: str) -> str:
    """The flag of a setting: ``--most-stale-epochs`` for ``most_stale_epochs``."""
    return "--" + name.replace("_", "-")


@cache
def settings_of(config_type: type) -> tuple[Setting, ...]:
    """The fields of a dataclass that are settings."""
    hints = typing.get_type_hints(config_type)
    return tuple(
        Setting(attribute=each.name, type=hints[each.name], default=each.default, **{"name": each.name, **about})
        for each in dataclasses.fields(config_type)
        if (about := each.metadata.get(_KEY)) is not None
    )


class Checked:
    """A dataclass of settings, whose method :meth:`check` refuses values that are not allowed."""

    def __post_init__(self) -> None:
        """Convert NumPy's numbers to Python's."""
        for each in settings_of(type(self)):  # type: ignore[arg-type]
            object.__setattr__(self, each.attribute, plain(getattr(self, each.attribute)))

    def check(self) -> None:
        """Raise HpcgnnError for the first value that its field does not allow, here or in a field of settings."""
        config_type: type = type(self)
        parts = {name: (getattr(self, name), kinds) for name, kinds in _parts_of(config_type).items()}
        for name, (value, kinds) in parts.items():
            if not isinstance(value, kinds):
                words = " or ".join(each.__name__ for each in kinds)
                raise WrongTypeError(f"{name} must be a {words}, not {quoted(value)}")
        for owner in (self, *getattr(self, "own", ())):
            for each in settings_of(type(owner)):  # type: ignore[arg-type]
                check_value(each, getattr(owner, each.attribute))
        for value, _ in parts.values():
            value.check()


@cache
def _parts_of(config_type: Any) -> dict[str, tuple[type, ...]]:
    """The fields that are dataclasses of settings themselves, by name, with the classes that are allowed."""
    hints = typing.get_type_hints(config_type)
    found = {
        each.name: typing.get_args(hints[each.name]) or (hints[each.name],) for each in dataclasses.fields(config_type)
    }
    return {
        name: kinds
        for name, kinds in found.items()
        if all(isinstance(kind, type) and issubclass(kind, Checked) for kind in kinds)
    }


def check_value(setting: Setting, value: Any, where: str = "") -> None:
    """Raise an error if the setting does not allow the value: WrongTypeError or WrongValueError for a program's value, and
    HpcgnnError, whose sentence begins with ``where``, for the value of a file of this name."""
    wanted, is_type = _problem(setting, value)
    if wanted:
        name = setting.attribute if setting.name in ("", setting.attribute) else as_flag(setting.name)[2:]
        sentence = f"{name} must be {wanted}, not {quoted(value)}"
        if where:
            raise HpcgnnError(f"{where}: {sentence}")
        raise (WrongTypeError if is_type else WrongValueError)(sentence)


def _problem(setting: Setting, value: Any) -> tuple[str, bool]:
    """A phrase for the values that are allowed, and whether the value's type is wrong; an empty phrase if it is allowed."""
    kind, may_be_none = kind_of(setting.type)
    if value is None and may_be_none:
        return "", False
    if choices := setting.chosen_from():
        is_one = any(type(value) is type(choice) and is_choice(value, choice) for choice in choices)
        is_type = not isinstance(value, tuple({type(choice) for choice in choices})) or isinstance(value, bool)
        return ("" if is_one else f"one of {', '.join(map(str, choices))}"), is_type
    if not _is_of(kind, value):
        return _TYPES.get(kind, str(kind)), True
    if kind not in (int, float) or _is_within(setting, plain(value), MOST_INT if kind is int else MOST_FLOAT):
        return "", False
    return _bounds(setting, value), False


def is_choice(value: Any, choice: Any) -> bool:
    """Return whether a value is this choice, of which a colon and a word, as in ``uniform:BYTES``, stand for any argument."""
    name, colon, _ = choice.partition(":") if isinstance(choice, str) else ("", "", "")
    return value.startswith(name + colon) if colon else value == choice


_TYPES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path (pathlib.Path)",
    tuple[float, float]: "two numbers",
    tuple[str, ...]: "a tuple of texts",
}


def _is_of(kind: Any, value: Any) -> bool:
    """Return whether the value is of the type; a number may be another library's, such as NumPy's."""
    if kind in (int, float):
        is_bool = isinstance(value, bool)
        return not is_bool and isinstance(value, numbers.Integral if kind is int else numbers.Real)
    return isinstance(value, Path) if kind is Path else not why_invalid(value, kind)


def plain(value: Any) -> Any:
    """A number as Python's own, which files and checkpoints can hold, where it was NumPy's; any other value unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _is_within(setting: Setting, value: float, largest: float) -> bool:
    """Return whether a number is within bounds, which a NaN never is. largest: the limit of its type."""
    bounds = (
        (operator.ge, -largest),
        (operator.le, largest if setting.is_finite else None),
        (operator.ge, setting.least),
        (operator.le, setting.most),
        (operator.gt, setting.above),
        (operator.lt, setting.below),
    )
    return all(is_right(value, bound) for is_right, bound in bounds if bound is not None)


def _bounds(setting: Setting, value: Any) -> str:
    words = {"at least": setting.least, "above": setting.above, "at most": setting.most, "below": setting.below}
    told = [f"{word} {bound:g}" for word, bound in words.items() if bound is not None]
    if isinstance(value, numbers.Integral) and abs(int(value)) > MOST_INT and setting.most is None:
        told.append("below 2^63")
    elif not told or (not isinstance(value, numbers.Integral) and math.isinf(value)):
        told.append("finite")
    return " and ".join(told)


def kind_of(annotated: Any) -> tuple[Any, bool]:
    """An annotation's type without None, and whether None is allowed: ``(int, True)`` for ``int | None``."""
    if isinstance(annotated, types.UnionType):
        (kind,) = (each for each in typing.get_args(annotated) if each is not types.NoneType)
        return kind, True
    return annotated, False


# -- settings that exist only with some choices of other settings ------------------------------------------------------


class Composed(Checked, ABC):
    """A frozen dataclass whose first fields choose further dataclasses of settings: ``ModelConfig("gat", heads=4)``.

    registries: for each of these fields, which may be given by position, the registry of its choices, and the words before a
    choice in a sentence. ``own`` has one object of each dataclass that the choices have, and its fields are attributes of this
    object, too. The subclass is a dataclass without a generated ``__init__``.

    Raises:
        HpcgnnError: for a setting that none of the chosen dataclasses has.
    """

    own: tuple[Any, ...]
    registries: ClassVar[dict[str, tuple[Registry[Any], str]]]

    def __init__(self, *values: Any, own: tuple[Any, ...] = (), **given: Any) -> None:
        common = [each for each in dataclasses.fields(self) if each.name != "own"]  # type: ignore[arg-type]
        by_place = len(self.registries)
        if len(values) > by_place:
            raise WrongTypeError(
                f"{type(self).__name__} takes {by_place} positional arguments: give the other settings by name"
            )
        given |= dict(zip((each.name for each in common), values, strict=False))
        for each in common:
            object.__setattr__(self, each.name, plain(given.pop(each.name, each.default)))
        object.__setattr__(self, "own", own)
        sections = self.sections()
        for each in own:  # after `dataclasses.replace`: settings that are not defaults must fit a new choice
            if type(each) not in sections:
                default = type(each)()
                given = {name: value for name, value in vars(each).items() if value != getattr(default, name)} | given
        made: list[Any] = []
        for section in sections:
            names = [each.attribute for each in settings_of(section) if each.attribute in given]
            changes = {name: plain(given.pop(name)) for name in names}
            made.append(dataclasses.replace(self.section(section), **changes))
        for name in given:
            if users := self.users().get(name):
                raise WrongValueError(not_used(name, self.chosen(), users))
            raise WrongTypeError(f"{type(self).__name__} has no setting {name!r}")
        object.__setattr__(self, "own", tuple(made))

    @abstractmethod
    def chosen(self) -> str:
        """The current choices, in words."""

    def sections(self) -> tuple[type, ...]:
        """The dataclasses of settings of the current choices, each once."""
        found = (registry.settings(getattr(self, name)) for name, (registry, _) in self.registries.items())
        return tuple(dict.fromkeys(chain.from_iterable(found)))

    @classmethod
    def all_sections(cls) -> dict[type, list[str]]:
        """The dataclasses of settings of all possible choices, each with the names of the choices that have it."""
        found: dict[type, list[str]] = {}
        for registry, before in cls.registries.values():
            for name in registry:
                for section in registry.settings(name):
                    found.setdefault(section, []).append(before + name)
        return found

    @classmethod
    def users(cls) -> dict[str, list[str]]:
        """For each setting that only some choices use, the names of these choices."""
        found: dict[str, list[str]] = {}
        for section, names in cls.all_sections().items():
            for each in settings_of(section):
                found[each.attribute] = sorted({*found.get(each.attribute, ()), *names})
        return found

    @classmethod
    def of_used(cls, values: Mapping[str, Any]) -> Self:
        """An object with those of ``values``, by the names of settings, that the choices among them use."""
        common = {each.name for each in dataclasses.fields(cls)} - {"own"}  # type: ignore[arg-type]
        used = cls(**{name: value for name, value in values.items() if name in common}).flat()
        return cls(**{name: value for name, value in values.items() if name in used})

    def section(self, kind: type[T]) -> T:
        """This object's settings of one dataclass, or the defaults if its choices do not use it."""
        return next((each for each in self.own if type(each) is kind), kind())

    def flat(self) -> dict[str, Any]:
        """All settings, by the names of their fields."""
        found = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "own"}  # type: ignore[arg-type]
        for section in self.own:
            found |= dataclasses.asdict(section)
        return found

    def __getattr__(self, name: str) -> Any:
        """A setting in ``own``, or its default if the current choices do not use it: generic code may ask for either."""
        if not name.startswith("__"):
            for section in chain(self.__dict__.get("own", ()), (kind() for kind in self.all_sections())):
                if hasattr(section, name):
                    return getattr(section, name)
        raise AttributeError(f"{type(self).__name__} has no setting {name!r}")


def not_used(name: str, chosen: str, users: Collection[str]) -> str:
    """The sentence that refuses a setting: ``teleport is not used by gcn: appnp and gcnii use it``."""
    *others, last = users
    told = f"{', '.join(others)} and {last} use it" if others else f"{last} uses it"
    return f"{name} is not used by {chosen}: {told}"
