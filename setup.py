"""Builds the native kernels; all else about the package is in setup.cfg, which cannot declare an optional library."""

from __future__ import annotations

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
        """Compile and link; setuptools goes on after a failure because the extension is optional."""
        try:
            build(Path(self.get_ext_fullpath(ext.name)))
        except Exception:
            print("hpcgnn: warning: the native kernels did not compile and are left out; numba is used instead")
            raise


folder = Path(__file__).parent
native = Extension(
    "hpcgnn.kernels._native",
    sources=[str(path.relative_to(folder.resolve())) for path in sources() if path.suffix == ".cpp"],
    depends=[str(path.relative_to(folder.resolve())) for path in sources()],
    language="c++",
    optional=True,
)

setup(ext_modules=[native], cmdclass={"build_ext": BuildNative})
