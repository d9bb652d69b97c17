"""The native library: the text of ``native/hpcgnn.h`` as ctypes, and the choice of the instruction set.

The library contains that text (``hpcgnn_interface``), so that Python passes the arguments for which the library was compiled.
Functions are called by the names of their parameters, and a parameter that points to values takes a tensor of their type. A
missing or unknown argument, or one of another type, raises an error before the library is called. So does text that this module
cannot read.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch  # torch's OpenMP runtime must be loaded before our library looks for one, so that there is only one
from torch import Tensor

from hpcgnn.base.arguments import is_plain
from hpcgnn.base.errors import HpcgnnError, WrongTypeError

_HERE = Path(__file__).resolve()
# ctypes gives each load of a library types of its own, which do not fit those of another load.
_FINDING = threading.Lock()
_SUFFIX = {
    torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.int8: "i8", torch.int32: "i32",
    torch.int64: "i64",
}  # fmt: skip


class Library:
    """A native library, with the types of its functions' arguments (:class:`Interface`).

    Raises:
        ValueError: in one sentence, for a library that this version cannot use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]] | None = None  # see called_through()
        try:
            self._library = ctypes.CDLL(str(path))
            text = self._library.hpcgnn_interface
        except (OSError, AttributeError) as error:
            raise ValueError(f"{path.name} is no library of this version: {error}") from error
        text.restype = ctypes.c_char_p
        self.text: str = text().decode()
        self.interface = Interface(self.text)
        # In a checkout, an edit of the header may not have been compiled yet.
        header = _HERE.parents[2] / "native" / "hpcgnn.h"
        if header.exists() and header.read_text() != self.text:
            raise ValueError(f"{path.name} was built from another native/hpcgnn.h: run setup.py build_ext --inplace")
        for name, structure in self.interface.structs.items():
            compiled = self.call("hpcgnn_struct_bytes", name=name.encode())
            if compiled != ctypes.sizeof(structure):
                raise ValueError(f"{path.name}: {name} has {compiled} bytes, not {ctypes.sizeof(structure)} as here")

    def function(self, name: str, symbol: str = "", *, takes_addresses: bool = False) -> Callable[..., Any]:
        """The function that the header calls ``name`` and the library ``symbol``. It is called with named arguments.

        takes_addresses: whether it takes addresses, which nothing checks, in place of tensors.
        """
        result, parameters = self.interface.functions[name]
        types = list(parameters.values())
        if takes_addresses:
            types = [ctypes.c_void_p if isinstance(each, Values) else each for each in types]
        named = tuple((_INPUT, parameter) for parameter in parameters)
        found = ctypes.CFUNCTYPE(result, *types)((symbol or name, self._library), named)
        return found if self.wrap is None else self.wrap(name, found)

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Call a function that is no kernel, and return its result."""
        return self.function(name)(**arguments)


def load() -> Library | None:
    """The native library, or None if there is none that this version can use. Threads get the same one."""
    with _FINDING:
        found = _find()
    return None if isinstance(found, str) else found


def missing() -> str | None:
    """The reason why there are no native kernels; None if there are."""
    return None if load() is not None else str(_find())


@functools.cache
def _find() -> Library | str:
    """The library, or the reason why there is none."""
    problem = "hpcgnn was installed without a C++ compiler"
    for path in sorted(_HERE.parent.glob("_native*.so")):
        try:
            return Library(path)
        except ValueError as error:
            problem = str(error)
    return problem


def isas() -> list[str]:
    """The instruction sets that this CPU can run, the best one last; empty without a library."""
    library = load()
    return [] if library is None else library.call("hpcgnn_isas").decode().split()


@functools.cache
def isa() -> str:
    """The instruction set in use: the best one, or what ``HPCGNN_ISA`` asks for.

    ``sve`` stands for SVE of the vector length that the CPU has (``sve128``, ``sve256``, ``sve512``).

    Raises:
        HpcgnnError: if ``HPCGNN_ISA`` names one that is unknown or that this CPU cannot run.
    """
    asked, usable = os.environ.get("HPCGNN_ISA", ""), isas()
    if not asked:
        return usable[-1]
    matching = [name for name in usable if name == asked or (asked == "sve" and name.startswith("sve"))]
    if not matching:
        raise HpcgnnError(f"HPCGNN_ISA={asked}: this machine can run {', '.join(usable)}; unset it, or set one of them")
    return matching[-1]


def multiplies_bf16() -> bool:
    """Return whether there are kernels that multiply bfloat16, by AVX512_BF16."""
    library = load()
    return library is not None and isa() == "avx512" and bool(library.call("hpcgnn_multiplies_bf16"))


@functools.cache
def has_dot_products() -> bool:
    """Return whether there are kernels that add the products of four 8-bit integers by one instruction, for the CPU and the
    instruction set in use. ``HPCGNN_DOT_PRODUCTS=off`` makes it False, to run as on CPUs without these instructions."""
    library = load()
    if library is None or os.environ.get("HPCGNN_DOT_PRODUCTS", "on") == "off":
        return False
    return bool(library.call("hpcgnn_has_dot_products", isa=isa().encode()))


def last_isa() -> str:
    """The instruction set of the native kernel that ran last; empty before the first."""
    library = load()
    return "" if library is None else library.call("hpcgnn_last_isa").decode()


@functools.cache
def segment_entries() -> int:
    """The number of entries of the segments in which rows are summed."""
    return _loaded().call("hpcgnn_segment_entries")


@functools.cache
def function(name: str, dtype: torch.dtype | None = None) -> Callable[..., Any]:
    """The kernel ``name`` for ``dtype`` and the instruction set in use; its arguments have the names of ``native/hpcgnn.h``."""
    return _loaded().function(*_names(name, dtype))


def _names(name: str, dtype: torch.dtype | None) -> tuple[str, str]:
    """The names of a kernel in the header and in the library."""
    typed = name if dtype is None else f"{name}_{_SUFFIX[dtype]}"
    return typed, f"hpcgnn_{isa()}_{typed}"


def bound(name: str, dtype: torch.dtype | None = None, /, **fixed: Any) -> Callable[..., Any]:
    """The same kernel with the arguments ``fixed``, which are checked once and live as long as it. It takes the others by name:
    addresses, unchecked, in place of tensors."""
    library, (typed, symbol) = _loaded(), _names(name, dtype)
    kinds = library.interface.functions[typed][1]
    converted = {
        parameter: kinds[parameter].from_param(value) if isinstance(kinds[parameter], Values) else value
        for parameter, value in fixed.items()
    }
    made = functools.partial(library.function(typed, symbol, takes_addresses=True), **converted)
    vars(made)["fixed"] = fixed
    return made


@contextlib.contextmanager
def called_through(wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Functions of the library that are bound in this context are called through ``wrap(name, function)``, which gives each a
    stand-in with the same arguments by name. Measurements see each call so."""
    library = _loaded()
    library.wrap = wrap
    function.cache_clear()
    try:
        yield
    finally:
        library.wrap = None
        function.cache_clear()


@functools.cache
def struct(name: str) -> type[Struct]:
    """The structure ``name`` of ``native/hpcgnn.h``."""
    return _loaded().interface.structs[name]


@functools.cache
def constant(name: str) -> int:
    """The value of an enumerator of ``native/hpcgnn.h``."""
    return _loaded().interface.constants[name]


def _loaded() -> Library:
    library = load()
    assert library is not None, "the dispatcher calls native kernels only where the library was loaded"
    return library


def native(name: str, dtype: torch.dtype | None = None, /, **arguments: Any) -> Any:
    """Call the kernel ``name`` for ``dtype`` on as many threads as torch uses: ``torch.set_num_threads`` sets both."""
    return function(name, dtype)(threads=torch.get_num_threads(), **arguments)


_NUMBERS: dict[str, Any] = {
    "int": ctypes.c_int, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64, "float": ctypes.c_float, "double": ctypes.c_double,
}  # fmt: skip
_VALUES = {
    "float": torch.float32, "double": torch.float64, "hpcgnn_bfloat16": torch.bfloat16, "int8_t": torch.int8,
    "uint8_t": torch.uint8, "int32_t": torch.int32, "int64_t": torch.int64,
}  # fmt: skip
_TEXT = "char*"
_FUNCTION = re.compile(
    r"(?:HPCGNN_KERNEL\((?P<kind>[^,]+), (?P<kernel>\w+)\)|HPCGNN_API (?P<result>[^(]+?)(?P<name>\w+))\("
)
_STRUCT = re.compile(r"^struct (\w+) \{(.*)\}$")
_ENUM = re.compile(r"^enum \w+ \{((?: \w+,?)+) \}$")
_VARIABLE = re.compile(r"^(?:const )?(\w+)(\*?) (\w+)$")
_STATEMENT = r"\s*([^;{]+(?:\{[^}]*\}[^;]*)?);"
_INPUT = 1  # ctypes' flag of a parameter that is passed


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


class Struct(ctypes.Structure):
    """A structure of the header, made from all its fields by name. Fields that point to values take tensors, and keep them."""

    names: frozenset[str]
    pointers: dict[str, Values]

    def __init__(self, **given: Any) -> None:
        if given.keys() != self.names:
            wrong = sorted(self.names ^ given.keys())
            raise TypeError(f"{type(self).__name__}: these fields are missing or unknown: {wrong}")
        self.tensors = [given[field] for field in self.pointers]
        super().__init__(**given | {field: kind.address(given[field]) for field, kind in self.pointers.items()})


class Interface:
    """The declarations of ``text``.

    Attributes:
        functions: the ctypes type of the result, and those of the parameters by name, of each function of the library; kernels
            have the name that all instruction sets share.
        constants: the values of enumerators.
        structs: structures by name.

    Raises:
        ValueError: naming the part of ``text`` that is not understood.
    """

    def __init__(self, text: str) -> None:
        self.functions: dict[str, tuple[Any, dict[str, Any]]] = {}
        self.constants: dict[str, int] = {}
        self.structs: dict[str, type[Struct]] = {}
        for statement in _statements(text):
            self._read(statement)

    def _read(self, statement: str) -> None:
        if found := _FUNCTION.match(statement):
            name, result = found["kernel"] or found["name"], found["kind"] or found["result"]
            parameters = statement[found.end() : -1]
            variables = (_variable(part) for part in parameters.split(", ")) if parameters else ()
            kind = _variable(f"{result.strip()} result")[1]
            returned = None if kind == "void" else ctypes.c_char_p if kind == _TEXT else _number(kind)
            self.functions[name] = returned, {parameter: self._argument(kind) for parameter, kind in variables}
        elif found := _STRUCT.match(statement):
            self._add_struct(found[1], [_variable(part.strip()) for part in found[2].split(";") if part.strip()])
        elif found := _ENUM.match(statement):
            self.constants |= {name.strip(): value for value, name in enumerate(found[1].split(","))}
        elif not statement.startswith(("typedef", "void hpcgnn_ran")):
            raise ValueError(f"hpcgnn.h: {statement!r} is not understood")

    def _add_struct(self, name: str, fields: list[tuple[str, str]]) -> None:
        pointers = {field: _values(kind) for field, kind in fields if kind.endswith("*")}
        types = [(field, ctypes.c_void_p if field in pointers else _number(kind)) for field, kind in fields]
        names = frozenset(field for field, _ in fields)
        self.structs[name] = type(name, (Struct,), {"_fields_": types, "names": names, "pointers": pointers})

    def _argument(self, kind: str) -> Any:
        if not kind.endswith("*"):
            return _number(kind)
        if kind == _TEXT:
            return ctypes.c_char_p
        struct = self.structs.get(kind[:-1])
        return _values(kind) if struct is None else ctypes.POINTER(struct)


def _statements(text: str) -> list[str]:
    """The declarations, each on one line, without comments, preprocessor lines and the semicolon."""
    text = re.sub(r"//[^\n]*|^#[^\n]*", "", text, flags=re.MULTILINE)
    if re.sub(_STATEMENT, "", text).strip():
        raise ValueError("hpcgnn.h ends in the middle of a declaration")
    return [" ".join(statement.split()) for statement in re.findall(_STATEMENT, text)]


def _variable(text: str) -> tuple[str, str]:
    """The name and type of a variable: ``("x", "float*")`` for ``const float* x``."""
    found = _VARIABLE.match(text)
    if found is None:
        raise ValueError(f"hpcgnn.h: {text!r} is not understood: one variable, and a type as the others have")
    return found[3], found[1] + found[2]


def _number(kind: str) -> Any:
    if kind not in _NUMBERS:
        raise ValueError(f"hpcgnn.h: {kind} is no type that hpcgnn/kernels/library.py knows")
    return _NUMBERS[kind]


def _values(kind: str) -> Values:
    if kind[:-1] not in _VALUES:
        raise ValueError(f"hpcgnn.h: {kind} points to no type that hpcgnn/kernels/library.py knows")
    return Values(_VALUES[kind[:-1]])
