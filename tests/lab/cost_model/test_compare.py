"""Predictions compared with measurements, and fits to these: numbers, tables, the figure, and the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import refusal, said, told
from small_graphs import in_parts, random_multigraph

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.cost_model.compare import Comparison, compare, error_by
from hpcgnn.lab.cost_model.constants import MEMORY, Fitted, Model, Residuals, defaults, write_model
from hpcgnn.lab.cost_model.equations import PHASES
from hpcgnn.lab.cost_model.fit import TERMS, cases_of
from hpcgnn.lab.cost_model.predict import predict
from hpcgnn.lab.cost_model.profiles import model_of_profile, profiles
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


def record_of(run: Run, seconds: float, key: str = "", machine: str = "here", **configuration: Any) -> Record:
    """A record with two uncounted first epochs, and a spread of 20 % between the quartiles of the others."""
    epochs = [9.0, 9.0, *(seconds * factor for factor in (0.8, 0.9, 1.0, 1.1, 1.2))]
    return Record(
        key=key or run.key,
        configuration=run.configuration | configuration,
        status="finished",
        machine=MACHINE | {"id": machine},
        parts=f"parts/{run.place.ranks}.h5",
        summary={"compute": "float32", "peak_memory_bytes_per_rank": 300_000_000},
        epochs={"seconds": epochs} | {f"{phase}_seconds_mean": [0.1] * len(epochs) for phase in PHASES},
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of runs that took :data:`FACTORS` of the predicted time, and of one to which the equations do not apply."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.toml").write_text(SPECIFICATION)
    (folder / "parts").mkdir()
    for ranks in (2, 4, 8):
        in_parts(folder / f"parts/{ranks}.h5", random_multigraph(), ranks, ["pre", "post", "hybrid"])
    model = made_up_model()
    write_model(model, folder / "model.toml")
    for run, factor in zip(runs_of(folder), FACTORS, strict=True):
        with PartsFile(folder / f"parts/{run.place.ranks}.h5") as file:
            seconds = predict(model, file, run.configuration).epoch.total
        records.append(folder, record_of(run, factor * seconds))
    records.append(folder, record_of(run, 1.0, "links", task="link"))
    return folder


def runs_of(study: Path) -> tuple[Run, ...]:
    return tuple(specification.read(study / "study.toml").runs)


@pytest.fixture
def comparison(study: Path) -> Comparison:
    return compare(made_up_model(), study, records.read(study))


def test_errors_are_those_of_what_was_measured(comparison: Comparison) -> None:
    assert [run.error for run in comparison.runs] == pytest.approx([1 / factor - 1 for factor in FACTORS])
    median = (1 - 1 / 1.05) / 2
    assert list(comparison.errors().values()) == pytest.approx([median, 0.25, 4, 5])
    assert all(run.spread == pytest.approx(0.2) for run in comparison.runs)
    assert error_by(comparison.runs, "bits")["2"] == pytest.approx((2, (1 - 1 / 1.15 + 0.25) / 2, 0.25))
    assert error_by(comparison.runs, "ranks")["2"] == pytest.approx((3, 1 - 1 / 1.05, 1 - 1 / 1.15))


def test_what_is_extrapolated_left_out_or_elsewhere_is_told(study: Path, comparison: Comparison) -> None:
    warnings = comparison.warnings()
    of_ranks = "ranks is 4, fitted on 1 to 2: the terms message and link_imbalance are extrapolated"
    of_rate = "megabits per second is 300, fitted on 1000 to 1000: the terms rate_share and latency are extrapolated"
    assert (warnings[of_ranks], warnings[of_rate]) == (3, 2)
    assert sum(not run.warnings for run in comparison.runs) == 2
    assert [each.partition(":")[0] for each in comparison.left_out] == ["links"]
    found = compare(made_up_model("elsewhere"), study, records.read(study))
    assert "the runs were made on another machine" in found.notes[0]


def test_the_command_prints_an_object_or_tables(study: Path) -> None:
    found = told("model", "compare", study / "model.toml", study)
    assert found["worst_error"] == pytest.approx(0.25)
    assert (found["within_10_percent"], len(found["runs"]), len(found["left_out"])) == (4, len(FACTORS), 1)
    table = said("model", "compare", study / "model.toml", study)
    assert "+25.0%" in table
    assert "off by 2.4% in the median and 25.0% at worst; 4 are within 10 % and 5 within 20 %" in table
    assert "Extrapolated terms" in table


def test_the_report_has_the_tables_and_a_figure_with_a_point_for_each_run(study: Path, comparison: Comparison) -> None:
    assert "Predicted against measured" not in [section.title for section in study_of(study).sections]
    said("study", "report", study, "--model", study / "model.toml")
    page = (study / "report.html").read_text()
    assert page.count("Predicted against measured") >= 2
    assert "predicted seconds per epoch" in page
    assert "| +25.0% |" in (study / "report.md").read_text()
    picture = model_section(comparison).pictures[0]
    assert "+25%" in picture.alt
    one = drawing.agreement([Series("runs", (0.1,), (0.2,))], "measured", "predicted")
    assert picture.draw().count("<use ") >= one.count("<use ") + len(FACTORS) - 1


# -- fits to the same study, from the command line ---------------------------------------------------------------------------


def test_the_first_epochs_do_not_count_and_unknown_runs_are_told(study: Path) -> None:
    (first, *_), own = runs_of(study), records.read(study)
    others = {
        "the bit-widths of --bits adaqp": {"bits": "adaqp"},
        "trained by PyG": {"framework": "pyg"},
        "restricted to the instruction set avx2": {"isa": "avx2"},
    }
    found = cases_of(study, [*own, *(record_of(first, 1.0, "other", **changes) for changes in others.values())])
    assert [each.seconds for each in found.cases] == pytest.approx([each.epochs["seconds"][4] for each in own[:-1]])
    assert found.cases[0].phases["aggregation"] == pytest.approx(0.1)
    for left_out, expected in zip(found.left_out[1:], others, strict=True):
        assert left_out.startswith("other: ")
        assert expected in left_out


def test_machines_are_not_mixed(study: Path, tmp_path: Path) -> None:
    of_two = [*records.read(study), record_of(runs_of(study)[0], 1.0, "elsewhere", machine="there")]
    with pytest.raises(HpcgnnError, match=r"2 machines .*choose one with --machine ID"):
        cases_of(study, of_two)
    assert len(cases_of(study, of_two, "there").cases) == 1
    with pytest.raises(HpcgnnError, match="no records of machine elsewhere"):
        cases_of(study, of_two, "elsewhere")
    with pytest.raises(HpcgnnError, match="no finished run"):
        cases_of(tmp_path, [])


@pytest.fixture(scope="module")
def small_model(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.toml"
    found = told("model", "fit", study, "--out", path)
    assert found["residuals"]["runs"] == len(FACTORS)
    assert found["constants"]["layer"]["low"] <= found["constants"]["layer"]["value"]
    return path


def test_predictions_warn_of_what_was_not_fitted(study: Path, small_model: Path) -> None:
    flags = ("--hidden", 64, "--rate", "3gbit", "--strategy", "all")
    found = told("model", "predict", small_model, study / "parts/8.h5", *flags)["predictions"]
    assert set(found) == {"pre", "post", "hybrid"}
    hybrid = found["hybrid"]
    assert hybrid["bytes_sent"] == sum(hybrid["bytes_sent_of_ranks"]) <= found["post"]["bytes_sent"]
    assert len(hybrid["memory_bytes_of_ranks"]) == 8
    assert 0 < hybrid["epoch_seconds"] <= sum(hybrid["phases_seconds"].values())
    warnings = "\n".join(hybrid["warnings"])
    assert "ranks is 8, fitted on 2 to 4: the terms message and link_imbalance are extrapolated" in warnings
    assert "hidden is 64, fitted on 16 to 16: the terms entry and row and element are extrapolated" in warnings
    assert "megabits per second is 3000, fitted on 300 to 1000" in warnings

    usual = ("model", "predict", small_model, study / "parts/2.h5", "--hidden", 16, "--rate", "1gbit")
    assert told(*usual)["predictions"]["hybrid"]["warnings"] == []
    of_gcn = told(*usual, "--model", "gcn", "--bits", 2, "--memory")["predictions"]["hybrid"]
    assert "model is gcn, fitted on sage: the terms layer and element are extrapolated" in of_gcn["warnings"]
    parts = of_gcn["memory_parts_bytes"]
    assert parts["total"] == sum(parts.values()) - parts["total"]
    assert parts["activations"] > parts["messages"] > 0


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--ranks", 8), "has 2 parts, not 8"),
        (("--rate", "1gbit", "--network", "xeon-hdr"), "give only one of them"),
        (("--rate", "fast"), "not the speed of a network"),
        (("--network", "nowhere"), "no profile nowhere"),
        (("--model", "gat", "--heads", 3), "heads must divide hidden"),
    ],
)
def test_bad_input(study: Path, small_model: Path, args: tuple, problem: str) -> None:
    assert problem in refusal("model", "predict", small_model, study / "parts/2.h5", *args)


def test_networks_and_profiles(study: Path, small_model: Path) -> None:
    path = study / "parts/4.h5"
    assert told("model", "predict", small_model, path, "--network", "xeon-hdr", "--ranks-per-node", 2)["predictions"]
    for name, profile in profiles().items():
        found = told("model", "predict", name, path, "--ranks-per-node", 1)["predictions"]["hybrid"]
        warnings = [each.partition(" ")[0] for each in found["warnings"]]
        assert warnings == ["seconds", str(len(profile.estimates))]
        assert found["epoch_seconds"] > 0
    assert model_of_profile(profiles()["xeon-hdr"]).values()["product_float32"] == pytest.approx(2 / (0.5 * 153.6e9))
