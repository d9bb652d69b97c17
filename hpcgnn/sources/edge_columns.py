"""The contents of the columns of an edge list: source, target and weight of an edge, by their names or by their places.

A first line without any number names the columns, and so does a comment above the data with as many words, if it names both the
source and the target. Columns of other names are left out. Without names, an edge list has 2 or 3 columns, in this order.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError, quoted

SOURCE, TARGET, WEIGHT, LEFT_OUT = "source", "target", "weight", ""
ROLES = (SOURCE, TARGET, WEIGHT)
# Names in lower case, of letters and digits only.
USUAL_NAMES = {
    SOURCE: ("source", "src", "from", "u", "sourceid", "srcid", "fromid", "fromnodeid", "sourcenode"),
    TARGET: ("target", "dst", "to", "v", "targetid", "dstid", "toid", "tonodeid", "targetnode", "dest", "destination"),
    WEIGHT: ("weight", "w", "edgeweight", "weights"),
}
_UNNAMED = ("", "unnamed0")  # of an index that pandas, or R, has written as the first column


@dataclass(frozen=True)
class EdgeColumns:
    """The role of each column, LEFT_OUT for those that are not read. names: of the columns, empty for a file without names.
    delimiter: None for blanks. has_header: whether the names are the first line of the data."""

    roles: tuple[str, ...]
    delimiter: str | None
    names: tuple[str, ...] = ()
    has_header: bool = False

    @property
    def weighted(self) -> bool:
        """Return whether a column holds weights."""
        return WEIGHT in self.roles

    def note(self) -> str:
        """A phrase for users that says what each column was taken for."""
        told = [self._named(place) for place in range(len(self.roles))]
        taken = [f"{name} is the {role}" for name, role in zip(told, self.roles, strict=True) if role]
        left = [name for name, role in zip(told, self.roles, strict=True) if not role]
        return ", ".join(taken) + (f"; not read: {', '.join(left)}" if left else "")

    def _named(self, place: int) -> str:
        name = self.names[place] if self.names else ""
        return f"column {quoted(name)}" if name else f"column {place + 1}" + (" (no name)" if self.names else "")


def split_fields(line: str, delimiter: str | None) -> list[str]:
    """The fields of a line, without blanks and quotes around them."""
    fields = next(csv.reader([line.strip("\r\n")])) if delimiter == "," else line.split(delimiter)
    return [each.strip().strip("\"'") for each in fields]


def find_columns(line: str, comment: str, asked: Mapping[str, str | None], path: Path) -> EdgeColumns:
    """The columns of a file from the first line of its data, and the comment before it, or "".

    asked: the name of a column for a role, from the user. Raises HpcgnnError where the columns are not clear.
    """
    delimiter = "," if "," in line else None
    fields = split_fields(line, delimiter)
    has_header = not any(map(is_number, fields))
    names = fields if has_header else _names_in_comment(comment, len(fields), delimiter, asked, path)
    if not names:
        if wanted := [role for role, name in asked.items() if name is not None]:
            raise HpcgnnError(f"{path} has no line that names its columns, so leave {wanted[0]}= out")
        if len(fields) not in (2, 3):
            raise HpcgnnError(
                f"{path}: {quoted(line.strip()[:60])} has {len(fields)} columns, but an edge list has 2 or 3, src dst [weight], "
                "or a first line that names its columns"
            )
        return EdgeColumns(ROLES[: len(fields)], delimiter)
    return EdgeColumns(_roles(names, asked, path), delimiter, tuple(names), has_header)


def _names_in_comment(
    comment: str, count: int, delimiter: str | None, asked: Mapping[str, str | None], path: Path
) -> list[str]:
    """The names in a comment that has ``count`` words, of which two are known to be source and target; else an empty list."""
    names = split_fields(comment.lstrip("#%"), delimiter)
    if len(names) != count:
        return []
    found = columns_by_name(names, asked, path)
    return names if SOURCE in found and TARGET in found else []


def columns_by_name(names: Sequence[str], asked: Mapping[str, str | None], path: Path) -> dict[str, int]:
    """The place of each role whose column has the name that the user asks for, or one of the usual names: written as it is, or
    else with other letters. Raises HpcgnnError where a column would have two roles."""
    exact, plain = list(names), [re.sub("[^a-z0-9]", "", name.lower()) for name in names]
    found: dict[str, int] = {}
    for role in ROLES:
        own = asked.get(role)
        tried = (
            ((own, exact),)
            if own is not None
            else ((name, among) for name in USUAL_NAMES[role] for among in (exact, plain))
        )
        place = next((among.index(name) for name, among in tried if name in among), None)
        if place is not None:
            found[role] = place
    if asked.get(WEIGHT) is None and found.get(WEIGHT) in (found.get(SOURCE), found.get(TARGET)):
        found.pop(WEIGHT, None)  # the user names a column w as an end of edges
    if len(set(found.values())) < len(found):
        raise HpcgnnError(f"{path}: one column cannot be two of source, target and weight")
    return found


def _roles(names: list[str], asked: Mapping[str, str | None], path: Path) -> tuple[str, ...]:
    found = columns_by_name(names, asked, path)
    told = ", ".join(name or "(no name)" for name in names)
    for role, name in asked.items():
        if name is not None and role not in found:
            raise HpcgnnError(f"{path} has no column {quoted(name)}; it has {told}")
    others = [at for at in range(len(names)) if at not in found.values()]
    if others and others[0] == 0 and re.sub("[^a-z0-9]", "", names[0].lower()) in _UNNAMED:
        others = others[1:]
    if SOURCE not in found and TARGET not in found and len(others) == 2:
        found[SOURCE], found[TARGET] = others
    if missing := [role for role in (SOURCE, TARGET) if role not in found]:
        raise HpcgnnError(
            f"{path} has the columns {told}, and none of them is known to be the {missing[0]} of edges: name it with "
            f"?{missing[0]}=COLUMN"
        )
    return roles_in_order(found, len(names))


def roles_in_order(places: Mapping[str, int], count: int) -> tuple[str, ...]:
    """The role of each of ``count`` columns, from the place of each role."""
    return tuple(next((role for role, place in places.items() if place == at), LEFT_OUT) for at in range(count))


def is_number(text: str) -> bool:
    """Return whether Python reads the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
