"""A changed signature makes the build or the load fail, or raises an error: no call with wrong arguments reaches memory."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from native_program import ROOT

from hpcgnn.kernels.native import library
from hpcgnn.kernels.native.interface import Interface

HEADER = (ROOT / "native" / "hpcgnn.h").read_text()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of native/ with a single kernel, which takes seconds to build."""
    folder = tmp_path / "native"
    shutil.copytree(ROOT / "native", folder)
    (folder / "kernels.cpp").write_text('#include "dropout.h"\n')
    return folder


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def build(sources: Path) -> tuple[Path | None, str]:
    """The library, or None, and the output of the compiler."""
    output = sources.parent / "_native.so"
    command = [sys.executable, sources / "build.py", "--output", output, "--isas", "scalar", "--flags=-O0"]
    result = subprocess.run(command, capture_output=True, text=True)
    return (output if result.returncode == 0 else None), result.stderr


def call(loaded: library.Library, **changes: object) -> torch.Tensor:
    """Call dropout on empty tensors, with the arguments of hpcgnn/kernels/native/dropout.py."""
    x, out = torch.ones(2, 3), torch.zeros(2, 3)
    arguments = {
        "rows": 2,
        "width": 3,
        "ids": torch.arange(2),
        "key": 1,
        "threshold": 0,
        "scale": 2.0,
        "x": x,
        "out": out,
    }
    loaded.function("dropout_f32", "hpcgnn_scalar_dropout_f32")(**arguments | {"threads": 1} | changes)
    return out


@pytest.mark.builds
def test_arguments_are_those_of_the_header(sources):
    built, said = build(sources)
    assert built is not None, said
    loaded = library.Library(built)
    assert loaded.text == HEADER
    assert call(loaded).tolist() == [[2.0] * 3] * 2
    with pytest.raises(TypeError, match="takes exactly"):
        call(loaded, another=1)
    with pytest.raises(TypeError, match="required argument 'out' missing"):
        loaded.function("dropout_f32", "hpcgnn_scalar_dropout_f32")(rows=2, width=3, ids=None, key=1, threshold=0,
                                                                    scale=2.0, x=None, threads=1)  # fmt: skip
    for wrong in ({"rows": 2.5}, {"rows": "2"}, {"threads": None}, {"x": 4096}, {"x": "x"}):
        with pytest.raises(Exception, match="argument") as caught:
            call(loaded, **wrong)
        assert caught.type.__name__ == "ArgumentError"
    for tensor in (torch.ones(2, 3).double(), torch.ones(2, 3).int(), torch.ones(2, 3, device="meta")):
        with pytest.raises(Exception, match=r"take torch.float32 on the CPU here, not torch\.\w+ on (cpu|meta)"):
            call(loaded, x=tensor)


@pytest.mark.builds
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("uint32_t threshold,", "uint64_t threshold,"),  # another type
        ("const int64_t* ids,", "const int32_t* ids,"),  # another type behind a pointer
        ("uint64_t key, ", ""),  # one argument less
    ],
)
def test_a_definition_that_is_not_what_was_declared_does_not_compile(sources, before, after):
    definitions = sources / "dropout.h"
    head, kernel, tail = definitions.read_text().partition("HPCGNN_KERNEL(void, dropout_f32)")
    assert before in tail
    definitions.write_text(head + kernel + tail.replace(before, after, 1))
    built, said = build(sources)
    assert built is None
    assert "conflicting declaration" in said


@pytest.mark.builds
def test_a_kernel_that_was_not_declared_does_not_compile(sources):
    change(sources / "dropout.h", "HPCGNN_KERNEL(void, dropout_f64)", "HPCGNN_KERNEL(void, dropout_f16)")
    built, said = build(sources)
    assert built is None
    assert "no previous declaration" in said


@pytest.mark.builds
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "int64_t rows, int64_t width, const int64_t* ids",
            "int64_t count, int64_t width, const int64_t* ids",
        ),  # a name
        ("uint32_t threshold,\n", "uint32_t threshold, int extra,\n"),  # one argument more
        ("const float* x, float* out, int threads", "const double* x, float* out, int threads"),  # another type
    ],
)
def test_a_library_of_another_header_is_not_loaded_and_if_it_were_calls_would_raise(
    sources, before, after, monkeypatch
):
    for name in ("hpcgnn.h", "dropout.h"):
        head, kernel, tail = (sources / name).read_text().partition("HPCGNN_KERNEL(void, dropout_f32)")
        before_here = re.sub(r"\s+", r"\\s+", re.escape(before).replace("\\\n", " ").replace("\\ ", " "))
        changed, count = re.subn(before_here, after, tail, count=1)
        assert count == 1
        (sources / name).write_text(head + kernel + changed)
    body = {"count": "const int64_t rows = count;", "double* x": "const float* y = nullptr;"}
    used = next((line for name, line in body.items() if name in after), "")
    call_of = "dropout_rows(rows, width, ids, key, threshold, scale, x, out, threads);"
    changed_call = call_of.replace(" x,", " y,") if "double" in after else call_of
    text = (sources / "dropout.h").read_text()
    (sources / "dropout.h").write_text(text.replace(call_of, f"{used} {changed_call}", 1))
    built, said = build(sources)
    assert built is not None, said
    with pytest.raises(ValueError, match=r"_native.so was built from another native/hpcgnn.h: run setup.py"):
        library.Library(built)
    monkeypatch.setattr(library, "_HERE", built)  # as in an installed package, which has no native/
    loaded = library.Library(built)
    with pytest.raises(Exception, match=r"argument|takes exactly"):
        call(loaded)


@pytest.mark.builds
def test_a_struct_whose_size_is_another_one_is_not_loaded(sources):
    change(sources / "isa.cpp", "sizeof(hpcgnn_csr)", "sizeof(hpcgnn_csr) + 8")
    built, said = build(sources)
    assert built is not None, said
    with pytest.raises(ValueError, match="hpcgnn_csr has 64 bytes, not 56 as here"):
        library.Library(built)


def test_a_library_of_another_kind_is_not_loaded(tmp_path):
    other, nothing = tmp_path / "other.so", tmp_path / "nothing.so"
    subprocess.run(["c++", "-shared", "-x", "c++", "-", "-o", str(other)], input="", text=True, check=True)
    nothing.write_text("no library")
    for path in (other, nothing):
        with pytest.raises(ValueError, match=f"{path.name} is no library of this version"):
            library.Library(path)


def test_what_is_declared_is_there_for_every_instruction_set():
    loaded = library.load()
    kernels = [name for name in loaded.interface.functions if not name.startswith("hpcgnn_")]
    assert len(kernels) > 30
    for isa in library.isas():
        has_dot_products = loaded.call("hpcgnn_has_dot_products", isa=isa.encode())
        for name in kernels:
            is_of_some = name.endswith("_bf16") and name.startswith("dense")
            if not is_of_some and (has_dot_products or not name.endswith("_dot")):
                loaded.function(name, f"hpcgnn_{isa}_{name}")


def test_structures_take_all_their_fields_and_tensors_of_their_types():
    make = Interface(HEADER).struct("hpcgnn_csr")
    fields = {"rows": 1, "indptr": torch.zeros(2, dtype=torch.int64), "indices": None, "heavy": None}
    fields |= {"num_heavy": 0, "hot_indices": None, "num_hot": 0}
    made = make(**fields)
    assert (made.rows, made.indptr, made.indices) == (1, fields["indptr"].data_ptr(), None)
    with pytest.raises(TypeError, match=r"hpcgnn_csr: .* missing or unknown: \['num_hot'\]"):
        make(**{name: value for name, value in fields.items() if name != "num_hot"})
    with pytest.raises(TypeError, match=r"missing or unknown: \['last_row'\]"):
        make(**fields, last_row=1)
    with pytest.raises(TypeError, match=r"take torch.int64 on the CPU here, not torch.int32"):
        make(**fields | {"indptr": torch.zeros(2, dtype=torch.int32)})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("HPCGNN_KERNEL(void, f)(size_t count);", "size_t is no type"),
        ("HPCGNN_KERNEL(void, f)(const char16_t* x);", "points to no type"),
        ("HPCGNN_KERNEL(void, f)(int64_t);", "one variable"),
        ("HPCGNN_KERNEL(void, f)(float x[4]);", "one variable"),
        ("struct s { int a, b; };", "one variable"),
        ("struct s { int a : 3; };", "one variable"),
        ("enum e { A = 3 };", "is not understood"),
        ("HPCGNN_API int hpcgnn_f(int a);\nint other(int a);", "'int other.*' is not understood"),
        ("HPCGNN_API int hpcgnn_f(int a)", "ends in the middle"),
    ],
)
def test_what_cannot_be_read_is_refused(text, said):
    with pytest.raises(ValueError, match=f"hpcgnn.h.*{said}"):
        Interface(text)
