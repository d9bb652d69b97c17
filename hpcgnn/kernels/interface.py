"""The text of ``native/hpcgnn.h`` as ctypes: argument types, results, structures and constants.

The library contains that text (:func:`hpcgnn_interface`), so that Python passes the arguments for which the library was compiled.
Functions are called by the names of their parameters, and a parameter that points to values takes a tensor of their type. A
missing or unknown argument, or one of another type, raises an error before the library is called. So does text that this module
cannot read.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcgnn.base.arguments import is_plain
from hpcgnn.base.errors import WrongTypeError

_NUMBERS: dict[str, Any] = {
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_VALUES = {
    "float": torch.float32,
    "double": torch.float64,
    "hpcgnn_bfloat16": torch.bfloat16,
    "int8_t": torch.int8,
    "uint8_t": torch.uint8,
    "int32_t": torch.int32,
    "int64_t": torch.int64,
}
_TEXT = "char*"
_FUNCTION = re.compile(
    r"(?:HPCGNN_KERNEL\((?P<kind>[^,]+), (?P<kernel>\w+)\)|HPCGNN_API (?P<result>[^(]+?)(?P<name>\w+))\("
)
_STRUCT = re.compile(r"^struct (\w+) \{(.*)\}$")
_ENUM = re.compile(r"^enum \w+ \{((?: \w+,?)+) \}$")
_VARIABLE = re.compile(r"^(?:const )?(\w+)(\*?) (\w+)$")
_INPUT = 1  # ctypes' flag of a parameter that is passed


@dataclass(frozen=True)
class Function:
    """One declaration: its result and (name, type) parameters, as they are written, without ``const``."""

    result: str
    parameters: tuple[tuple[str, str], ...]


class Values:
    """The type of a parameter that points to values: takes a tensor of ``dtype`` in memory of the host, or None for null."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def address(self, tensor: Tensor | None) -> int | None:
        """The address of the tensor's first value; None for null. Raises TypeError for another type or device."""
        if tensor is None:
            return None
        if not is_plain(tensor):
            raise WrongTypeError(f"kernels take a torch.Tensor itself, not the subclass {type(tensor).__name__}")
        if tensor.dtype is not self.dtype or not tensor.is_cpu:
            raise TypeError(f"native kernels take {self.dtype} on the CPU here, not {tensor.dtype} on {tensor.device}")
        return tensor.data_ptr()

    def from_param(self, tensor: Tensor | None) -> ctypes.c_void_p | None:
        """The argument that ctypes passes."""
        if tensor is None:
            return None
        if type(tensor) is Tensor and tensor.dtype is self.dtype and tensor.is_cpu:
            return ctypes.c_void_p(tensor.data_ptr())
        return ctypes.c_void_p(self.address(tensor))  # raises, unless it is a parameter


class Interface:
    """The declarations of ``text``.

    Attributes:
        functions: functions of the library by name; kernels by the name that all instruction sets share.
        constants: the values of enumerators.

    Raises:
        ValueError: naming the part of ``text`` that is not understood.
    """

    def __init__(self, text: str) -> None:
        self.functions: dict[str, Function] = {}
        self.constants: dict[str, int] = {}
        self._structs: dict[str, type[ctypes.Structure]] = {}
        self._makers: dict[str, Callable[..., ctypes.Structure]] = {}
        for statement in _statements(text):
            self._read(statement)

    @property
    def structs(self) -> dict[str, type[ctypes.Structure]]:
        """Structures by name."""
        return dict(self._structs)

    def struct(self, name: str) -> Callable[..., ctypes.Structure]:
        """A function that makes the structure ``name`` from all its fields, given by name; fields that point to values take
        tensors.

        The tensors must live while the structure is used. The function raises TypeError for a wrong field.
        """
        return self._makers[name]

    def prototype(self, name: str, *, takes_addresses: bool = False) -> tuple[Any, tuple[tuple[int, str], ...]]:
        """The ctypes type of a function, and the flags that allow calls with named parameters. takes_addresses: addresses, which
        nothing checks, in place of tensors.
        """
        function = self.functions[name]
        types = [self._argument(kind) for _, kind in function.parameters]
        if takes_addresses:
            types = [ctypes.c_void_p if isinstance(each, Values) else each for each in types]
        flags = tuple((_INPUT, parameter) for parameter, _ in function.parameters)
        return ctypes.CFUNCTYPE(self._result(function.result), *types), flags

    def converted(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments ``given`` of a function, checked, with tensors as the addresses of their values."""
        kinds = {parameter: self._argument(kind) for parameter, kind in self.functions[name].parameters}
        return {
            parameter: kinds[parameter].from_param(value) if isinstance(kinds[parameter], Values) else value
            for parameter, value in given.items()
        }

    def _read(self, statement: str) -> None:
        if found := _FUNCTION.match(statement):
            name, result = found["kernel"] or found["name"], found["kind"] or found["result"]
            parameters = statement[found.end() : -1]
            variables = tuple(_variable(part) for part in parameters.split(", ")) if parameters else ()
            function = Function(_variable(f"{result.strip()} result")[1], variables)
            self._result(function.result)
            for _, kind in variables:
                self._argument(kind)
            self.functions[name] = function
        elif found := _STRUCT.match(statement):
            self._add_struct(found[1], [_variable(part.strip()) for part in found[2].split(";") if part.strip()])
        elif found := _ENUM.match(statement):
            self.constants |= {name.strip(): value for value, name in enumerate(found[1].split(","))}
        elif not statement.startswith(("typedef", "void hpcgnn_ran")):
            raise ValueError(f"hpcgnn.h: {statement!r} is not understood")

    def _add_struct(self, name: str, fields: list[tuple[str, str]]) -> None:
        pointers = {field: _values(kind) for field, kind in fields if kind.endswith("*")}
        types = [(field, ctypes.c_void_p if field in pointers else _number(kind)) for field, kind in fields]
        structure = type(name, (ctypes.Structure,), {"_fields_": types, "__slots__": ()})
        names = {field for field, _ in fields}

        def make(**given: Any) -> ctypes.Structure:
            if given.keys() != names:
                raise TypeError(f"{name}: these fields are missing or unknown: {sorted(names ^ given.keys())}")
            for field, values in pointers.items():
                given[field] = values.address(given[field])
            return structure(**given)

        self._structs[name], self._makers[name] = structure, make

    def _argument(self, kind: str) -> Any:
        if not kind.endswith("*"):
            return _number(kind)
        if kind == _TEXT:
            return ctypes.c_char_p
        struct = self._structs.get(kind[:-1])
        return _values(kind) if struct is None else ctypes.POINTER(struct)

    @staticmethod
    def _result(kind: str) -> Any:
        return None if kind == "void" else ctypes.c_char_p if kind == _TEXT else _number(kind)


def _statements(text: str) -> list[str]:
    """The declarations, each on one line, without comments, preprocessor lines and the semicolon."""
    text = re.sub(r"//[^\n]*|^#[^\n]*", "", text, flags=re.MULTILINE)
    found = re.findall(r"\s*([^;{]+(?:\{[^}]*\}[^;]*)?);", text)
    if re.sub(r"\s*([^;{]+(?:\{[^}]*\}[^;]*)?);", "", text).strip():
        raise ValueError("hpcgnn.h ends in the middle of a declaration")
    return [" ".join(statement.split()) for statement in found]


def _variable(text: str) -> tuple[str, str]:
    """The name and type of a variable: ``("x", "float*")`` for ``const float* x``."""
    found = _VARIABLE.match(text)
    if found is None:
        raise ValueError(f"hpcgnn.h: {text!r} is not understood: one variable, and a type as the others have")
    return found[3], found[1] + found[2]


def _number(kind: str) -> Any:
    if kind not in _NUMBERS:
        raise ValueError(f"hpcgnn.h: {kind} is no type that hpcgnn/kernels/interface.py knows")
    return _NUMBERS[kind]


def _values(kind: str) -> Values:
    if kind[:-1] not in _VALUES:
        raise ValueError(f"hpcgnn.h: {kind} points to no type that hpcgnn/kernels/interface.py knows")
    return Values(_VALUES[kind[:-1]])
