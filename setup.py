"""Builds the native kernels; all else about the package is in setup.cfg, which cannot declare an optional library."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent / "native"))
from build import build, sources  # a build backend does not put this folder on the path


class BuildNative(build_ext):
    """Compiles native/ to a plain shared library, and lets the installation succeed without it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Leave the Python version out of the file's name: the library has a C ABI and does not link Python."""
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compile and link, or take what is there; setuptools goes on after a failure because the extension is optional.

        A second environment, or a second installation into one, needs no build of its own.
        """
        output, built = Path(self.get_ext_fullpath(ext.name)).resolve(), folder / self.get_ext_filename(ext.name)
        if self.force or not is_fresh(built):
            try:
                build(built)
            except Exception:
                print("hpcgnn: warning: the native kernels did not compile and are left out; numba is used instead")
                raise
            STAMP.parent.mkdir(exist_ok=True)
            STAMP.write_text(made_of())
        if output != built:
            output.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, output)


def made_of() -> str:
    """What a build depends on: a digest of the sources, and the compiler."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    compiler = shlex.split(os.environ.get("CXX", "") or "c++")
    try:
        version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        version = "no compiler"
    return f"{digest.hexdigest()}\n{platform.machine()}\n{shlex.join(compiler)}\n{version}"


def is_fresh(library: Path) -> bool:
    """Whether it is there and what would be built now."""
    return library.exists() and STAMP.exists() and STAMP.read_text() == made_of()


folder = Path(__file__).parent.resolve()
STAMP = folder / "build" / "native-kernels.txt"  # of the library in this folder
native = Extension(
    "hpcgnn.kernels._native",
    sources=[str(path.relative_to(folder)) for path in sources() if path.suffix == ".cpp"],
    depends=[str(path.relative_to(folder)) for path in sources()],
    language="c++",
    optional=True,
)

setup(ext_modules=[native], cmdclass={"build_ext": BuildNative})
