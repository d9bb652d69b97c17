"""Statistics compared with numbers computed by hand, tables, targets, submissions, and one real study."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_up
import pytest
import small_graphs
from command_line import refusal, said
from damages import budget, change_values
from damages import refusal as refused
from hypothesis import given
from hypothesis import strategies as st
from rank_pool import ROOT

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study import export, groups, measures, records, runner, specification, submit, targets
from hpcgnn.lab.study.commands import Commands
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.summary import finished_groups, summarise

LONGEST_SECONDS = 240.0
STRONG = """\
name = "s"
kind = "strong"
seeds = [0, 1, 2]
[axes]
graph = "digits"
ranks = [1, 2, 4]
bits = ["32", "2"]
[[report.tables]]
title = "Few bits"
rows = "ranks"
columns = "bits"
figures = ["bytes_sent_per_epoch_ratio", "test_metric_at_best_val_difference"]
baseline = {bits = "32"}
where = {bits = "2"}
[[report.tables]]
title = "Speed"
rows = ["bits", "ranks"]
figures = ["epoch_seconds_median", "speedup", "efficiency"]
"""


def make(folder: Path, text: str) -> Path:
    """A study whose epochs take 8 s / ranks, times 1, 2, 4 by seed. With 2 bits a tenth is sent, and 0, 1, 2 points of accuracy
    are lost.
    """

    def told(run: specification.Run) -> dict[str, Any]:
        seed, ranks, few = run.configuration["seed"], run.place.ranks, run.configuration["bits"] == "2"
        summary = {
            "epoch_seconds_median": 2**seed * (8.0 / ranks if ranks < 4 else 4.0) * (0.5 if few else 1.0),
            "bytes_sent_per_epoch": (1000.0 + seed) * (0.1 if few else 1.0) * (ranks > 1),
            "test_metric_at_best_val": 0.9 - 0.01 * seed * few,
        }
        return {"summary": summary}

    return made_up.study(folder, text, told)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "study", STRONG)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("whole") / "study", STRONG)


@budget(20)
@given(data=st.data())
def test_a_damaged_study_is_one_sentence_or_another_report(data: st.DataObject, whole: Path) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(shutil.copytree(whole, Path(root) / "study"))
        change_values(data, data.draw(st.sampled_from([folder / records.RECORDS, folder / records.SPECIFICATION])))
        refused(lambda: said("study", "report", folder))


def test_medians_and_pairs_have_intervals() -> None:
    found = groups.median([1.0, 2.0, 3.0, 4.0, 100.0])
    assert 1.0 <= found.low < found.value == 3.0 < found.high <= 100.0
    assert (groups.median([1.0, 3.0]), groups.median([])) == (groups.Estimate(2.0, None, None, 2), None)
    ours, theirs = {(0, 0): 2.0, (0, 1): 8.0, (0, 9): 1.0}, {(0, 0): 1.0, (0, 1): 2.0}
    ratio = groups.paired_ratio(ours, theirs)
    assert ratio.value == pytest.approx(math.sqrt(8))
    assert ratio.count == 2
    # The logarithms are log 2 and log 4: their standard error is log(2) / 2, and Student's factor for one degree of freedom is
    # 12.706.
    assert ratio.high == pytest.approx(math.sqrt(8) * math.exp(12.7062047 * math.log(2) / 2))
    difference = groups.paired_difference(ours, theirs)
    assert (difference.value, difference.high) == (3.5, pytest.approx(3.5 + 12.7062047 * 2.5))
    assert groups.paired_ratio(ours, {(5, 5): 1.0}) is None
    assert groups.paired_ratio({(0, 0): 0.0}, {(0, 0): 0.0}) is None


def test_tables_and_figures_of_a_strong_study(folder: Path) -> None:
    summary = summarise(folder)
    few, speed = summary.tables
    assert [row[:2] for row in few.rows] == [("1", "-"), ("2", "0.10"), ("4", "0.10")]
    assert few.rows[1][2].startswith("-1.00 [")
    shown = {row[:2]: [cell.partition(" ")[0] for cell in row[2:]] for row in speed.rows}
    assert (shown["32", "4"], shown["2", "4"]) == (["8", "2.00", "50.0"], ["4", "2.00", "50.0"])
    seconds, efficiency, _ = summary.figures
    assert [series.name for series in seconds.series] == ["bits 32", "bits 2", "ideal"]
    assert [series.y for series in seconds.series[::2]] == [(16.0, 8.0, 8.0), (16.0, 8.0, 4.0)]
    assert efficiency.series[0].y == pytest.approx((1.0, 1.0, 0.5))
    assert "| 4 | 8 | 4 |" in summary.markdown()


def test_weak_efficiency_is_of_equal_times(tmp_path: Path) -> None:
    text = STRONG.partition("[[report")[0].replace('"strong"', '"weak"')
    found = summarise(make(tmp_path / "weak", text.replace("digits", "sbm:nodes={100 * ranks}"))).figures[1]
    assert found.series[0].y == pytest.approx((1.0, 2.0, 2.0))


def test_targets(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(
        "[[targets]]\nfigure = 'efficiency'\nwhere = {bits = 2}\nat_least = 0.6\n"
        "[[targets]]\nfigure = 'bytes_sent_per_epoch'\nwhere = {bits = 2, ranks = [2, 4]}\n"
        "baseline = {bits = 32}\nat_most = 0.1001\n"
        "[[targets]]\nfigure = 'wall_seconds'\nwhere = {bits = 8}\nat_most = 1\n"
    )
    found = targets.verdicts(finished_groups(folder), targets.read(path))
    assert [(each.configuration, each.reached) for each in found] == [
        ("ranks 1", "yes"), ("ranks 2", "yes"), ("ranks 4", "no"), ("ranks 2", "yes"), ("ranks 4", "yes"), ("", "not measured"),
    ]  # fmt: skip
    with pytest.raises(HpcgnnError, match=r"^2 of 6 targets"):
        said("study", "check", folder, path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[targets]]\nfigure = 'speed'\nat_most = 1", "line 1: there is no figure speed"),
        ("[[targets]]\nfigure = 'epochs'", "line 1: a target needs at_most or at_least"),
        ("[[targets]]\nfigure = 'epochs'\nat_most = 'x'", "line 3: at_most must be"),
        ("[[targets]]\nfigure = 'epochs'\nmost = 1", "line 3: a target has no key most"),
        ("[targets]\n", "must have \\[\\[targets\\]\\]"),
    ],
)
def test_mistakes_in_targets(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(text)
    with pytest.raises(HpcgnnError, match=sentence):
        targets.read(path)


# -- epochs in reports -------------------------------------------------------------------------------------------------


def test_bytes_per_epoch_of_older_records_are_means_or_left_out() -> None:
    """Older summaries have medians, which are 0 where most epochs send nothing."""

    def shown(sent: list[int] | None, **summary: Any) -> Any:
        epochs = {} if sent is None else {"bytes_sent": sent}
        record = Record(key="k", configuration={}, status="finished", epochs=epochs, summary=summary)
        return measures.lines(record)[0][1].get("bytes_sent_per_epoch")

    old = {"bytes_sent_per_epoch": 0.0, "staleness": "pipeqs", "bits_policy": "fixed"}
    assert shown([400, 0, 0, 0], **old) == 100
    assert shown(None, **old) is None
    assert shown(None, **old | {"bytes_sent_per_epoch": 7.0, "staleness": "off"}) == 7
    assert shown(None, **old | {"bytes_sent_per_epoch": 7.0, "epoch_seconds_mean": 1.0}) == 7


SECONDS, METRIC = measures.TRAINING_SECONDS, "test_metric"
RUNS = [
    {"seconds": [1.0, 2.0, 1.0], METRIC: [None, 0.5, 0.9]},
    {"seconds": [1.0, 4.0, 1.0], METRIC: [None, 0.7, 0.7]},
]
OF_SOME_EPOCHS = [
    {"epoch": [1, 3, 4], "training_seconds": [2.0, None, 9.0], METRIC: [0.5, None, 0.75], "bits": [8.0, None, 2.5]}
]
OF_EXCHANGES = [{"bits": [{"a": {"8": 3}, "b": {"2": 1}}, {"a": {"2": 5}}, {}, 8]}]


@pytest.mark.parametrize(
    ("runs", "x", "figure", "expected"),
    [
        (RUNS, measures.EPOCH, METRIC, ((2.0, 3.0), (0.6, 0.8))),
        (RUNS, SECONDS, METRIC, ((4.0, 5.0), (0.6, 0.8))),
        (OF_SOME_EPOCHS, measures.EPOCH, METRIC, ((2.0, 5.0), (0.5, 0.75))),
        (OF_SOME_EPOCHS, SECONDS, METRIC, ((2.0, 9.0), (0.5, 0.75))),
        (OF_SOME_EPOCHS, measures.EPOCH, "bits", ((2.0, 5.0), (8.0, 2.5))),
        (OF_SOME_EPOCHS, measures.EPOCH, "loss", ((), ())),
        ([{"bits": [8, {"a": {"2": 3, "4": 1}}, {}]}], measures.EPOCH, "bits", ((1.0, 2.0), (8.0, 2.5))),
        (OF_EXCHANGES, measures.EPOCH, "exchanges", ((1.0, 2.0, 3.0), (2.0, 1.0, 0.0))),
    ],
)
def test_curves_are_medians_over_runs_at_each_epoch(runs, x, figure, expected) -> None:
    assert measures.curve(runs, x, figure) == expected


def test_time_to_the_target_of_a_baseline_and_to_the_best_of_a_graph_is_that_of_most_runs(tmp_path: Path) -> None:
    def told(run: specification.Run) -> dict[str, Any]:
        graph, bits, seed = (run.configuration[axis] for axis in ("graph", "bits", "seed"))
        metric = {"32": [0.5, 0.8, 0.8], "2": [0.5, 0.5, 0.796 if seed else 0.7], "1": [0.5, 0.5, 0.7 if seed else 0.8]}
        found = [each - 0.3 * (graph != "digits") for each in metric[bits]]
        epochs = {"seconds": [1.0, 1.0, 1.0 + seed], "test_metric": found}
        return {"epochs": epochs, "summary": {"test_metric_at_best_val": max(found)}}

    text = 'name = "s"\nkind = "train"\nseeds = [0, 1, 2]\n[axes]\ngraph = ["digits", "sbm:nodes=60"]\nbits = ["32", "2", "1"]\n'
    text += '[[report.tables]]\nrows = ["graph", "bits"]\nbaseline = {bits = "32"}\n'
    text += 'figures = ["seconds_to_target", "seconds_to_best"]\n'
    (table,) = summarise(made_up.study(tmp_path, text, told)).tables
    of_graph = [("32", "2", "2"), ("2", "5", "5"), ("1", "not reached", "not reached")]
    assert [row[1:] for row in table.rows] == of_graph * 2


# -- targets of intervals, and of a number of pairs --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "values", "reached"),
    [
        ("at_least = -0.003\npairs = 2", [-0.001, -0.003], "yes"),
        ("at_least = -0.003\npairs = 3", [-0.001, -0.003], "not measured"),
        ("at_least = -0.005\nof = 'low'", [-0.001, -0.003], "no"),
        ("at_least = -0.005\nof = 'low'", [-0.001, -0.0011], "yes"),
        ("at_least = -0.005\nof = 'low'", [-0.001], "not measured"),
        ("at_most = 0.0\nof = 'high'", [-0.001, -0.0011], "yes"),
    ],
)
def test_ends_of_intervals_and_few_pairs(tmp_path: Path, extra: str, values: list[float], reached: str) -> None:
    """With 2 bits, each seed loses one of these values."""

    def told(run: specification.Run) -> dict[str, Any]:
        lost = values[run.configuration["seed"]] if run.configuration["bits"] == "2" else 0.0
        return {"summary": {"test_metric_at_best_val": 0.8 + lost}}

    text = f'name = "s"\nkind = "train"\nseeds = {list(range(len(values)))}\n[axes]\ngraph = "digits"\nbits = ["32", "2"]\n'
    text += '[[report.tables]]\nrows = "bits"\nfigures = "test_metric_at_best_val"\nabout = "What it is for."\n'
    folder = made_up.study(tmp_path / "study", text, told)
    assert "What it is for." in summarise(folder).markdown()
    (tmp_path / "targets.toml").write_text(
        "[[targets]]\nwhere = {bits = 2}\nfigure = 'test_metric_at_best_val_difference'\nbaseline = {bits = 32}\n"
        + extra
    )
    (found,) = targets.verdicts(finished_groups(folder), targets.read(tmp_path / "targets.toml"))
    assert found.reached == reached
    assert ("pairs" in found.found) == ("pairs = 3" in extra)
    assert ("interval" in found.wanted) == ("of =" in extra)


# -- batch systems -----------------------------------------------------------------------------------------------------


def test_one_array_for_each_number_of_nodes(tmp_path: Path) -> None:
    text = STRONG.replace("ranks = [1, 2, 4]", "ranks = [2, 4]\nranks_per_node = 2\nthreads = 3")
    path = made_up.specified(tmp_path, text).path
    output = said("study", "submit", path, "--out", tmp_path / "out", "--dry-run", "--sbatch=--time=9")
    assert not (tmp_path / "out").exists()
    for nodes, line in zip((1, 2), (line for line in output.splitlines() if line[0] != "#"), strict=True):
        assert f"--nodes={nodes} " in line
        assert "--array=0-5 " in line
        assert "--ntasks-per-node=2 --cpus-per-task=3 " in line
        assert line.endswith(f"--time=9 {ROOT / 'jobs' / 'slurm.sbatch'}")


def test_no_name_of_a_folder_is_a_command_to_the_terminal_or_a_pattern_of_slurms(tmp_path: Path) -> None:
    shown = said("study", "submit", "quick", "--out", tmp_path / "a\x1b[2J of 100%", "--dry-run")
    assert "\x1b" not in shown
    assert f"--output={tmp_path}/a\\x1b[2J of 100%%/slurm/%A_%a.out" in shown


def test_virtual_hosts_are_not_submitted(tmp_path: Path) -> None:
    study = made_up.specified(tmp_path, STRONG.replace("ranks = [1, 2, 4]", 'ranks = [2, 4]\nrate = "1gbit"'))
    with pytest.raises(HpcgnnError, match="cannot be submitted"):
        submit.arrays(study, tmp_path, study.runs)


def test_more_ranks_than_nodes_are_refused_before_any_work(tmp_path: Path) -> None:
    small_graphs.write_graph(tmp_path / "g.h5", small_graphs.random_multigraph(nodes=30, edges=90))
    text = STRONG.replace('"digits"', f'"{tmp_path}/g.h5"').replace("[1, 2, 4]", "[2, 31]")
    study = made_up.specified(tmp_path, text)
    sentence = r"/g.h5 has 30 nodes, too few for 31 parts"
    with pytest.raises(HpcgnnError, match=sentence):
        submit.arrays(study, tmp_path, study.runs)
    runner.claim(study, tmp_path / "out")
    with pytest.raises(HpcgnnError, match=sentence):
        runner.run_all(study, tmp_path / "out", Commands(("no-such-command",)), runner.Listener(print))
    assert records.read(tmp_path / "out") == []


SMALLEST = """\
name = "smallest"
kind = "strong"
[axes]
graph = "digits"
ranks = [1, 2]
[settings]
threads = 1
epochs = 3
hidden = 16
"""


Command = Callable[..., Any]


@pytest.fixture
def of_hpcgnn(warm: Path) -> Command:
    """``of_hpcgnn(*words)``: the object that ``hpcgnn *words --json`` prints, whose commands start at once."""

    def run(*words: object) -> Any:
        line = [warm / "hpcgnn", *map(str, words), "--json"]
        return json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True, timeout=LONGEST_SECONDS).stdout)

    return run


def wait_until(condition: Callable[[], object], folder: Path) -> None:
    """Wait for ``condition``; if this takes too long, the test fails with the jobs' output."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while not condition():
        said = [file.read_text() for file in (folder / "slurm").glob("*.out")]
        assert time.monotonic() < deadline, said
        time.sleep(0.5)


def finished(folder: Path) -> list[Record]:
    return [record for record in records.read(folder) if record.is_finished]


@pytest.mark.slurm
def test_a_study_runs_as_job_arrays_whose_preempted_task_runs_again(
    slurm: dict[str, str], of_hpcgnn: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    study = made_up.specified(tmp_path, SMALLEST.replace("= 3\n", "= 1000\n"))

    def command(*words: str) -> str:
        return subprocess.run(words, capture_output=True, text=True, timeout=180, check=True).stdout

    folder = tmp_path / "out"
    submit_all = ("study", "submit", study.path, "--out", folder, "--sbatch=--time=10")
    tasks = [f"{job}_0" for job in of_hpcgnn(*submit_all)["jobs"]]
    assert len(tasks) == 2, "ranks of one node in arrays of two shapes"
    wait_until(lambda: any(each.stat().st_size for each in folder.rglob("metrics.jsonl")), folder)
    command("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true")

    def requeued() -> list[str]:
        shown = {task: command("scontrol", "show", "job", task) for task in tasks}
        return [task for task in tasks if "JobState=PENDING" in shown[task] and "Restarts=1" in shown[task]]

    wait_until(requeued, folder)
    for task in requeued():
        command("scontrol", "update", f"JobId={task}", "StartTime=now+3")  # by itself, this Slurm waits for 16 seconds
    wait_until(lambda: len(finished(folder)) == 2, folder)
    assert sorted(record.summary["ranks"] for record in finished(folder)) == [1, 2]
    assert of_hpcgnn(*submit_all)["jobs"] == []


# -- a real study ------------------------------------------------------------------------------------------------------


@pytest.mark.launches
def test_a_study_from_its_start_to_its_report(of_hpcgnn: Command, tmp_path: Path) -> None:
    path, folder = made_up.specified(tmp_path, SMALLEST).path, tmp_path / "out"
    assert of_hpcgnn("study", "run", path, "--out", folder) == {
        "study": "smallest", "folder": str(folder), "runs": 2, "finished": 2, "ran": 2, "failed": 0, "elsewhere": 0,
    }  # fmt: skip
    one, two = records.read(folder)
    assert [len(record.epochs["loss"]) for record in (one, two)] == [3, 3]
    assert two.summary["ranks"] == 2
    assert two.preparation["plan"]["hybrid"]["rows"] > 0
    assert two.preparation["partition"]["method"]
    assert two.summary["bytes_sent_per_epoch"] > 0
    said("study", "report", folder)
    assert "| 2 |" in (folder / "report.md").read_text()
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_measurements_are_exported_for_extra_p(tmp_path: Path) -> None:
    """Axes with numbers are parameters, the others begin the call path, and each run has a value."""

    def told(run: specification.Run) -> dict[str, Any]:
        seconds = run.configuration["ranks"] + run.configuration["seed"]
        phases = {"aggregation_seconds": seconds / 2, "wire_seconds": 0.5}
        return {"summary": {"epoch_seconds_median": seconds, "breakdown_seconds_median": phases}}

    text = (
        'name = "s"\nkind = "train"\nseeds = [0, 1]\n[axes]\ngraph = "digits"\nbits = ["32", "2"]\nranks = [1, 2, 4]\n'
    )
    found = [*export.lines(made_up.study(tmp_path / "a", text, told))]
    assert len(found) == 2 * 3 * 2 * 3
    assert all(line["params"].keys() == {"ranks"} and line["metric"] == "seconds" for line in found)
    of_two = [line["value"] for line in found if line["params"] == {"ranks": 2} and line["callpath"] == "bits 2->epoch"]
    assert of_two == [2, 3]
    inner = {line["callpath"] for line in found if line["callpath"].startswith("bits 32->")}
    assert inner == {"bits 32->epoch", "bits 32->epoch->aggregation", "bits 32->epoch->wire"}
    folder = made_up.study(tmp_path / "b", text.replace("ranks = [1, 2, 4]", "ranks = 2"), told)
    assert "varies no axis with numbers" in refusal("study", "export", folder)
    first = said("study", "export", tmp_path / "a").splitlines()[0]
    assert json.loads(first) == found[0]
