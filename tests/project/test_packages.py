"""Package recipes are readable, of this version, and have the dependencies of setup.cfg; a build names its commit."""

from __future__ import annotations

import ast
import configparser
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rank_pool import ROOT
from requires import require_module
from test_pages import unknown_in

from hpcgnn.base import version
from hpcgnn.launch import mpiexec

PACKAGING = ROOT / "packaging"
REFRAME = PACKAGING / "reframe" / "hpcgnn_checks.py"
(EASYBUILD,) = (PACKAGING / "easybuild").glob("*.eb")
# Names of a package in other package indexes, where they differ from PyPI's.
IN_CONDA = {"matplotlib": "matplotlib-base", "torch": "pytorch", "xxhash": "python-xxhash"}
# Spack has METIS and ParMETIS, but no recipes for these. conda-forge has no kaminpar.
WITHOUT = {"spack": {"kaminpar", "pymetis"}, "conda": {"kaminpar"}}


SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
TESTED = {
    canonicalize_name(name): found
    for name, found in re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
}


def requirements(text: str) -> list[Requirement]:
    """The requirements in a value of setup.cfg."""
    return [Requirement(line) for line in text.split("\n") if line and not line.startswith("#")]


def dependencies() -> dict[str, str]:
    """The minimum version of each package that hpcgnn needs, by PyPI's name."""
    found = requirements(SETUP["options"]["install_requires"])
    return {each.name.replace("_", "-"): str(each.specifier).removeprefix(">=") for each in found}


def least(asked: str) -> tuple[int, ...]:
    """A version as numbers, without zeros at its end."""
    numbers = [int(number) for number in asked.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def test_recipes_install_what_setup_cfg_asks_for() -> None:
    assert ast.parse((PACKAGING / "spack" / "package.py").read_text()).body
    spack = re.findall(r'depends_on\("py-([a-z0-9-]+)@([0-9.]+):"', (PACKAGING / "spack" / "package.py").read_text())
    conda = yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text())["requirements"]["run"]
    asked = {"spack": dict(spack), "conda": dict(line.split(" >=") for line in conda)}
    for index, recipe in asked.items():
        names = {name: IN_CONDA.get(name, name) if index == "conda" else name for name in dependencies()}
        wanted = {names[name]: least(version) for name, version in dependencies().items() if name not in WITHOUT[index]}
        beside = ("setuptools", "python")
        assert {name: least(version) for name, version in recipe.items() if name not in beside} == wanted, index


def test_the_test_of_sites_uses_commands_that_there_are() -> None:
    """And figures that the summary has."""
    text = REFRAME.read_text()
    lists = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.List)]
    (train,) = (each for each in lists if isinstance(each.elts[0], ast.Constant) and each.elts[0].value == "train")
    words = [each.value if isinstance(each, ast.Constant) else "2" for each in train.elts]
    prepared = [shlex.split(line) for line in re.findall(r'"hpcgnn ([^"]+)"', text)]
    assert [line[0] for line in prepared] == ["doctor", "convert", "partition"]
    assert [unknown_in(line) for line in (words, *prepared)] == [[]] * 4
    figures = re.findall(r'told\("(\w+)"\)', text)
    assert len(figures) == 4
    keys = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert [name for name in figures if f"`{name}`" not in keys] == []


def test_all_name_this_version() -> None:
    easybuild = runpy.run_path(str(EASYBUILD))
    found = {
        "setup.cfg": version.__version__,
        "CITATION.cff": yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"],
        "conda": yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text())["context"]["version"],
        "easybuild": easybuild["version"],
        "easybuild's file": EASYBUILD.name.split("-")[1],
        "spack": re.findall(r'version\("([^"]+)"\)', (PACKAGING / "spack" / "package.py").read_text())[0],
        "CHANGELOG.md": re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0],
    }
    assert set(found.values()) == {version.__version__}, found


def test_each_requirement_has_one_tested_version_and_easybuild_takes_it() -> None:
    texts = [SETUP["options"]["install_requires"], *SETUP["options.extras_require"].values()]
    asked = [each for text in texts for each in requirements(text)]
    assert len(asked) > 40
    assert [str(each) for each in asked if TESTED.get(canonicalize_name(each.name), "") not in each.specifier] == []
    taken = {name: version for name, version, *_ in runpy.run_path(str(EASYBUILD))["exts_list"] if name != "hpcgnn"}
    assert {name: version for name, version in taken.items() if TESTED[canonicalize_name(name)] != version} == {}


def test_containers_install_the_wheel_and_do_not_run_as_root(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text((PACKAGING / "container" / "Containerfile").read_text())
    steps = require_module("dockerfile_parse").DockerfileParser(str(tmp_path)).structure
    assert [step["instruction"] for step in steps].count("FROM") == 2
    assert [step["value"] for step in steps if step["instruction"] == "USER"] == ["hpcgnn"]
    assert any("/wheels/*.whl" in step["value"] for step in steps if step["instruction"] == "RUN")
    apptainer = (PACKAGING / "apptainer" / "hpcgnn.def").read_text()
    assert apptainer.count("\n%post") == 2
    assert "/wheels/*.whl" in apptainer


def test_wheels_are_repaired_without_a_second_openmp() -> None:
    assert "--exclude libgomp.so.1" in (ROOT / "pyproject.toml").read_text()


def test_workflows_call_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    called = {(path.name, name) for path in workflows for name in re.findall(r"\bmake ([a-z-]+)", path.read_text())}
    assert called
    assert {(path, name) for path, name in called if name not in targets} == set()


def test_a_build_has_all_files_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    listed = subprocess.run(["git", "ls-files", "hpcgnn"], cwd=ROOT, check=True, capture_output=True, text=True)
    built = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    added = {f"hpcgnn/launch/jobs/{name}" for name in mpiexec.JOB_SCRIPTS.values()}
    assert built - {"hpcgnn/commit.txt"} == set(listed.stdout.splitlines()) | added
    for name in mpiexec.JOB_SCRIPTS.values():
        assert (tmp_path / "hpcgnn" / "launch" / "jobs" / name).read_bytes() == (ROOT / "jobs" / name).read_bytes()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the version is looked for."""
    folder = tmp_path / "hpcgnn"
    folder.mkdir()
    monkeypatch.setattr(version, "_PACKAGE", folder)
    monkeypatch.setattr(version, "COMMIT_FILE", folder / "commit.txt")
    return folder


def test_a_build_names_its_commit(package: Path) -> None:
    assert version.in_words() == f"hpcgnn {version.__version__}"
    (package / "commit.txt").write_text("abcdef123456\n")
    assert version.in_words() == f"hpcgnn {version.__version__} (commit abcdef123456)"


def test_a_checkout_names_its_commit(package: Path) -> None:
    (package / "file").write_text("1")
    for words in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm first"):
        subprocess.run(["git", "-C", package.parent, *words.split()], check=True, capture_output=True)
    assert re.fullmatch(r"[0-9a-f]{12}", version.commit())
    (package / "file").write_text("2")
    assert re.fullmatch(r"[0-9a-f]{12}, with local changes", version.commit())
