"""Documents in docs/studies are the output of ``hpcgnn study report`` for the records beside them, and their specifications
ship.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_pool import ROOT

from hpcgnn.study import catalogue, markdown, specification
from hpcgnn.study.summary import read_study, summarise

FOLDERS = sorted(path.parent for path in (ROOT / "docs" / "studies").glob("*/records.jsonl"))


def test_there_are_documents() -> None:
    assert len(FOLDERS) > 10


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_document_is_made_of_its_records(folder: Path) -> None:
    written = (folder / "report.md").read_text()
    # After the study's own text, a document may have a model's predictions (`hpcgnn study report --model`).
    assert written.startswith(markdown.page(summarise(folder)).rstrip())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_document_is_of_the_specification_that_ships(folder: Path) -> None:
    shipped = specification.read(catalogue.find(folder.name))
    assert {run.key for run in shipped.runs} == {run.key for run in read_study(folder).runs}
