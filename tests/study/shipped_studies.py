"""The shipped specifications and the committed records of studies, each of which is read and summarised once."""

from __future__ import annotations

import functools

from rank_pool import ROOT

from hpcgnn.study import catalogue, specification
from hpcgnn.study.summary import StudySummary, summarise

STUDIES = ROOT / "docs" / "studies"
COMMITTED = sorted(path.parent.name for path in STUDIES.glob("*/records.jsonl"))


@functools.cache
def shipped(name: str) -> specification.Specification:
    """The specification that the package ships."""
    return specification.read(catalogue.find(name))


@functools.cache
def summary_of(name: str) -> StudySummary:
    """The summary of a study's committed records."""
    return summarise(STUDIES / name)
