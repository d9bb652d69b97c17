"""Predictions compared with measurements: numbers, tables, the figure, and the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import said, told
from small_graphs import in_parts, random_multigraph

from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.cost_model.compare import Comparison, compare, error_by
from hpcgnn.lab.cost_model.constants import MEMORY, Fitted, Model, Residuals, defaults, write_model
from hpcgnn.lab.cost_model.equations import PHASES
from hpcgnn.lab.cost_model.fit import TERMS
from hpcgnn.lab.cost_model.predict import predict
from hpcgnn.lab.report import drawing
from hpcgnn.lab.report.study_page import model_section, study_of
from hpcgnn.lab.study import records, specification
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.specification import Run
from hpcgnn.lab.study.tables import Series

SPECIFICATION = """
name = "small"
kind = "train"
[axes]
graph = "sbm:nodes=300,blocks=3,degree=8"
ranks = [2, 4]
[[configurations]]
rate = "1gbit"
bits = ["32", "2"]
[[configurations]]
rate = "300mbit"
[settings]
hidden = 16
threads = 1
compute = "float32"
"""
# The ratio of each run's measurement to the model's prediction, in the order of the specification.
FACTORS = (1.0, 1.15, 1.0, 0.8, 1.05, 1.0)
MACHINE = {"id": "here", "processor": "a test", "cores": 2, "usable_cores": 2}


def made_up_model(machine: str = "here") -> Model:
    """The constants with which a fit begins, as if fitted to runs of two ranks at 1 Gbit/s."""
    return Model(
        machine=MACHINE | {"id": machine},
        constants={name: Fitted(value, value, value) for name, value in defaults().items()},
        memory=dict.fromkeys(MEMORY, 1.0),
        ranges=dict.fromkeys(TERMS, (0, 1e12)) | {"ranks": (1, 2), "megabits_per_second": (1000, 1000)},
        kinds={},
        residuals=Residuals(0, 0.0, 0.0),
    )


def record_of(run: Run, seconds: float) -> Record:
    """A record with two uncounted first epochs, and a spread of 20 % between the quartiles of the others."""
    epochs = [9.0, 9.0, *(seconds * factor for factor in (0.8, 0.9, 1.0, 1.1, 1.2))]
    phases = {f"{phase}_seconds_mean": [0.1] * len(epochs) for phase in PHASES}
    return Record(
        key=run.key,
        configuration=run.configuration,
        status="finished",
        machine=MACHINE,
        parts=f"parts/{run.place.ranks}.h5",
        summary={"compute": "float32"},
        epochs={"seconds": epochs} | phases,
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of runs that took :data:`FACTORS` of the predicted time, and of one to which the equations do not apply."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.toml").write_text(SPECIFICATION)
    (folder / "parts").mkdir()
    for ranks in (2, 4):
        in_parts(folder / f"parts/{ranks}.h5", random_multigraph(), ranks, ["hybrid"])
    model = made_up_model()
    write_model(model, folder / "model.toml")
    for run, factor in zip(specification.read(folder / "study.toml").runs, FACTORS, strict=True):
        with PartsFile(folder / f"parts/{run.place.ranks}.h5") as file:
            seconds = predict(model, file, run.configuration).epoch.total
        records.append(folder, record_of(run, factor * seconds))
    unknown = record_of(run, 1.0)
    records.append(folder, Record(key="links", configuration=unknown.configuration | {"task": "link"}, status="finished",
                                  machine=MACHINE, parts=unknown.parts, epochs=unknown.epochs))  # fmt: skip
    return folder


@pytest.fixture
def comparison(study: Path) -> Comparison:
    return compare(made_up_model(), study, records.read(study))


def test_errors_are_those_of_what_was_measured(comparison: Comparison) -> None:
    assert [run.error for run in comparison.runs] == pytest.approx([1 / factor - 1 for factor in FACTORS])
    median = (1 - 1 / 1.05) / 2
    assert list(comparison.errors().values()) == pytest.approx([median, 0.25, 4, 5])
    assert all(run.spread == pytest.approx(0.2) for run in comparison.runs)


def test_what_is_extrapolated_is_told_with_the_number_of_runs(comparison: Comparison) -> None:
    warnings = comparison.warnings()
    of_ranks = "ranks is 4, fitted on 1 to 2: the terms message and link_imbalance are extrapolated"
    of_rate = "megabits per second is 300, fitted on 1000 to 1000: the terms rate_share and latency are extrapolated"
    assert (warnings[of_ranks], warnings[of_rate]) == (3, 2)
    assert sum(not run.warnings for run in comparison.runs) == 2


def test_what_the_equations_do_not_know_is_left_out_and_named(comparison: Comparison) -> None:
    assert len(comparison.runs) == len(FACTORS)
    assert [each.partition(":")[0] for each in comparison.left_out] == ["links"]


def test_errors_by_the_values_of_an_axis(comparison: Comparison) -> None:
    assert error_by(comparison.runs, "bits")["2"] == pytest.approx((2, (1 - 1 / 1.15 + 0.25) / 2, 0.25))
    assert error_by(comparison.runs, "ranks")["2"] == pytest.approx((3, 1 - 1 / 1.05, 1 - 1 / 1.15))


def test_another_machine_is_said(study: Path) -> None:
    found = compare(made_up_model("elsewhere"), study, records.read(study))
    assert "the runs were made on another machine" in found.notes[0]


def test_the_command_prints_one_object(study: Path) -> None:
    found = told("model", "compare", study / "model.toml", study)
    assert found["worst_error"] == pytest.approx(0.25)
    assert found["within_10_percent"] == 4
    assert len(found["runs"]) == len(FACTORS)
    assert found["left_out"]


def test_the_command_shows_tables(study: Path) -> None:
    table = said("model", "compare", study / "model.toml", study)
    assert "+25.0%" in table
    assert "off by 2.4% in the median and 25.0% at worst; 4 are within 10 % and 5 within 20 %" in table
    assert "Extrapolated terms" in table


def test_the_report_has_the_figure_and_the_tables(study: Path) -> None:
    said("study", "report", study, "--model", study / "model.toml")
    page, text = (study / "report.html").read_text(), (study / "report.md").read_text()
    assert page.count("Predicted against measured") >= 2
    assert "predicted seconds per epoch" in page
    assert "| +25.0% |" in text
    titles = [section.title for section in study_of(study).sections]
    assert "Predicted against measured" not in titles


def test_the_figure_has_a_point_for_each_run_and_five_lines(comparison: Comparison) -> None:
    picture = model_section(comparison).pictures[0]
    svg = picture.draw()
    assert svg.count("<use ") >= len(FACTORS)
    assert "+25%" in picture.alt
    one = drawing.agreement([Series("runs", (0.1,), (0.2,))], "measured", "predicted")
    assert one.count("<use ") < svg.count("<use ")
