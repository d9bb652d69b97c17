"""The text that names a source: ``KIND:NAME?key=value&key=value`` or ``KIND:key=value,key=value``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError, printable


@dataclass
class Spec:
    """The parsed name of a source. The ``take`` methods return options; :meth:`finish` refuses options that were not taken."""

    text: str
    kind: str
    name: str
    options: dict[str, str]
    known: list[str] = field(default_factory=list)

    def take(self, key: str, default: str | None = None) -> str | None:
        """Option ``key`` as text, or ``default``."""
        self.known.append(key)
        return self.options.pop(key, default)

    def take_int(self, key: str, default: int | None = None, least: int = 0) -> int:
        """Option ``key`` as an integer of at least ``least``; required if there is no default."""
        value = self._number(key, default)
        if value != int(value) or value < least:
            raise HpcgnnError(f"{self.text}: {key}={value:g} should be a whole number of at least {least}")
        return int(value)

    def take_split(self) -> int | None:
        """Option ``split``, the number of one of several splits from 0; None if it is not given."""
        is_given = "split" in self.options
        number = self.take_int("split", 0)
        return number if is_given else None

    def take_float(self, key: str, default: float | None = None, least: float = 0.0, most: float = math.inf) -> float:
        """Option ``key`` as a number in [least, most]; required if there is no default."""
        value = self._number(key, default)
        if not least <= value <= most:
            raise HpcgnnError(f"{self.text}: {key}={value:g} should be a number of {least:g} to {most:g}")
        return value

    def finish(self) -> None:
        """Raise HpcgnnError for options that were not taken, which the source does not know."""
        if self.options:
            allowed = f"it takes {', '.join(sorted(self.known))}" if self.known else "it takes none"
            raise HpcgnnError(f"{self.text}: {self.kind} has no option {min(self.options)!r}; {allowed}")

    def _number(self, key: str, default: float | None) -> float:
        text = self.take(key)
        if text is None:
            if default is None:
                raise HpcgnnError(f"{self.text}: {key} is missing; write {self.kind}:{key}=NUMBER,...")
            return default
        try:
            # int, not float, because seeds above 2**53 must stay exact.
            value = int(text) if text.lstrip("+-").isdecimal() else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise HpcgnnError(f"{self.text}: {key}={text!r} is not a number")
        return value


def parse_spec(text: str) -> Spec:
    """Split ``text`` into kind, name and options. Raises HpcgnnError for a text of another form."""
    kind, _, rest = text.partition(":")
    if kind in ("rmat", "sbm", "digits"):
        name, query, separator = "", rest, ","
    else:
        name, query = _name_and_query(kind, rest)
        separator = "&"
        if not name:
            raise HpcgnnError(f"{text!r} is not a source: write {_likely(text)}")
    options = {}
    for item in filter(None, query.split(separator)):
        key, equals, value = item.partition("=")
        if not equals or key in options:
            raise HpcgnnError(f"{text}: {item!r} should be key=value, each key once")
        options[key] = value
    return Spec(text, kind, name, options)


def _likely(text: str) -> str:
    """The source that a text without a kind may mean, which its suffix tells, or the form of a source."""
    suffix = Path(text.partition("?")[0]).suffix.removeprefix(".")
    if suffix in ("npz", "graphml", "parquet", "mtx"):
        return f"{suffix}:{printable(text)}"
    return "KIND:NAME, such as npz:graph.npz, edgelist:edges.txt, pyg:Cora or digits"


def _name_and_query(kind: str, rest: str) -> tuple[str, str]:
    """Split a text at the ``?`` before its options. The name of a file may have a ``?``, so the longest name of an existing file
    comes first; without such a file, the first ``?`` divides."""
    if kind in ("pyg", "ogb"):
        name, _, query = rest.partition("?")
        return name, query
    marks = [place for place, character in enumerate(rest) if character == "?"]
    for end in [len(rest), *reversed(marks)]:
        if is_file(Path(rest[:end])):
            return rest[:end], rest[end + 1 :]
    name, _, query = rest.partition("?")
    return name, query


def is_file(path: Path) -> bool:
    """Return whether the file exists; False also if the name is too long, a folder may not be read, or the user in ``~user``
    does not exist.
    """
    try:
        return path.expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False
