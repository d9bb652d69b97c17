"""Builds the native kernels; all else about the package is in setup.cfg, which cannot declare an optional library."""

from __future__ import annotations

from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# No -march: the library must run on every CPU of its architecture. No contraction into fused multiply-adds: every
# compiler must give the same bits as numba does.
COMPILE_FLAGS = ["-O3", "-std=c++17", "-fopenmp", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden"]


class BuildNative(build_ext):
    """Compiles native/ to a plain shared library, and lets the installation succeed without it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Leave the Python version out of the file's name: the library has a C ABI and does not link Python."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Ask for no ``PyInit`` function: ctypes loads the library."""
        return ext.export_symbols

    def build_extension(self, ext: Extension) -> None:
        """Compile and link; setuptools goes on after a failure because the extension is optional."""
        try:
            super().build_extension(ext)
        except Exception:
            print("hpcgnn: warning: the native kernels did not compile and are left out; numba is used instead")
            raise


native = Extension(
    "hpcgnn.kernels._native",
    sources=sorted(glob("native/*.cpp")),
    depends=[*sorted(glob("native/*.h")), "setup.py"],
    extra_compile_args=COMPILE_FLAGS,
    extra_link_args=["-fopenmp"],
    language="c++",
    optional=True,
)

setup(ext_modules=[native], cmdclass={"build_ext": BuildNative})
