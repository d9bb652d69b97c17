"""The runner: the order of its runs, its records, the state after a failed or killed run, and runs of each kind. A stand-in
replaces the commands.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import made_up
import pytest
import small_graphs
from made_up import specified
from virtual_clusters import wait_until

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study import commands, measures, prepare, records, runner, specification, targets
from hpcgnn.lab.study.commands import Commands
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.summary import finished_groups, summarise

STANDIN = (sys.executable, str(Path(__file__).with_name("standin_hpcgnn.py")))
TEXT = 'name = "s"\nkind = "train"\nseeds = [0, 1]\n[axes]\ngraph = "digits"\nbits = ["32", "8", "2"]\n'


@pytest.fixture
def study(tmp_path: Path) -> specification.Specification:
    return specified(tmp_path, TEXT)


@pytest.fixture
def folder(tmp_path: Path, study: specification.Specification) -> Path:
    runner.claim(study, tmp_path / "out")
    return tmp_path / "out"


def run(study: specification.Specification, folder: Path, **given: object) -> tuple[runner.Outcome, list[str]]:
    notes: list[str] = []
    outcome = runner.run_all(study, folder, Commands(STANDIN), runner.Listener(notes.append), **given)
    return outcome, notes


def log(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().split() if path.exists() else []


def test_rounds_have_all_configurations_each_in_another_order(study: specification.Specification) -> None:
    found = [(run.configuration["seed"], run.configuration["bits"]) for run in runner.order(study.runs)]
    assert [seed for seed, _ in found] == [0, 0, 0, 1, 1, 1]
    first, second = [bits for _, bits in found[:3]], [bits for _, bits in found[3:]]
    assert first == ["32", "8", "2"]
    assert second in (["8", "2", "32"], ["2", "32", "8"], first)
    assert runner.order(study.runs) == runner.order(study.runs), "drawn with a seed"


def test_all_run_once_and_are_recorded(study: specification.Specification, folder: Path) -> None:
    in_order = [each.key for each in runner.order(study.runs)]
    assert run(study, folder, only=in_order[:1])[0] == runner.Outcome(1, 0, 0)
    assert run(study, folder)[0] == runner.Outcome(5, 0, 0)
    assert log(folder) == in_order
    assert run(study, folder)[0] == runner.Outcome(0, 0, 0)
    assert len(log(folder)) == 6
    with pytest.raises(HpcgnnError, match="has no run other"):
        run(study, folder, only=["other"])
    found = records.read(folder)
    assert {record.status for record in found} == {"finished"}
    (first, *_) = found
    assert first.epochs["seconds"] == [1.0, 1.0]
    assert first.preparation["plan"] == {"hybrid": {"rows": 7}}
    assert first.preparation["partition"]["num_parts"] == 1
    assert (folder / first.parts).exists()
    assert not (folder / first.run / "checkpoints").exists()
    assert first.machine == records.machine_facts()
    assert len(list((folder / "graphs").glob("*.h5"))) == len(list((folder / "parts").glob("*.h5"))) == 1


def test_a_failed_run_is_told_and_tried_again(
    study: specification.Specification, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_FAILS", "--bits 8 --seed 1")
    outcome, notes = run(study, folder)
    assert outcome == runner.Outcome(5, 1, 0)
    assert len(notes) == 1
    assert notes[0].endswith("failed: error: it was told to fail (exit code 1)")
    assert any("it was told to fail" in note for note in summarise(folder).notes)
    monkeypatch.delenv("STANDIN_FAILS")
    assert run(study, folder)[0] == runner.Outcome(1, 0, 0)
    assert {record.status for record in records.read(folder)} == {"finished"}


@pytest.mark.slow
def test_a_killed_runner_loses_one_run(study: specification.Specification, folder: Path) -> None:
    """The runner is killed, not interrupted: its present run stays `started` in the records, and is run again."""
    program = (
        "import sys; from pathlib import Path; from hpcgnn.lab.study import runner, specification\n"
        "from hpcgnn.lab.study.commands import Commands\n"
        f"study, folder = specification.read({str(study.path)!r}), Path({str(folder)!r})\n"
        f"runner.run_all(study, folder, Commands({STANDIN!r}), runner.Listener())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"STANDIN_HANGS": "--bits 2 --seed 0"})
    wait_until(lambda: process.poll() is not None or len(log(folder)) == 3, "third run")
    (hangs,) = (each for each in study.runs if each.key == log(folder)[2])
    outcome, notes = run(study, folder, only=[hangs.key])
    assert outcome == runner.Outcome(0, 0, 1), "another process is at it"
    assert "is run by another process" in notes[0]
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.kill(int(child), signal.SIGKILL)
    assert [record.status for record in records.read(folder)] == ["finished", "finished", "started"]
    assert any("under way or were killed" in note for note in summarise(folder).notes)
    assert run(study, folder)[0] == runner.Outcome(4, 0, 0)
    assert log(folder).count(hangs.key) == 2


def test_an_interrupted_command_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def interrupted(self: subprocess.Popen, timeout: float | None = None) -> int:
        if not started:
            started.append(self)
            raise KeyboardInterrupt
        return original(self, timeout)

    original = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        commands.run([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "output")
    assert started[0].returncode == -signal.SIGTERM


def test_parts_of_a_graph_that_has_changed_are_not_used(tmp_path: Path) -> None:
    """A study of a user's graph.h5, to which the user writes another graph of the same sizes."""
    graph, other = small_graphs.even_graph(60, 200), small_graphs.even_graph(60, 200)
    other.y[0] += 1
    parts = prepare.Parts(tmp_path / "parts.h5", tmp_path / "graph.h5", (), 1, ())
    small_graphs.write_graph(parts.graph, graph)
    small_graphs.in_parts(parts.path, graph, 2)
    prepare.make_parts(parts, Commands(STANDIN))
    small_graphs.write_graph(parts.graph, other)
    with pytest.raises(
        HpcgnnError, match=r"made of another graph than .* which differs in labels: choose another --out"
    ):
        prepare.make_parts(parts, Commands(STANDIN))
    parts.graph.unlink()
    prepare.make_parts(parts, Commands(STANDIN))


def test_what_cannot_be_prepared_fails_once(study: specification.Specification, folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys; open(sys.argv[0] + '.log', 'a').write('x'); sys.exit('hpcgnn: error: no such graph')"
    )
    outcome = runner.run_all(study, folder, Commands((sys.executable, str(broken))), runner.Listener())
    assert outcome == runner.Outcome(0, 6, 0)
    assert (tmp_path / "broken.py.log").read_text() == "x"
    assert records.read(folder)[0].error == "graph digits: error: no such graph (exit code 1)"


def test_runs_on_virtual_hosts_fail_alone_where_there_can_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a study whose every run needs them is refused."""

    def refuse() -> None:
        raise HpcgnnError("tc cannot be found")

    monkeypatch.setattr(runner.virtual_cluster, "check_rights", refuse)
    text = 'name = "s"\nkind = "train"\n[axes]\ngraph = "digits"\n[[configurations]]\nranks = 2\nrate = "1gbit"\n'
    study, folder = specified(tmp_path, text + "[[configurations]]\nranks = 1\n"), tmp_path / "out"
    runner.claim(study, folder)
    assert run(study, folder) == (runner.Outcome(1, 1, 0), [f"{study.runs[0].key} failed: tc cannot be found"])
    assert {record.error for record in records.read(folder)} == {"", "tc cannot be found"}
    with pytest.raises(HpcgnnError, match=r"^tc cannot be found$"):
        run(study, folder)


def test_a_folder_is_of_one_specification(study: specification.Specification, folder: Path, tmp_path: Path) -> None:
    runner.claim(specified(tmp_path, TEXT + '[[report.tables]]\nrows = "bits"\nfigures = "wall_seconds"\n'), folder)
    assert "report.tables" in (folder / "study.toml").read_text(), "a report may change"
    with pytest.raises(HpcgnnError, match="holds a study of another specification"):
        runner.claim(specified(tmp_path, TEXT.replace("[0, 1]", "[0]")), folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(HpcgnnError, match="is not empty and does not hold a study"):
        runner.claim(study, tmp_path / "mine")


def test_machines_are_kept_apart(study: specification.Specification, folder: Path) -> None:
    other = {"machine": {"id": "other", "processor": "Z80"}, "summary": {"epoch_seconds_median": 100.0}}
    made_up.study(folder, TEXT, lambda run: other)
    assert "100" in summarise(folder).tables[0].rows[0][1], "there are no others"
    assert run(study, folder)[0] == runner.Outcome(6, 0, 0), "what ran elsewhere has not run here"
    summary = summarise(folder)
    assert [row[1] for row in summary.tables[0].rows] == ["1.5", "1.5", "1.5"]
    assert summary.notes == ("6 records of another machine are left out: Z80, ? cores (other).",)
    assert "100" in summarise(folder, "oth").tables[0].rows[0][1]


def test_torn_lines_are_left_out_wrong_ones_refused_and_finished_runs_stay_finished(folder: Path) -> None:
    def add(key: str, status: str = "started", **more: Any) -> None:
        records.append(folder, Record(key=key, configuration={"graph": "digits"}, status=status, **more))

    path = folder / "records.jsonl"
    for status in ("started", "finished", "failed"):
        add("a", status, summary={"loss": float("nan")})
    path.write_text(path.read_text() + '{"key": "b", "configu')
    assert [(each.key, each.status) for each in records.read(folder)] == [("a", "finished")]
    add("c")
    assert [each.key for each in records.read(folder)] == ["a", "c"]
    whole, plain = path.read_text(), {"key": "d", "configuration": {}, "status": "finished"}
    of_lines = (1e400, 3, {"axes": {}}, {"axes": [], "figures": {}}, {"axes": {"step": 1}, "figures": {}})
    wrong = {"status": [{"status": "odd"}], "summary.lines": [{"summary": {"lines": [line]}} for line in of_lines]}
    for place, changes in wrong.items():
        for change in changes:
            path.write_text(whole + json.dumps(plain | change) + "\n")
            with pytest.raises(HpcgnnError, match=rf"records.jsonl, line 6(: |, ){place}"):
                records.read(folder)


def test_parts_have_the_plans_of_all_who_share_them(tmp_path: Path) -> None:
    text = TEXT.replace('bits = ["32", "8", "2"]', 'strategy = ["pre", "post"]\nranks = [1, 2]')
    found = prepare.parts_of(tmp_path, specified(tmp_path, text).runs)
    assert len({parts.path for parts in found.values()}) == 2
    assert {parts.plans for parts in found.values()} == {("post", "pre")}


@pytest.mark.parametrize(
    ("model", "plan"),
    [({"model": "sage"}, "pre"), ({"model": "gat"}, "post"), ({"model": "gat", "attention": "partial"}, "pre"),
     ({"model": "rgcn"}, "pre-by-type"), ({"model": "gat", "edge_types": "sum"}, "post")],
    ids=str,
)  # fmt: skip
def test_rows_are_those_of_the_plan_that_a_model_has(model: dict[str, str], plan: str) -> None:
    configuration = {"graph": "any", "strategy": "pre", "seed": 1, **model}
    counted = {"plan": {name: {"rows": len(name)} for name in ("pre", "post", "pre-by-type")}}
    record = Record(key="a", configuration=configuration, status="finished", preparation=counted)
    assert measures.lines(record)[0][1]["rows"] == len(plan)


# -- benches, preparations, and trainings by PyG -----------------------------------------------------------------------


def made(tmp_path: Path, text: str, **given: Any) -> tuple[Path, list[records.Record]]:
    study, folder = specified(tmp_path, text), tmp_path / "out"
    runner.claim(study, folder)
    runner.run_all(study, folder, Commands(STANDIN, **given), runner.Listener())
    return folder, records.read(folder)


BENCH_TEXT = 'name = "b"\nkind = "bench"\nrepeats = 2\n[axes]\nbench = ["gemm one", "gemm two"]\n'


def test_each_line_of_a_bench_is_a_result_and_targets_hold_one_to_another(tmp_path: Path) -> None:
    text = BENCH_TEXT + (
        '[[report.tables]]\nrows = ["subject", "contender"]\nfigures = ["seconds", "seconds_ratio"]\n'
        'baseline = {contender = "ours"}\n'
    )
    folder, found = made(tmp_path, text)
    assert [record.status for record in found] == ["finished"] * 4
    groups = finished_groups(folder)
    assert len(groups.all) == 4, "two benches of two contenders, over two repeats"
    (table,) = summarise(folder).tables
    assert table.header[:2] == ("subject", "contender")
    assert [row[0] for row in table.rows] == ["one", "one", "two", "two"]
    assert {row[-1].split(" ")[0] for row in table.rows} == {"1.00", "3.00"}
    path = tmp_path / "t.toml"
    path.write_text(
        '[[targets]]\nfigure = "seconds"\nwhere = {contender = "other"}\nbaseline = {contender = "ours"}\nat_least = 2.5\n'
    )
    assert [verdict.reached for verdict in targets.verdicts(groups, targets.read(path))] == ["yes", "yes"]


def test_a_bench_without_lines_has_failed(tmp_path: Path) -> None:
    _, (record, *_) = made(tmp_path, BENCH_TEXT.replace('["gemm one", "gemm two"]', '"gemm --nothing"'))
    assert record.status == "failed"
    assert "`hpcgnn bench gemm --json` printed no lines" in record.error


def test_a_bench_is_given_the_files_that_it_names(tmp_path: Path) -> None:
    text = 'name = "b"\nkind = "bench"\n[axes]\ngraph = "digits"\nranks = 2\nbench = "exchange {parts} --bits 2"\n'
    folder, (record,) = made(tmp_path, text)
    assert record.summary["lines"][0]["axes"]["subject"] == str(folder / record.parts)
    assert (folder / record.parts).exists()
    assert "plan" in record.preparation


def test_an_instruction_set_is_given_to_the_command(tmp_path: Path) -> None:
    _, found = made(tmp_path, BENCH_TEXT + 'isa = ["native", "avx2"]\n')
    given = {(record.configuration["isa"], record.versions["isa"]) for record in found}
    assert given == {("native", ""), ("avx2", "avx2")}


def test_a_preparation_measures_its_steps_and_leaves_no_files(tmp_path: Path) -> None:
    text = 'name = "p"\nkind = "prepare"\n[axes]\ngraph = "npz:$DATA/g.npz"\nranks = [2, 4]\n'
    text += '[[report.tables]]\nrows = ["ranks", "step"]\nfigures = ["wall_seconds", "rows", "memory_to_graph_size"]\n'
    folder, found = made(tmp_path, text, data="/somewhere")
    assert [record.status for record in found] == ["finished"] * 2
    lines = found[0].summary["lines"]
    assert [line["axes"]["step"] for line in lines] == ["convert", "partition", "plan"]
    assert all(line["figures"]["wall_seconds"] > 0 for line in lines)
    assert lines[2]["figures"]["rows"] == 7
    assert not list((folder / "runs").rglob("*.h5"))
    (table,) = summarise(folder).tables
    assert [row[:2] for row in table.rows][:3] == [("2", "convert"), ("2", "partition"), ("2", "plan")]
    assert [row[3] for row in table.rows][:3] == ["-", "-", "7"]


def test_the_folder_of_data_is_needed_and_does_not_tell_runs_apart(tmp_path: Path) -> None:
    text = 'name = "p"\nkind = "train"\n[axes]\ngraph = "npz:$DATA/g.npz"\n'
    folder, (record,) = made(tmp_path, text)
    assert "give the folder with --data DIR" in record.error
    made(tmp_path, text, data="/somewhere")
    assert runner.missing(specified(tmp_path, text), folder) == []


def test_other_libraries_run_in_one_process_or_where_they_are_installed(tmp_path: Path) -> None:
    """PyG has all cores where no number of threads is given, DGL an environment of its own, and SAR, with it, as many ranks and
    hosts as the run has.
    """
    text = 'name = "t"\nkind = "train"\n[axes]\ngraph = "digits"\nepochs = 3\n'
    for given in (
        'framework = "pyg"\nmodel = "gat"\nthreads = 2\n',
        'framework = "pyg"\n',
        'framework = "dgl"\nfanouts = "9,9,9"\n',
        'framework = "sar"\nranks = 4\nhosts = 4\nrate = "1gbit"\ndevice = "cpu"\n',
        "ranks = 2\n",
    ):
        text += f"[[configurations]]\n{given}"
    _, found = made(tmp_path, text, peers={"dgl": "/dgl/python", "sar": "/sar"})
    others = [record for record in found if record.configuration.get("framework") in ("pyg", "dgl", "sar")]
    assert [record.epochs for record in others] == [{"seconds": [4.0]}] * 4
    gat, usual, dgl, sar = (" ".join(record.summary["words"]) for record in others)
    assert "--model gat" in gat
    assert "--threads 2" in gat
    assert all("--epochs 3" in words for words in (gat, usual, dgl, sar))
    assert "--threads" not in usual
    assert "--fanouts 9,9,9 --python /dgl/python" in dgl
    assert "--source" not in dgl
    assert "--python /dgl/python --source /sar --ranks 4 --hosts 4 --rate 1gbit" in sar
    assert "--device" not in sar
