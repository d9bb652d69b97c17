"""Every wrong argument is refused with a sentence that begins with its name, before compiled code reads any memory."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from hpcgnn import HpcgnnError, kernels
from hpcgnn.kernels import Csr, DropoutMask, Norm, dense, edges, int8, messages
from hpcgnn.kernels.autograd import layer_activation, layer_product
from hpcgnn.kernels.csr import Csr as Matrix
from hpcgnn.kernels.int8 import MOST_TERMS, Int8Rows, quantize_rows
from hpcgnn.kernels.rows import cluster
from hpcgnn.kernels.spmm import add_rows, multiply

INDPTR, INDICES = torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2])
CSR = Csr(INDPTR, INDICES, 3)
A, X, WIDE = torch.ones(2, 4), torch.ones(3, 4), torch.ones(4, 5)
OF_ENTRIES, OF_COLUMNS, BYTES = torch.ones(3), torch.ones(4), torch.zeros(32, dtype=torch.uint8)
LEAF = torch.ones(3, 4, requires_grad=True)
INT8, NO_NUMBERS = X.to(torch.int8), [None, "x", object(), float("nan")]
ROWS, PLACES = quantize_rows(X), torch.arange(3) * 8
NEGATED = torch.complex(X, -X).conj().imag  # a view that torch negates later
LONG = quantize_rows(torch.ones(1, MOST_TERMS + 1))
ONE = Csr(torch.tensor([0, 1]), torch.tensor([0]), 1)


@dataclass
class Call:
    """A function and arguments that are right. wrong: for each argument the values that are refused under its name; a dictionary
    has the values of several arguments."""

    function: Callable[..., object]
    right: dict[str, Any]
    wrong: dict[str, list[Any]] = field(default_factory=dict)

    def refused(self) -> list[tuple[str, dict[str, Any]]]:
        """The name that each error must begin with, and the changed arguments."""
        return [
            (name, value if isinstance(value, dict) else {name: value})
            for name, values in self.wrong.items()
            for value in values
        ]


def activated(of: Callable[..., object], **given: Any) -> object:
    """An activation, with the parts of its norm and its mask as arguments."""
    norm = Norm(given["weight"], given["bias"], given["eps"])
    return of(given["x"], norm, DropoutMask(given["ids"], 3, given["probability"]))


OF_ACTIVATION = {
    "x": X,
    "weight": OF_COLUMNS,
    "bias": OF_COLUMNS,
    "eps": 1e-5,
    "ids": torch.arange(3),
    "probability": 0.5,
}
WRONG_OF_ACTIVATION = {
    "x": [X.half(), NEGATED],
    "weight": [OF_COLUMNS[:3]],
    "bias": [OF_COLUMNS[:3], OF_COLUMNS.double()],
    "ids": [torch.arange(2)],
}
OF_PRODUCT = {"x": X, "weight": WIDE}
OF_WIRE = {"bits": 2, "buffer": BYTES, "payload_at": PLACES, "params_at": PLACES + 4}
WRONG_OF_WIRE = {
    "bits": [3],
    "buffer": [BYTES.float(), BYTES.view(4, 8), torch.zeros(64, dtype=torch.uint8)[::2]],
    "payload_at": [PLACES[:2], PLACES.int(), torch.arange(6)[::2], PLACES + 16, PLACES - 1],
    "params_at": [torch.tensor([0, 1, 29]), PLACES - 4, torch.arange(5), None],
}
WRONG_ROWS = [torch.tensor([0, 1, 3]), torch.tensor([0, -1, 2]), torch.arange(3.0)]
SHARED = torch.zeros(48, dtype=torch.uint8)
CALLS = {
    "Csr": Call(Csr, {"indptr": INDPTR, "indices": INDICES, "num_cols": 3}, {
        "indptr": ["x", object(), {"indptr": torch.tensor([1, 1, 3])}, {"indptr": torch.tensor([0, 4, 3])}],
        "indices": ["x", object(), INDICES + 1, -INDICES, INDICES / 2], "num_cols": ["x", object(), [[1.0], []]],
        "weight": ["x", object(), [[1.0], []], X.to_sparse()],
    }),
    "spmm": Call(kernels.spmm, {"csr": CSR, "x": X}, {
        "x": [X[:2], X[None], X.half(), X.long(), X.to("meta"), NEGATED, LEAF.bfloat16(),
              {"x": X.bfloat16(), "weight": LEAF[:, 0]}],
        "weight": [torch.ones(4), torch.ones(3).long(), X[:, :3]],
        "out": [torch.ones(5, 4), A.double(), torch.ones(4, 2).T, {"x": LEAF, "out": A}, {"out": LEAF[:2]}],
        "reduce": ["max", A, 10**5000], "accumulate": [None, "", 1, X],
        "scale": [torch.ones(3), {"x": INT8}, {"x": INT8, "scale": LEAF[:, 0]}],
        "csr.weight": [{"csr": CSR.with_weight(LEAF[:, 0])}],
    }),
    "spmm in place": Call(kernels.spmm, {"csr": Csr([0, 1, 2], [0, 1], 2), "x": A, "out": A.clone()}, {
        "out": [{"out": A}],
    }),
    "multiply": Call(multiply, {"csr": CSR, "x": X}, {
        "out": [torch.ones(2, 3), X, A.bfloat16(), torch.ones(2, 8)[:, ::2]], "x": [X.to("meta"), X[:2], torch.ones(4, 4)],
    }),
    "sddmm": Call(kernels.sddmm, {"csr": CSR, "a": A, "b": X}, {
        "a": [X, A.long()], "b": [X[:, :3], X.double()], "op": ["mul"],
        "heads": [3, 0, 2.5, np.ones(3), {"op": "add", "heads": 2}],
    }),
    "edge_softmax": Call(kernels.edge_softmax, {"csr": CSR, "scores": OF_ENTRIES}, {
        "scores": [torch.ones(2), X[:, None], OF_ENTRIES.bfloat16()],
    }),
    "edge_softmax_backward": Call(edges.edge_softmax_backward,
        {"csr": CSR, "alpha": OF_ENTRIES, "gradient": OF_ENTRIES}, {"gradient": [torch.ones(2)]}),
    "edge_sum": Call(kernels.edge_sum, {"csr": CSR, "values": OF_ENTRIES}, {"values": [A]}),
    "attention_weights": Call(kernels.attention_weights, {"csr": CSR, "a": A, "b": X, "slope": 0.2}, {
        "slope": [10**400, *NO_NUMBERS, True],
    }),
    "repeat_rows": Call(edges.repeat_rows, {"csr": CSR, "a": A}, {"a": [X]}),
    "gather_rows": Call(kernels.gather_rows, {"x": X, "index": torch.tensor([0])}, {
        "index": [torch.tensor(wrong) for wrong in ([3], [-1], [0.0], [[0]])],
        "x": [torch.tensor(1.0), LEAF.bfloat16()],
    }),
    "scatter_rows": Call(kernels.scatter_rows, {"index": torch.tensor([0, 1]), "src": A, "num_rows": 3}, {
        "index": [torch.tensor(wrong) for wrong in ([0, 0], [0, 3], [0])], "num_rows": [2.5, "3", None, True],
    }),
    "add_rows": Call(add_rows, {"index": torch.tensor([0, 0]), "src": A, "num_rows": 3}, {
        "index": [torch.tensor(wrong) for wrong in ([0, 3], [0, -1], [0], [0.0, 1.0])],
    }),
    "cluster": Call(cluster, {"index": torch.tensor([0, 4]), "num_rows": 5}, {
        "index": [torch.tensor([0, 5])], "num_rows": [{"index": torch.zeros(0, dtype=torch.int32), "num_rows": -1}],
    }),
    "activation": Call(lambda **given: activated(kernels.activation, **given), OF_ACTIVATION, WRONG_OF_ACTIVATION | {
        "probability": [1.0, *NO_NUMBERS], "eps": NO_NUMBERS, "weight": NO_NUMBERS,
    }),
    "layer_activation": Call(lambda **given: activated(layer_activation, **given), OF_ACTIVATION, WRONG_OF_ACTIVATION),
    "dense_product": Call(kernels.dense_product, OF_PRODUCT, {
        "x": [X.int()], "weight": [WIDE.T, WIDE.double()], "bias": [OF_COLUMNS], "plus": [torch.ones(3, 5).double()],
        "compute": ["int8", {"backend": "reference", "compute": "bf16"},
                    {"x": X.double(), "weight": WIDE.double(), "compute": "bf16"}],
    }),
    "layer_product": Call(layer_product, OF_PRODUCT, {
        "x": [X.bfloat16(), NEGATED], "weight": [WIDE[1:]], "bias": [OF_COLUMNS, torch.ones(5).double()],
    }),
    "weight_gradient": Call(dense.weight_gradient, {"x": X, "dy": X}, {
        "dy": [X[1:]], "compute": [{"backend": "jit", "compute": "bf16"}],
    }),
    "pack_bf16": Call(kernels.pack_bf16, {"x": X}, {
        "x": [X.double()], "factor": [X[:, :1], torch.ones(4), torch.ones(3).double()],
    }),
    "unpack_bf16": Call(kernels.unpack_bf16, {"x": X.bfloat16()}, {"x": [X]}),
    "dropout": Call(kernels.dropout, {"x": X, "ids": torch.arange(3), "key": 0, "probability": 0.5}),
    "quantize_rows": Call(quantize_rows, {"x": X}, {
        "x": [X.double(), X[:, 0]], "key": [-1], "factor": [OF_COLUMNS, X[:, 0].double()],
    }),
    "int8.product": Call(int8.product, {"x": ROWS, "weight": WIDE}, {
        "weight_key": [2**64], "weight": [WIDE.double(), WIDE[1:]], "bias": [OF_COLUMNS, ROWS.codes[0]],
        "out": [X, torch.ones(5, 3).T], "x.codes": [{"x": Int8Rows(X, ROWS.scale)}],
        "x.scale": [{"x": Int8Rows(ROWS.codes, OF_COLUMNS)}],
        "int32 holds the sum": [{"x": LONG, "weight": torch.ones(MOST_TERMS + 1, 1)}],
    }),
    "int8.weight_gradient": Call(int8.weight_gradient, {"x": ROWS, "dy": X}, {
        "key": [2**64], "dy": [X.double(), X[:2]], "x.codes": [{"x": Int8Rows(ROWS.codes.T, torch.ones(4))}],
    }),
    "int8.sddmm": Call(int8.sddmm, {"csr": Csr(torch.arange(4), torch.arange(3), 3), "a": ROWS, "b": ROWS}, {
        "a.codes": [{"a": Int8Rows(X, ROWS.scale)}], "b.scale": [{"b": Int8Rows(ROWS.codes, OF_COLUMNS)}],
        "a": [{"csr": CSR}], "heads": [3, 0], "int32 holds the sum": [{"csr": ONE, "a": LONG, "b": LONG}],
    }),
    "int8.sddmm of long rows": Call(int8.sddmm, {"csr": ONE, "a": LONG, "b": LONG, "heads": 5}),  # a head has a limit
    "encode_rows": Call(messages.encode_rows, OF_WIRE | {"x": X, "rows": torch.arange(3), "key": 7}, WRONG_OF_WIRE | {
        "rows": WRONG_ROWS, "x": [X.double(), WIDE.T, OF_COLUMNS,
                                  {"buffer": SHARED, "x": SHARED.view(torch.float32).view(3, 4)}],
        "key": [-1, 2**64],
    }),
    "encode_rows without checks": Call(messages.encode_rows,
        OF_WIRE | {"x": X, "rows": torch.arange(3), "key": 7, "check": False}, {"payload_at": [torch.arange(2)]}),
    "decode_rows": Call(messages.decode_rows, OF_WIRE | {"out": X.clone(), "rows": torch.arange(3)}, WRONG_OF_WIRE | {
        "rows": [*WRONG_ROWS, torch.tensor([0, 2, 2])],
        "out": [X.double(), torch.ones(4, 3).T, {"buffer": SHARED, "out": SHARED.view(torch.float32).view(3, 4)}],
    }),
    "spmm_rows": Call(messages.spmm_rows, OF_WIRE | {"csr": CSR, "out": A.clone(), "num_columns": 4}, WRONG_OF_WIRE | {
        "out": [A.double(), torch.ones(4, 2).T, X, {"num_columns": 2}], "payload_at": [{"csr": Csr(INDPTR, INDICES, 5)}],
        "csr.weight": [{"csr": CSR.with_weight(OF_ENTRIES.double())}],
    }),
}  # fmt: skip
TENSORS = {
    "csr", "x", "weight", "out", "scale", "bias", "plus", "factor", "index", "src", "a", "b", "scores", "values", "ids",
}  # fmt: skip
NO_TENSORS = ["x", 3, np.ones((3, 4), np.float32), [[1.0]], X.to_sparse()]
NO_BACKENDS = [3, None, ["a"], "no", torch.float16, np.ones(3)]


def is_public(call: Call) -> bool:
    return (
        getattr(kernels, getattr(call.function, "__name__", ""), None) is call.function and call.function is not Matrix
    )


def complaint(call: Call, name: str, changes: dict[str, Any], kind: type[Exception]) -> str | None:
    """A sentence about the error that a call raises, or None."""
    try:
        call.function(**(call.right | changes))
    except kind as error:
        said = str(error)
        is_right = isinstance(error, HpcgnnError) and re.match(rf"{re.escape(name)}\b", said)
        return None if is_right and "\n" not in said and len(said) < 400 else f"{name}: {said}"
    return f"{name}: nothing was said of {changes}"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_wrong_arguments_are_refused_by_name(call):
    call.function(**call.right)
    found = [complaint(call, name, changes, HpcgnnError) for name, changes in call.refused()]
    if is_public(call):
        for name, parameter in inspect.signature(call.function).parameters.items():
            if name in TENSORS:
                none = [None] if parameter.default is parameter.empty else []
                found += [complaint(call, name, {name: wrong}, TypeError) for wrong in [*none, *NO_TENSORS]]
        found += [complaint(call, "backend", {"backend": wrong}, HpcgnnError) for wrong in NO_BACKENDS]
    assert [each for each in found if each] == []
