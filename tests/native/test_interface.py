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

from hpcgnn.kernels import library
from hpcgnn.kernels.library import Interface

HEADER = (ROOT / "native" / "hpcgnn.h").read_text()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of native/ with a single kernel, which takes a second to build."""
    folder = tmp_path / "native"
    shutil.copytree(ROOT / "native", folder)
    (folder / "kernels.cpp").write_text('#include "dropout.h"\n')
    return folder


def change(path: Path, before: str, after: str) -> None:
    """Change the first place where ``before`` is, with any white space between its words."""
    words = r"\s+".join(re.escape(word) for word in before.split())
    text, count = re.subn(words, lambda found: after, path.read_text(), count=1)
    assert count == 1
    path.write_text(text)


def build(sources: Path) -> tuple[Path, str]:
    """The library, and what the compiler said if there is none."""
    output = sources.parent / "_native.so"
    output.unlink(missing_ok=True)
    command = [sys.executable, sources / "build.py", "--output", output, "--isas", "scalar", "--flags=-O0"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode == 0) == output.exists()
    return output, "" if output.exists() else result.stderr


def built(sources: Path) -> Path:
    path, said = build(sources)
    assert not said, said
    return path


def call(loaded: library.Library, left_out: str = "", **changes: object) -> torch.Tensor:
    """Call dropout with the arguments of hpcgnn/kernels/activation.py."""
    out = torch.zeros(2, 3)
    arguments = {"rows": 2, "width": 3, "ids": torch.arange(2), "key": 1, "threshold": 0, "scale": 2.0}
    arguments |= {"x": torch.ones(2, 3), "out": out, "threads": 1} | changes
    arguments.pop(left_out, None)
    loaded.function("dropout_f32", "hpcgnn_scalar_dropout_f32")(**arguments)
    return out


@pytest.mark.builds
def test_arguments_are_those_of_the_header(sources: Path) -> None:
    loaded = library.Library(built(sources))
    assert loaded.text == HEADER
    assert call(loaded).tolist() == [[2.0] * 3] * 2
    with pytest.raises(TypeError, match="takes exactly"):
        call(loaded, another=1)
    with pytest.raises(TypeError, match="required argument 'out' missing"):
        call(loaded, left_out="out")
    for wrong in ({"rows": 2.5}, {"rows": "2"}, {"threads": None}, {"x": 4096}, {"x": "x"}):
        with pytest.raises(Exception, match="argument") as caught:
            call(loaded, **wrong)
        assert caught.type.__name__ == "ArgumentError"
    for tensor in (torch.ones(2, 3).double(), torch.ones(2, 3).int(), torch.ones(2, 3, device="meta")):
        with pytest.raises(Exception, match=r"take torch.float32 on the CPU here, not torch\.\w+ on (cpu|meta)"):
            call(loaded, x=tensor)


OTHER_DEFINITIONS = [  # another type, and a name that was not declared
    ("uint32_t threshold, float", "uint64_t threshold, float", "conflicting declaration"),
    ("HPCGNN_KERNEL(void, dropout_f64)", "HPCGNN_KERNEL(void, dropout_f16)", "no previous declaration"),
]


@pytest.mark.builds
def test_a_definition_that_is_not_what_was_declared_does_not_compile(sources: Path) -> None:
    right = (sources / "dropout.h").read_text()
    for before, after, said in OTHER_DEFINITIONS:
        (sources / "dropout.h").write_text(right)
        change(sources / "dropout.h", before, after)
        assert said in build(sources)[1]


@pytest.mark.builds
def test_a_library_of_another_header_is_not_loaded_and_if_it_were_calls_would_raise(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = re.search(r"HPCGNN_KERNEL\(void, dropout_f32\)\([^)]*\)", HEADER)
    assert kernel is not None
    changed = kernel[0].replace("const float* x, float* out", "const double* x, float* out")
    assert changed != kernel[0]
    change(sources / "hpcgnn.h", kernel[0], changed)
    (sources / "kernels.cpp").write_text(f'#include "hpcgnn.h"\n{changed} {{}}\n')
    path = built(sources)
    with pytest.raises(ValueError, match=r"_native.so was built from another native/hpcgnn.h: run setup.py"):
        library.Library(path)
    monkeypatch.setattr(library, "_HERE", path)  # as in an installed package, which has no native/
    loaded = library.Library(path)
    with pytest.raises(Exception, match="argument"):
        call(loaded)


@pytest.mark.builds
def test_a_struct_whose_size_is_another_one_is_not_loaded(sources: Path) -> None:
    change(sources / "isa.cpp", "sizeof(hpcgnn_csr)", "sizeof(hpcgnn_csr) + 8")
    with pytest.raises(ValueError, match="hpcgnn_csr has 64 bytes, not 56 as here"):
        library.Library(built(sources))


def test_a_library_of_another_kind_is_not_loaded(tmp_path):
    other, nothing = tmp_path / "other.so", tmp_path / "nothing.so"
    subprocess.run(["c++", "-shared", "-x", "c++", "-", "-o", str(other)], input="", text=True, check=True)
    nothing.write_text("no library")
    for path in (other, nothing):
        with pytest.raises(ValueError, match=f"{path.name} is no library of this version"):
            library.Library(path)


def test_structures_take_all_their_fields_and_tensors_of_their_types():
    make = Interface(HEADER).structs["hpcgnn_csr"]
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


UNKNOWN = [
    ("HPCGNN_KERNEL(void, f)(size_t count);", "size_t is no type"),
    ("HPCGNN_KERNEL(void, f)(const char16_t* x);", "points to no type"),
    ("HPCGNN_KERNEL(void, f)(int64_t);", "one variable"),
    ("HPCGNN_KERNEL(void, f)(float x[4]);", "one variable"),
    ("struct s { int a, b; };", "one variable"),
    ("struct s { int a : 3; };", "one variable"),
    ("enum e { A = 3 };", "is not understood"),
    ("HPCGNN_API int hpcgnn_f(int a);\nint other(int a);", "'int other.*' is not understood"),
    ("HPCGNN_API int hpcgnn_f(int a)", "ends in the middle"),
]


def test_what_cannot_be_read_is_refused():
    for text, said in UNKNOWN:
        with pytest.raises(ValueError, match=f"hpcgnn.h.*{said}"):
            Interface(text)
