"""The list of sections, in the order of the report. A section's module is imported when it runs, because some import torch."""

from __future__ import annotations

import importlib

from campaign.section import Section

_MODULES = {
    "kills": "campaign.kills",
    "disk": "campaign.disk",
    "network": "campaign.network",
    "soak": "campaign.soak",
    "sanitizers": "campaign.sanitizers",
}
NAMES = tuple(_MODULES)


def section(name: str) -> Section:
    """The section with this name: the ``SECTION`` of its module."""
    found = importlib.import_module(_MODULES[name]).SECTION
    assert found.name == name, f"{_MODULES[name]} holds the section {found.name}"
    return found
