"""Damages of files, drawn by Hypothesis, and the rule for readers: a damaged file gives one sentence that names it, or the result
of the whole file.

Damages are drawn from the file itself: from its bytes, the arrays and attributes of an HDF5 file, or the fields of nested values.
So a new array or field is damaged without a new line. No damage can be repaired by a reader; one that changes nothing is not
drawn.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tomli_w
import torch
from hypothesis import assume, settings
from hypothesis import strategies as st
from requires import EVERYTHING

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import Rule

LONGEST_SECONDS = 120.0  # after it a reader counts as hanging, and the process of the tests ends with its traceback


def budget(examples: int) -> settings:
    """The settings of a property test: the number of drawn damages, and 20 times as many with ``HPCGNN_TESTS=all``."""
    return settings(deadline=None, max_examples=20 * examples if EVERYTHING else examples)


Reader = Callable[[Path], object]


# -- the rule for readers ----------------------------------------------------------------------------------------------


def refusal(read: Callable[[], object], names: object = "") -> tuple[HpcgnnError | None, object]:
    """``(error, result)`` of a reader; one of them is None. The error's sentence must have the path ``names``. Any other error is
    raised."""
    faulthandler.dump_traceback_later(LONGEST_SECONDS, exit=True)
    try:
        return None, read()
    except HpcgnnError as error:
        refused = error
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert "\n" not in str(refused), refused
    assert str(names) in str(refused), refused
    return refused, None


def check_readers(
    readers: Mapping[str, Reader], path: Path, whole: Mapping[str, object] | None, what: str, must: str = ""
) -> set[str]:
    """Check that each reader refuses the damaged file at ``path``, or has the result of the ``whole`` file. Return the readers
    that refuse it.

    whole: the results by reader; None accepts any result. what: the damage in words. must: a reader that has to refuse it.
    """
    refusing = set()
    for name, read in readers.items():
        error, found = refusal(lambda read=read: read(path), path)
        if error is not None:
            refusing.add(name)
        elif whole is not None:
            assert found == whole[name], f"{name} accepts {what}, with another result"
    assert not must or must in refusing, f"{must} accepts {what}"
    return refusing


# -- bytes -------------------------------------------------------------------------------------------------------------

_OF_BYTES: dict[str, Callable[[bytes, int, bytes], bytes]] = {
    "a bit flipped": lambda whole, at, junk: whole[:at] + bytes([whole[at] ^ 1 << junk[0] % 8]) + whole[at + 1 :],
    "bytes replaced": lambda whole, at, junk: whole[:at] + junk + whole[at + len(junk) :],
    "bytes inserted": lambda whole, at, junk: whole[:at] + junk + whole[at:],
    "zeros": lambda whole, at, junk: whole[:at] + bytes(16 * len(junk)) + whole[at + 16 * len(junk) :],
    "a piece missing": lambda whole, at, junk: whole[:at] + whole[at + len(junk) :],
    "a piece twice": lambda whole, at, junk: whole[: at + len(junk)] + whole[at:],
    "cut": lambda whole, at, junk: whole[:at],
}


def change_bytes(data: st.DataObject, path: Path) -> str:
    """Change bytes of a file anywhere; return the damage in words."""
    whole = path.read_bytes()
    way, at = data.draw(st.sampled_from(sorted(_OF_BYTES))), data.draw(st.integers(0, len(whole) - 1))
    changed = _OF_BYTES[way](whole, at, data.draw(st.binary(min_size=1, max_size=64)))
    assume(changed != whole)
    path.write_bytes(changed)
    return f"{way} at {at}"


_WORDS = (
    *("-1", "0", "2000000000", "9223372036854775808", "1e400", "1.5", "nan", "-inf", "1_0", "0x1", "\u0663"),
    *("x", "\0", '"', "[", "#", "%", "", "1 1 1 1"),
)


def change_words(data: st.DataObject, path: Path) -> str:
    """Change a word, or bytes, of a text."""
    if data.draw(st.booleans()):
        return change_bytes(data, path)
    lines = path.read_text().splitlines(keepends=True)
    number = data.draw(st.integers(0, len(lines) - 1))
    words = lines[number].split(" ")
    place, word = data.draw(st.integers(0, len(words) - 1)), data.draw(st.sampled_from(_WORDS))
    words[place] = word + "\n" * words[place].endswith("\n")
    lines[number] = " ".join(words)
    path.write_text("".join(lines))
    return f"{word!r} in line {number + 1}"


# -- HDF5 --------------------------------------------------------------------------------------------------------------


def names_in(file: h5py.File) -> list[str]:
    """The names of all datasets."""
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def change_hdf5(data: st.DataObject, path: Path, rules: Mapping[str, Rule]) -> tuple[str, bool]:
    """Change an array or an attribute: return the damage in words, and if the schema forbids it, whatever the checksums say.

    rules: those of the arrays that the schema declares; the others are tables of checksums.
    """
    with h5py.File(path, "r+") as file:
        if data.draw(st.integers(0, 3)) == 0:
            return _change_attribute(data, file), False
        name = data.draw(st.sampled_from(names_in(file)))
        way = data.draw(st.sampled_from((_value, _value, _retype, _reshape, _replace)))
        what, is_forbidden = way(data, file, name, rules.get(name))
        return f"{name} {what}", is_forbidden and name in rules


def _change_attribute(data: st.DataObject, file: h5py.File) -> str:
    groups = [file, *file.get("plan", {}).values()]
    places = [(group, name) for group in groups for name in group.attrs]
    group, name = data.draw(st.sampled_from(places))
    before = group.attrs[name]
    numbers = (2.5, math.nan, -1, 0, 1, 2, 99, 10**15, 2**62, [1, 2])
    values = ("text", b"\xff", h5py.Empty("f"), "x" * 60_000, "[]", *numbers, None)
    value = data.draw(st.sampled_from(values))
    del group.attrs[name]
    if value is not None:
        group.attrs[name] = value
    assume(value is None or type(before) is not type(group.attrs[name]) or before != group.attrs[name])
    return f"{group.name} has the attribute {name} = {str(value)[:20]!r}, not {str(before)[:20]!r}"


def _value(data: st.DataObject, file: h5py.File, name: str, rule: Rule | None) -> tuple[str, bool]:
    """Another value: one that the rule forbids, or another one in its range."""
    dataset = file[name]
    assume(dataset.size)
    place = tuple(data.draw(st.integers(0, size - 1)) for size in dataset.shape)
    before = dataset[place]
    kind = dataset.dtype.kind
    if kind == "b":
        dataset[place] = not before
        return f"{place} is {not before}", False
    if kind == "f":
        value = data.draw(st.sampled_from([math.nan, math.inf, -math.inf, 0.125, float(before) + 1]))
        is_forbidden = not math.isfinite(value) and not (rule is not None and rule.may_be_nan and math.isnan(value))
    else:
        limits = np.iinfo(dataset.dtype)
        ends = [] if rule is None else [rule.low - 1, rule.high + 1, rule.low, rule.high]
        near = [int(before) + 1, int(before) - 1]
        value = data.draw(
            st.sampled_from([v for v in (limits.min, limits.max, *near, *ends) if limits.min <= v <= limits.max])
        )
        is_forbidden = rule is not None and rule.high > 0 and not rule.low <= value <= rule.high
    dataset[place] = value
    assume(dataset[place] != before)
    return f"{place} is {value}, not {before}", is_forbidden


def _put(file: h5py.File, name: str, values: np.ndarray, **how: Any) -> None:
    del file[name]
    file.create_dataset(name, data=values, **how)


def _retype(data: st.DataObject, file: h5py.File, name: str, rule: Rule | None) -> tuple[str, bool]:
    before = file[name][()]
    kind = data.draw(
        st.sampled_from(("complex64", "S8", "float64", "float32", "float16", "int8", "int32", "uint64", "bool", ">i8"))
    )
    assume(np.dtype(kind) != before.dtype)
    with np.errstate(all="ignore"):
        _put(file, name, before.astype(kind))
    return f"as {kind}", True


_SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "without its last row": lambda array: array[:-1],
    "half": lambda array: array[: len(array) // 2],
    "twice": lambda array: np.concatenate([array, array]),
    "with another axis": lambda array: array[..., None],
    "flat": lambda array: array.reshape(-1),
    "turned": lambda array: array.T,
    "empty": lambda array: array[:0],
    "a number": lambda array: array.reshape(-1)[0],
}


def _reshape(data: st.DataObject, file: h5py.File, name: str, rule: Rule | None) -> tuple[str, bool]:
    before, how = file[name][()], data.draw(st.sampled_from(sorted(_SHAPES)))
    assume(before.size)
    changed = np.asarray(_SHAPES[how](before))
    assume(changed.shape != before.shape)
    _put(file, name, changed)
    return how, True


def _move_away(file: h5py.File, name: str, array: np.ndarray) -> None:
    file["hidden"], file[name] = array, h5py.SoftLink("/hidden")


_INSTEAD: dict[str, Callable[[h5py.File, str, np.ndarray], object]] = {
    "missing": lambda file, name, array: None,
    "a link to nothing": lambda file, name, array: file.__setitem__(name, h5py.SoftLink("/nowhere")),
    "a link to itself": lambda file, name, array: file.__setitem__(name, h5py.SoftLink(f"/{name}")),
    "a link to its values": _move_away,
    "a link to a file": lambda file, name, array: file.__setitem__(name, h5py.ExternalLink("/etc/passwd", "/x")),
    "a type": lambda file, name, array: file.__setitem__(name, array.dtype),
    "a group": lambda file, name, array: file.create_group(name),
    "compressed": lambda file, name, array: file.create_dataset(name, data=array, chunks=True, compression="gzip"),
    "of 10^15 rows": lambda file, name, array: file.create_dataset(name, (10**15, *array.shape[1:]), "i1", chunks=True),
    "in another file": lambda file, name, array: file.create_dataset(
        name, array.shape, array.dtype, external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)]
    ),
}


def _replace(data: st.DataObject, file: h5py.File, name: str, rule: Rule | None) -> tuple[str, bool]:
    """Another object under the name, or the values in a form that the files of hpcgnn do not have."""
    array, what = file[name][()], data.draw(st.sampled_from(sorted(_INSTEAD)))
    assume(array.size)
    del file[name]
    _INSTEAD[what](file, name, array)
    return f"is {what}", True


# -- nested values -----------------------------------------------------------------------------------------------------

_OTHERS: tuple[Any, ...] = (
    *("text", "", 2.5, -1, 0, 10**30, None, True, math.nan, math.inf),
    *([], [1, 2], {}, {"a": 1}, torch.zeros(3), torch.zeros(())),
)


def places_in(content: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in dictionaries and lists, nested ones too."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from places_in(value, (*above, key))


def change_nested(data: st.DataObject, content: Any, others: tuple[Any, ...] = _OTHERS) -> tuple[Any, str]:
    """A copy of nested values in which one is missing, or another one, and the damage in words."""
    changed = copy.deepcopy(content)
    place = data.draw(st.sampled_from(list(places_in(content))))
    *above, last = place
    table = changed
    for key in above:
        table = table[key]
    before = table[last]
    if data.draw(st.integers(0, 3)) == 0:
        del table[last]
        return changed, f"{place} is missing"
    if isinstance(before, torch.Tensor) and before.numel() and data.draw(st.booleans()):
        how, table[last] = _other_tensor(data, before)
        return changed, f"{place} {how}"
    table[last] = data.draw(st.sampled_from([other for other in others if type(other) is not type(before)]))
    return changed, f"{place} is {str(table[last])[:20]!r}"


def _other_tensor(data: st.DataObject, before: torch.Tensor) -> tuple[str, torch.Tensor]:
    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "flat": lambda values: values.reshape(-1) if values.ndim != 1 else values[None],
        "empty": lambda values: values.reshape(-1)[:0],
        "with another axis": lambda values: values[..., None],
        "as complex64": lambda values: values.to(torch.complex64),
        "as int16": lambda values: values.to(torch.int16),
        "negative": lambda values: -1 - values.to(torch.float32).nan_to_num().to(values.dtype),
        "NaN": lambda values: torch.full_like(values, math.nan) if values.is_floating_point() else values.double(),
    }
    how = data.draw(st.sampled_from(sorted(ways)))
    return how, ways[how](before.clone())


def change_values(data: st.DataObject, path: Path) -> str:
    """Change a value of a file of JSON, JSON lines or TOML, or bytes of it; return the damage in words."""
    if data.draw(st.integers(0, 2)) == 0:
        return change_bytes(data, path)
    plain = tuple(other for other in _OTHERS if not isinstance(other, torch.Tensor))
    if path.suffix == ".toml":
        without_none = tuple(other for other in plain if other is not None)
        changed, what = change_nested(data, tomllib.loads(path.read_text()), without_none)
        path.write_text(tomli_w.dumps(changed))
    elif path.suffix == ".json":
        changed, what = change_nested(data, json.loads(path.read_text()), plain)
        path.write_text(json.dumps(changed))
    else:
        changed, what = change_nested(data, [json.loads(line) for line in path.read_text().splitlines()], plain)
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    return what
