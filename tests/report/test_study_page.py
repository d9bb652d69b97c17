"""The page of a study: its tables and figures, and the comparison of epochs by number of ranks."""

from __future__ import annotations

import shutil

import pytest
from test_report import Reader

from hpcgnn.errors import HpcgnnError
from hpcgnn.report.study_page import study_of, study_page
from hpcgnn.study import catalogue, records, specification
from hpcgnn.study.records import Record


@pytest.fixture
def study(tmp_path):
    """The shipped study ``quick`` with times that halve when ranks double; its last run has failed."""
    shutil.copy(catalogue.find("quick"), tmp_path / records.SPECIFICATION)
    runs = specification.read(tmp_path / records.SPECIFICATION).runs
    for run in runs:
        seconds = 0.8 / run.configuration["ranks"]
        phases = {"aggregation_seconds": 0.75 * seconds, "communication_wait_seconds": 0.25 * seconds}
        summary = {
            "epoch_seconds_median": seconds,
            "bytes_sent_per_epoch": 1000.0,
            "breakdown_seconds_mean_median": phases,
        }
        told = {"machine": records.machine_facts(), "versions": {"hpcgnn": "<b>1</b>"}, "summary": summary}
        status = records.FAILED if run is runs[-1] else records.FINISHED
        records.append(
            tmp_path, Record(key=run.key, configuration=run.configuration, status=status, error="<i>", **told)
        )
    return tmp_path


def test_it_has_the_tables_the_figures_and_the_phases_by_ranks(study):
    page = study_of(study)
    pictures = {picture.title: picture for section in page.sections for picture in section.pictures}
    assert "1: 800 ms, of which waiting 200 ms; 2: 400 ms, of which waiting 100 ms" in pictures["An epoch by phase"].alt
    assert "0.8 at 1, 0.4 at 2, 0.2 at 4" in pictures["Seconds of an epoch"].alt
    assert any("failed: <i>" in note for note in page.notes)
    text = Reader(study_page(study)).text
    assert "8 of 9 have finished" in text
    assert "<b>1</b>" in text


def test_a_study_of_which_nothing_has_run(study):
    (study / records.RECORDS).unlink()
    with pytest.raises(HpcgnnError, match="no run has finished yet"):
        study_page(study)


def test_a_study_of_which_nothing_has_finished(study):
    run = specification.read(study / records.SPECIFICATION).runs[0]
    (study / records.RECORDS).unlink()
    told = {"configuration": run.configuration, "machine": records.machine_facts()}
    records.append(study, Record(key=run.key, status=records.STARTED, **told))
    assert "No run has finished yet." in Reader(study_page(study)).text
