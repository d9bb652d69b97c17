"""Builds the native kernels; all else about the package is in setup.cfg, which cannot declare an optional library."""

from __future__ import annotations

import ctypes
import shutil
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
        if not self.force and is_fresh(built):
            if output != built:
                output.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(built, output)
            return
        try:
            build(output)
        except Exception:
            print("hpcgnn: warning: the native kernels did not compile and are left out; numba is used instead")
            raise


def is_fresh(library: Path) -> bool:
    """Whether it is newer than all that it is made of, and for this machine."""
    made_of = [*sources(), folder / "native" / "build.py"]
    if not library.exists() or library.stat().st_mtime < max(path.stat().st_mtime for path in made_of):
        return False
    try:
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


folder = Path(__file__).parent.resolve()
native = Extension(
    "hpcgnn.kernels._native",
    sources=[str(path.relative_to(folder)) for path in sources() if path.suffix == ".cpp"],
    depends=[str(path.relative_to(folder)) for path in sources()],
    language="c++",
    optional=True,
)

setup(ext_modules=[native], cmdclass={"build_ext": BuildNative})
