"""The benches of shipped specifications are existing commands with existing options, and each has targets."""

from __future__ import annotations

import shlex

import pytest

from hpcgnn.cli.bench import bench
from hpcgnn.study import axes, catalogue, specification, targets

STUDIES = [specification.read(path) for path in catalogue.shipped().values()]
BENCHES = {(study.name, run.given["bench"]) for study in STUDIES if study.kind == axes.BENCH for run in study.runs}


@pytest.mark.parametrize(("study", "words"), sorted(BENCHES))
def test_every_bench_is_a_command(study, words):
    name, *arguments = shlex.split(words)
    context = bench.commands[name].make_context(name, [*arguments, "--json"])  # raises click's error
    assert context.params["as_json"]
    assert not context.args


def test_benches_have_targets():
    names = {study for study, _ in BENCHES}
    assert {"kernels", "products", "exchange", "gpu"} <= names
    for name in names:
        assert targets.read(targets.default_path(specification.read(catalogue.find(name))))
