"""Runs of each kind: benches, preparations, trainings by PyG, and curves over epochs. A stand-in replaces the commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcgnn.errors import HpcgnnError
from hpcgnn.study import commands, curves, records, runner, specification, targets
from hpcgnn.study.commands import Commands
from hpcgnn.study.summary import finished_groups, summarise

STANDIN = (sys.executable, str(Path(__file__).with_name("standin_hpcgnn.py")))


def made(tmp_path: Path, text: str, data: str = "") -> tuple[Path, list[records.Record]]:
    path, folder = tmp_path / "s.toml", tmp_path / "out"
    path.write_text(text)
    study = specification.read(path)
    runner.claim(study, folder)
    runner.run_all(study, folder, Commands(STANDIN, data=data), runner.Listener())
    return folder, records.read(folder)


BENCH_TEXT = 'name = "b"\nkind = "bench"\nrepeats = 2\n[axes]\nbench = ["gemm one", "gemm two"]\n'


def test_each_line_of_a_bench_is_a_result(tmp_path: Path) -> None:
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


def test_targets_hold_a_contender_to_another(tmp_path: Path) -> None:
    folder, _ = made(tmp_path, BENCH_TEXT)
    path = tmp_path / "t.toml"
    path.write_text(
        '[[targets]]\nfigure = "seconds"\nwhere = {contender = "other"}\nbaseline = {contender = "ours"}\nat_least = 2.5\n'
    )
    found = targets.verdicts(finished_groups(folder), targets.read(path))
    assert [verdict.reached for verdict in found] == ["yes", "yes"]


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


def test_an_instruction_set_is_given_to_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []
    before = commands.run

    def run(line: list[str], output: Path, environment: dict[str, str] | None = None) -> str:
        seen.append(dict(environment or {}))
        return before(line, output, environment)

    monkeypatch.setattr(commands, "run", run)
    made(tmp_path, BENCH_TEXT.replace("repeats = 2", "repeats = 1") + 'isa = ["native", "avx2"]\n')
    assert sorted(each.get("HPCGNN_ISA", "") for each in seen) == ["", "", "avx2", "avx2"]


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


def test_sources_in_a_folder_of_data_need_one(tmp_path: Path) -> None:
    _, (record,) = made(tmp_path, 'name = "p"\nkind = "prepare"\n[axes]\ngraph = "npz:$DATA/g.npz"\n')
    assert "give the folder with --data DIR" in record.error


def test_the_folder_of_data_does_not_tell_runs_apart(tmp_path: Path) -> None:
    text = 'name = "p"\nkind = "train"\n[axes]\ngraph = "npz:$DATA/g.npz"\n'
    folder, _ = made(tmp_path, text, data="/somewhere")
    (tmp_path / "again.toml").write_text(text)
    study = specification.read(tmp_path / "again.toml")
    assert runner.missing(study, folder) == []


def test_pyg_has_all_cores_where_no_number_is_given(tmp_path: Path) -> None:
    _, (record,) = made(tmp_path, 'name = "t"\nkind = "train"\n[axes]\ngraph = "digits"\nframework = "pyg"\n')
    assert "--threads" not in record.summary["words"]


def test_pyg_trains_in_one_process(tmp_path: Path) -> None:
    text = 'name = "t"\nkind = "train"\n[axes]\ngraph = "digits"\nmodel = "gat"\nepochs = 3\n'
    text += '[[configurations]]\nframework = "pyg"\nthreads = 2\n[[configurations]]\nranks = 2\n'
    _, found = made(tmp_path, text)
    by_pyg = next(record for record in found if record.configuration.get("framework") == "pyg")
    words = by_pyg.summary["words"]
    assert words[words.index("--threads") + 1] == "2"
    assert words[words.index("--model") + 1] == "gat"
    assert words[words.index("--epochs") + 1] == "3"
    assert by_pyg.epochs == {"seconds": [4.0]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('kind = "bench"\n[axes]\nranks = 2\n', "needs the axis bench"),
        ('kind = "bench"\n[axes]\nbench = "gemm"\nhidden = 3\n', "line 5: hidden has no effect"),
        ('kind = "bench"\n[axes]\nbench = "exchange {parts}"\n', "graph is missing"),
        ('kind = "prepare"\n[axes]\ngraph = "digits"\nrate = "1gbit"\n', "line 5: rate has no effect"),
        ('kind = "train"\n[axes]\ngraph = "digits"\nbench = "gemm"\n', "line 5: the axis bench needs kind"),
        ('kind = "train"\n[axes]\ngraph = "digits"\nframework = "pyg"\nranks = 2\n', "trains in one process"),
        ('kind = "train"\n[axes]\ngraph = "digits"\nisa = "avx3"\n', "line 5: isa must be one of native, avx2"),
        (
            'kind = "train"\n[axes]\ngraph = "digits"\nframework = "pyg"\nbits = "2"\n',
            "line 6: .* does not support bits = '2'",
        ),
        ('kind = "prepare"\n[axes]\ngraph = "digits"\nisa = "avx2"\n', "line 5: isa has no effect"),
        ('kind = "bench"\n[axes]\nbench = " "\n', "needs the axis bench"),
        (
            'kind = "train"\n[axes]\ngraph = "digits"\n[[report.figures]]\nx = "epoch"\nfigure = ["loss"]\n',
            "figure must be",
        ),
    ],
)
def test_combinations_that_cannot_be_are_named_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text('name = "x"\n' + text)
    with pytest.raises(HpcgnnError, match=said):
        specification.read(path)


def test_curves_are_medians_over_runs_at_each_epoch() -> None:
    runs = [
        {"seconds": [1.0, 2.0, 1.0], "test_metric": [None, 0.5, 0.9]},
        {"seconds": [1.0, 4.0, 1.0], "test_metric": [None, 0.7, 0.7]},
    ]
    assert curves.curve(runs, curves.EPOCH, "test_metric") == ((2.0, 3.0), (0.6, 0.8))
    assert curves.curve(runs, curves.TRAINING_SECONDS, "test_metric")[0] == (4.0, 5.0)


def test_bits_of_a_curve_are_means_over_rows() -> None:
    runs = [{"bits": [8, {"a": {"2": 3, "4": 1}}, {}]}]
    assert curves.curve(runs, curves.EPOCH, "bits") == ((1.0, 2.0), (8.0, 2.5))
