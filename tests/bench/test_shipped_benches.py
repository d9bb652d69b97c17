"""The benches of shipped specifications are existing commands with existing options, and each has targets."""

from __future__ import annotations

import shlex

import click

from hpcgnn.cli.bench import bench
from hpcgnn.study import axes, catalogue, specification, targets

STUDIES = [specification.read(path) for path in catalogue.shipped().values()]
BENCHES = {(study.name, run.given["bench"]) for study in STUDIES if study.kind == axes.BENCH for run in study.runs}


def problem_of(words: str) -> str:
    """The problem of a bench's command line, or nothing."""
    name, *arguments = shlex.split(words)
    try:
        context = bench.commands[name].make_context(name, [*arguments, "--json"])
    except (click.ClickException, KeyError) as error:
        return repr(error)
    return "" if context.params["as_json"] and not context.args else f"left over: {context.args}"


def test_benches_are_commands() -> None:
    assert len(BENCHES) > 10
    assert [(study, words, problem) for study, words in sorted(BENCHES) if (problem := problem_of(words))] == []


def test_benches_have_targets():
    names = {study for study, _ in BENCHES}
    assert {"kernels", "products", "exchange", "gpu"} <= names
    for name in names:
        assert targets.read(targets.default_path(specification.read(catalogue.find(name))))
