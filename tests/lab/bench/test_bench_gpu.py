"""``make bench-gpu``: its studies run here on the stand-in, with small graphs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from lab.bench.as_gpu import environment
from requires import EVERYTHING, require_module
from virtual_clusters import default_name, require_rights

from hpcgnn.kernels import dense
from hpcgnn.lab.bench.contenders import DEVICE
from hpcgnn.lab.study import catalogue, records, runner, specification, targets
from hpcgnn.lab.study.commands import Commands
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.specification import Run, Specification
from hpcgnn.lab.study.summary import finished_groups

_SMALLER = {
    r"scale=\d+": "scale=6",
    r"--width \d+": "--width 32",
    r"--rows \d+": "--rows 64",
    r"--shape \d+x": "--shape 64x",
    r"--rounds \d+": "--rounds 1",
    r"hidden = \d+": "hidden = 16",
}


def smaller(name: str, folder: Path) -> Specification:
    """A shipped study with small graphs; benches that become equal are merged."""
    text = catalogue.find(name).read_text()
    for pattern, replacement in _SMALLER.items():
        text = re.sub(pattern, replacement, text)
    seen, lines = set[str](), []
    for line in text.splitlines():
        if not (line.startswith('    "') and line in seen):
            lines.append(line)
        seen.add(line)
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines))
    return specification.read(path)


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Run some runs of a study on the stand-in, and return their records."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)

    def run(study: Specification, *some: Run) -> list[Record]:
        folder = tmp_path / study.name
        runner.claim(study, folder)
        runner.run_all(study, folder, Commands(), runner.Listener(), [each.key for each in some])
        found = {record.key: record for record in records.read(folder)}
        assert [found[each.key].error for each in some] == [""] * len(some)
        return [found[each.key] for each in some]

    return run


def bench(study: Specification, word: str) -> Run:
    (found,) = [run for run in study.runs if run.given["bench"].startswith(word)]
    return found


def axis(record: Record, name: str) -> set[str]:
    return {line["axes"].get(name, "") for line in record.summary["lines"]}


@pytest.mark.slow
def test_aggregation(ran, tmp_path):
    require_module("triton")
    require_module("torch_geometric")
    study = smaller("gpu", tmp_path)
    (record,) = ran(study, bench(study, "aggregate"))
    assert {"ours", "ours.int8.counted", "ceiling.copy", "pyg.scatter"} <= axis(record, "contender") <= DEVICE.keys()
    assert "compiled" not in axis(record, "contender"), "the stand-in cannot, and the others are measured"
    found = targets.verdicts(finished_groups(tmp_path / "gpu"), targets.read(targets.default_path(study)))
    reached = [verdict.target for verdict in found if verdict.reached != targets.NOT_MEASURED]
    assert {"PyG's scatter relative to hpcgnn", "gathering the same rows relative to hpcgnn"} <= set(reached)


@pytest.mark.slow
def test_products_and_codecs(ran, tmp_path):
    require_module("triton")
    study = smaller("gpu", tmp_path)
    gemm, sddmm, quantize = ran(study, *(bench(study, word) for word in ("gemm", "sddmm", "quantize")))
    of_bf16 = {"ours.bf16"} if dense.has_bf16("auto") else set()  # of the processor that takes the place of a GPU
    assert {"ours", "ours.int8"} | of_bf16 <= axis(gemm, "contender")
    assert axis(gemm, "direction") == {"y", "dx", "dW", "layer", "product"}
    assert {"ours", "ours.int8", "ceiling.gather"} <= axis(sddmm, "contender")
    assert {"copy", "encode 1", "decode 16"} <= axis(quantize, "step")


@pytest.mark.slow
def test_epochs_beside_pygs(ran, tmp_path):
    require_module("torch_geometric")
    study = smaller("gpu-training", tmp_path)
    some = [run for run in study.runs if run.configuration["ranks"] == 1 and run.configuration["model"] == "sage"]
    done = {record.configuration["framework"]: record.summary for record in ran(study, *some)}
    assert done.keys() == {"hpcgnn", "pyg"}
    for framework, summary in done.items():
        assert summary["epoch_seconds_median"] > 0
        # the program that trains with PyG asks torch, which counts the memory of GPUs, and not that of the stand-in
        is_counted = framework == "hpcgnn" or torch.cuda.is_available()
        assert summary["peak_device_memory_bytes_per_rank"] > 0 or not is_counted


@pytest.mark.slow
@pytest.mark.virtual_cluster
def test_policies_over_links_of_a_given_speed(ran, tmp_path):
    require_rights()
    study = smaller("gpu-training", tmp_path)
    runs = [run for run in study.runs if run.configuration["rate"] == "1gbit"]
    assert {run.configuration["bits"] for run in runs} == {"32", "adaqp", "sylvie", "pipeqs"}
    with default_name():
        done = ran(study, *(run for run in runs if EVERYTHING or run.configuration["bits"] in ("32", "adaqp")))
    sent = {record.configuration["bits"]: record.summary["bytes_sent_per_epoch"] for record in done}
    assert sent.keys() > {"32"}
    assert max(count for bits, count in sent.items() if bits != "32") < sent["32"]
