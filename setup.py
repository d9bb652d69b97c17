"""Builds the native kernels. All other metadata of the package is in setup.cfg, which cannot declare an optional library."""

from __future__ import annotations

import hashlib
import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent / "native"))
from build import build, sources  # a build backend does not put this folder on the path


class BuildNative(build_ext):
    """Compiles native/ to a plain shared library; the installation succeeds even if this fails."""

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


class AnyPython(bdist_wheel):
    """Makes one wheel for all versions of Python: the native library has a C ABI and links neither Python nor MPI."""

    def get_tag(self) -> tuple[str, str, str]:
        """The tag of the wheel, without a version of Python."""
        return "py3", "none", super().get_tag()[2]


class WithJobsAndCommit(build_py):
    """Copies the package, adds the job scripts, and writes the commit beside it."""

    def run(self) -> None:
        """Copy the package; an editable installation finds the scripts in the checkout, and asks git for the commit."""
        super().run()
        if not self.editable_mode:
            shutil.copytree(folder / "jobs", Path(self.build_lib) / "hpcgnn" / "launch" / "jobs", dirs_exist_ok=True)
            write_commit(Path(self.build_lib))


class SourceWithCommit(sdist):
    """Packs the source distribution, with the commit in it."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, and write the commit."""
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


def write_commit(tree: Path) -> None:
    """Write the commit of this checkout, or of this source distribution, into ``tree``."""
    found = runpy.run_path(str(folder / "hpcgnn" / "base" / "version.py"))["commit"]()
    if found:
        (tree / "hpcgnn" / "commit.txt").write_text(f"{found}\n")


def made_of() -> str:
    """The inputs of a build: a digest of the sources, and the compiler."""
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
    """Return whether the library exists and is the one that would be built now."""
    return library.exists() and STAMP.exists() and STAMP.read_text() == made_of()


folder = Path(__file__).parent.resolve()
STAMP = folder / "build" / "native-kernels.txt"  # describes the library in this folder
native = Extension(
    "hpcgnn.kernels._native",
    sources=[str(path.relative_to(folder)) for path in sources() if path.suffix == ".cpp"],
    depends=[str(path.relative_to(folder)) for path in sources()],
    language="c++",
    optional=True,
)

setup(
    ext_modules=[native],
    cmdclass={
        "bdist_wheel": AnyPython,
        "build_ext": BuildNative,
        "build_py": WithJobsAndCommit,
        "sdist": SourceWithCommit,
    },
)
