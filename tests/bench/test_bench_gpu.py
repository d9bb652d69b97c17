"""``make bench-gpu``: all that it runs runs here on the stand-in, with small graphs, and it says what it could not measure."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_graphs
from bench.as_gpu import environment
from requires import require_module
from virtual_clusters import require_rights

from hpcgnn.bench import plot, report
from hpcgnn.bench.line_up import DEVICE
from hpcgnn.comm.thread_world import one_rank

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch):
    """The program as a module."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("bench_gpu")


@pytest.fixture
def run(tool, tmp_path, monkeypatch):
    """Of commands for which the stand-in is the GPU."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return tool.Run("cuda", 14, time.monotonic() + 300, tmp_path)


@pytest.mark.slow
def test_aggregation(tool, run, tmp_path, monkeypatch):
    require_module("triton")
    require_module("torch_geometric")
    require_module("matplotlib")
    monkeypatch.setattr(tool, "AGGREGATION", ((19, 32),))
    found = run.found["aggregation"] = tool.aggregation(run)
    (graph,) = found["graphs"]
    assert (found["machine"]["device"], graph["device"]) == ("stand-in", "standin:0")
    everyone = (*DEVICE.ours, *DEVICE.rivals, *DEVICE.beside, *DEVICE.converted)
    assert set(graph["kernel"]["forward"]) == {each.name for each in everyone}
    assert "seconds" in graph["kernel"]["forward"]["ours.int8.counted"]
    assert "seconds" in graph["kernel"]["backward"]["ours"]
    assert "standin" in graph["kernel"]["forward"]["compiled"]["missing"], "it says why, and the run goes on"
    labels = [label for label, _ in report.timing_rows(graph["kernel"], graph["device"])]
    assert {"ours", "torch.sparse.mm (cuSPARSE)", "torch.compile, gather + index_add"} <= set(labels)
    lines = [line for line in tool.requirements(run) if line["mode"] == "kernel"]
    assert [line["required"] for line in lines] == [1.5, 2, 1.5, 2, 0.8, 0.8]
    tool.write(run, {"device": "stand-in", "command": "it"}, tmp_path / "out")
    text = (tmp_path / "out.md").read_text()
    assert "| ceiling.gather |" in text
    assert "not measured: Could not run" in text, "what the stand-in cannot do has its reason"
    plot.roofline(found, tmp_path / "roofline.svg")
    assert "<svg" in (tmp_path / "roofline.svg").read_text()


@pytest.mark.slow
def test_products_of_8_bit_integers(tool, run, tmp_path, monkeypatch):
    require_module("triton")
    monkeypatch.setattr(tool, "AGGREGATION", ((19, 32),))
    run.found = {"gemm": tool.gemm(run), "sddmm": tool.sddmm(run)}
    (shape,), (graph,) = run.found["gemm"]["shapes"], run.found["sddmm"]["graphs"]
    assert (shape["rows"], shape["depth"], graph["heads"]) == (64, 256, 8)
    lines = [line for line in tool.requirements(run) if "by int8" in line["what"]]
    wanted = [("y", 2.2), ("dx", 2.2), ("dW", 2.2), ("layer", 2.2), ("dot", 1.6)]
    assert [(line["direction"], line["required"]) for line in lines] == wanted
    timings = [*(shape["products"][direction] for direction, _ in wanted[:-1]), graph["ops"]["dot"]]
    for line, of_direction in zip(lines, timings, strict=True):
        times = of_direction["ours"]["seconds"] / of_direction["ours.int8"]["seconds"]
        assert line["measured"] == pytest.approx(times)
    tool.write(run, {"device": "stand-in", "command": "it"}, tmp_path / "out")
    text = (tmp_path / "out.md").read_text()
    for contender in ("ours", "ours.bf16", "ours.tf32", "ours.int8"):
        assert f"| 64 x 256 x 256 | y | {contender} |" in text
    assert "| dot | ours.int8 |" in text


@pytest.mark.slow
def test_the_program_writes_what_it_has_measured(tmp_path):
    options = ["--smaller", "14", "--out", tmp_path / "out", "--parts", "quantization"]
    command = [sys.executable, TOOLS / "bench_gpu.py", *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    found, text = json.loads((tmp_path / "out.json").read_text()), (tmp_path / "out.md").read_text()
    assert text in done.stdout
    assert "| encode 16 |" in text
    assert [line["required"] for line in found["requirements"] if line["what"].startswith("of copy")] == [0.7] * 10
    assert found["missing"]["epochs gat"] == found["missing"]["policies 10gbit"] == "it was not asked for"


@pytest.mark.slow
def test_epochs(tool, run):
    require_module("torch_geometric")
    found = run.found["epochs sage"] = tool.epochs(run, "sage")
    assert all(found[who]["peak_bytes"] > 0 and found[who]["epoch_seconds"] > 0 for who in ("ours", "pyg"))
    (line,) = tool.of_epochs(run, "sage", 2.0)
    assert line.measured == found["pyg"]["epoch_seconds"] / found["ours"]["epoch_seconds"]
    run.found["epochs gat"] = found
    _, share, *_ = tool.of_epochs(run, "gat", 1.5)
    assert share.measured == found["ours"]["peak_bytes"] / found["pyg"]["peak_bytes"]
    assert any(row.startswith("| sage | pyg |") for row in tool.document(run, {"device": "", "command": ""}, []))


@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_pygs_model_is_ours(model, tmp_path, monkeypatch):
    """As many parameters, and it learns: the stand-in lacks operators that some layers of PyG need, so on the host."""
    require_module("torch_geometric")
    monkeypatch.syspath_prepend(str(TOOLS))
    epochs = importlib.import_module("bench_gpu_epochs")
    monkeypatch.setattr(
        sys, "argv", ["it", "ours", "-", "--model", model, "--hidden", "16", "--heads", "2", "--epochs", "8"]
    )
    arguments, arrays = epochs.parse(), small_graphs.random_multigraph(nodes=200, edges=1500)
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    ours, pygs = epochs.of_ours(arguments, graph), epochs.of_pyg(arguments, graph)
    assert len(ours["seconds"]) == len(pygs["seconds"]) == 8 + epochs.WARM_UP
    assert ours["loss"] == pytest.approx(pygs["loss"], rel=0.3)
    mine = epochs.trainer_of(arguments, graph).model
    theirs = epochs.OfPyg(arguments, graph.meta.num_features, graph.meta.num_classes)
    counts = [sum(each.numel() for each in model.parameters()) for model in (mine, theirs)]
    assert counts[0] == counts[1]


@pytest.mark.slow
@pytest.mark.virtual_cluster
def test_policies_over_links_of_a_given_speed(tool, run):
    require_rights()
    lines = run.found["policies 1gbit"] = tool.policies(run, "1gbit")
    assert [line["policy"] for line in lines] == ["full precision", "AdaQP", "Sylvie", "PipeQS"]
    assert all(line["ranks"] == 2 for line in lines)
    assert max(line["bytes_sent"] for line in lines[1:]) < lines[0]["bytes_sent"]
    assert any(row.startswith("| 1gbit | AdaQP |") for row in tool.of_policies(run))


def test_what_has_no_time_or_fails_is_not_measured(tool, tmp_path):
    late = tool.Run("cuda", 0, time.monotonic() - 1, tmp_path)
    with pytest.raises(tool.NotMeasured, match="no time was left"):
        tool.aggregation(late)
    run = tool.Run("cuda", 0, time.monotonic() + 100, tmp_path)
    for script, said in (
        ("import time; time.sleep(60)", "time was over"),
        ("print(1); raise SystemExit('it broke')", "it broke"),
    ):
        run.deadline = time.monotonic() + (1 if "sleep" in script else 100)
        with pytest.raises(tool.NotMeasured, match=said):
            run.output([sys.executable, "-c", script])
    run.missing = dict.fromkeys(tool.everything(run), "no GPU")
    lines = tool.requirements(run)
    assert [line["reached"] for line in lines] == [None] * 10
    tool.write(run, {"device": "none", "command": "it"}, tmp_path / "out")
    text = (tmp_path / "out.md").read_text()
    assert text.count("not measured: no GPU") == 10 + 2


def test_a_machine_without_a_gpu_is_one_sentence():
    if importlib.import_module("torch").cuda.is_available():
        return
    done = subprocess.run([sys.executable, TOOLS / "bench_gpu.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("bench_gpu.py: --device cuda was asked for")
    assert done.stderr.count("\n") == 1
