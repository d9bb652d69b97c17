"""Arguments of public Python functions: of another type, shape, dtype, device or layout, or out of range.

One argument at a time is replaced in a correct call. The call must end with :class:`hpcgnn.HpcgnnError`, whose sentence names
the argument, or it must be correct as well: a kernel's result is then compared with that of the reference backend.
"""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from campaign.bad_input.public import CALLS, Call
from campaign.mutations.case import Case
from campaign.mutations.fork import Task
from campaign.mutations.mutation import FREE, Mutation
from campaign.mutations.readers import Reader, called
from hpcgnn.base.errors import HpcgnnError

_GROUP = "arguments of Python functions"
_FILE = "call.json"
_PLAIN: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "3": lambda: 3,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "-2**63 - 1": lambda: -(2**63) - 1,
    "10**400": lambda: 10**400,
    "2.5": lambda: 2.5,
    "-0.5": lambda: -0.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "1e-320": lambda: 1e-320,
    "1j": lambda: 1j,
    "numpy.int64(1)": lambda: np.int64(1),
    "numpy.float32(nan)": lambda: np.float32("nan"),
    "a text": lambda: "x",
    "an empty text": lambda: "",
    "a text with a NUL": lambda: "a\0b",
    "a long text": lambda: "x" * 100_000,
    "a surrogate": lambda: "\udcff",
    "bytes": lambda: b"auto",
    "a list": lambda: [1, 2],
    "a list of lists": lambda: [[1.0], []],
    "a tuple": lambda: (0.1, 0.2),
    "a dictionary": lambda: {"a": 1},
    "an object": object,
    "a class": lambda: int,
    "a function": lambda: len,
    "a path": lambda: Path("no/such/file"),
    "an array": lambda: np.ones((3, 4), np.float32),
    "an array of objects": lambda: np.array([None, "x"], object),
    "a tensor": lambda: torch.ones(3, 4),
    "an empty tensor": lambda: torch.zeros(0),
    "a number as a tensor": lambda: torch.tensor(1.0),
    "a dtype": lambda: torch.float16,
    "a device": lambda: torch.device("meta"),
}
_OF_TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    **{f"as {name}": functools.partial(lambda kind, t: t.to(kind), getattr(torch, name)) for name in (
        "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool", "complex64")},
    "without its last row": lambda t: t[:-1],
    "twice": lambda t: torch.cat([t, t]),
    "with an axis more in front": lambda t: t[None],
    "with an axis more behind": lambda t: t[..., None],
    "flat": lambda t: t.reshape(-1),
    "without rows": lambda t: t[:0],
    "without columns": lambda t: t[..., :0],
    "half of its columns": lambda t: t[..., ::2],
    "turned": lambda t: t.T if t.ndim == 2 else t.flip(0),
    "laid out by columns": lambda t: t.T.contiguous().T if t.ndim == 2 else t.repeat_interleave(2)[::2],
    "one row again and again": lambda t: t[:1].expand(t.shape),
    "from inside another": lambda t: torch.cat([t[:1], t])[1:],
    "of NaN": lambda t: torch.full_like(t, math.nan) if t.is_floating_point() else t - 1000,
    "of infinity": lambda t: torch.full_like(t, math.inf) if t.is_floating_point() else t + 2**30,
    "of 1e38": lambda t: torch.full_like(t, 1e38) if t.is_floating_point() else t * 0 - 1,
    "of denormals": lambda t: torch.full_like(t, 1e-40) if t.is_floating_point() else t * 0 + 5,
    "of -2^62": lambda t: torch.full(t.shape, -(2**62)),
    "of 2^40": lambda t: torch.full(t.shape, 2**40),
    "sparse": lambda t: t.to_sparse(),
    "as CSR": lambda t: t.to_sparse_csr() if t.ndim == 2 else t.to_sparse(),
    "on another device": lambda t: t.to("meta"),
    "with a gradient": lambda t: t.clone().float().requires_grad_(),
    "as a parameter": lambda t: torch.nn.Parameter(t.float()),
    "as an array": lambda t: t.float().numpy(),
    "as a list": lambda t: t.tolist(),
    "a conjugate": lambda t: t.to(torch.complex64).conj(),
    "a negative view": lambda t: torch._neg_view(t),
}  # fmt: skip


def tasks(inputs: Path) -> list[Task]:
    """The tasks of this group."""
    found = []
    for name, call in CALLS.items():
        case = _case(name, call)
        for argument in call.arguments:
            values = [*_PLAIN, *(_OF_TENSORS if argument in call.tensors else ())]
            if argument == "world":
                values.remove("None")  # all ranks of MPI, which takes memory
            if argument == "on_epoch":
                values.remove("a class")  # calling it raises its own error
            found += [_task(case, name, call, argument, value) for value in values]
    return found


def _case(name: str, call: Call) -> Case:
    def run() -> int:
        return called(
            lambda: _within_memory(call, json.loads(Path(_FILE).read_text()) if Path(_FILE).exists() else None)
        )

    return Case("arguments", Reader(name, run, lambda: "", reads_files=False), call.copies, _FILE, ())


def _task(case: Case, name: str, call: Call, argument: str, value: str) -> Task:
    def give(folder: Path) -> Mutation:
        (folder / _FILE).write_text(json.dumps([argument, value]))
        # Each of two arguments that do not fit each other is correct by itself.
        names = call.arguments if argument in call.tensors or argument.startswith("num_") else (argument,)
        options = [name.replace("_", "-") for name in names]  # an option that a command has too is named as there
        return Mutation(f"{argument} is {value}", FREE, names=(*names, *options, *call.words, "memory"))

    return Task(case, f"{name}({argument}: {value})", give, _GROUP)


def _within_memory(call: Call, told: list[str] | None) -> None:
    """Make the call. If it asks for more memory than there is, torch's or Python's own error counts as a sentence, because
    torch itself raises it as well.
    """
    try:
        _call(call, told)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise HpcgnnError("out of memory") from error
        raise


def _call(call: Call, told: list[str] | None) -> None:
    function, arguments = call.make()
    if told is not None:
        argument, value = told
        with warnings.catch_warnings():  # torch warns of tensors of recently added kinds
            warnings.simplefilter("ignore")
            made = _OF_TENSORS[value](call.tensors[argument]()) if value in _OF_TENSORS else _PLAIN[value]()
        arguments[argument] = made
    kept = {
        name: each.clone() if name == "out" and isinstance(each, torch.Tensor) else each
        for name, each in arguments.items()
    }
    result = function(**arguments)
    if call.has_reference and arguments.get("backend", "auto") != "reference":
        _compare(result, function(**kept | {"backend": "reference"}))
    if isinstance(result, torch.Tensor) and result.requires_grad:
        result.float().sum().backward()


def _compare(result: torch.Tensor, reference: torch.Tensor) -> None:
    assert (result.dtype, result.shape) == (reference.dtype, reference.shape), "not the type and shape of the reference"
    alike = torch.allclose(result.double(), reference.double(), rtol=1e-4, atol=1e-5, equal_nan=True)
    assert alike or result.is_complex(), f"{result} is not the reference's {reference}"
