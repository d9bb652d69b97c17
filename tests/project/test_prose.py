"""The linter of prose finds what the style page forbids, at its place, and passes over code."""

from __future__ import annotations

from types import ModuleType

import pytest
from checkout import tool
from requires import require_module


@pytest.fixture
def prose() -> ModuleType:
    require_module("proselint")
    return tool("prose")


def test_only_what_is_against_the_style_is_found(prose: ModuleType) -> None:
    wrong = {
        "A rank sends rows. Unevenness costs time.\n": "Unevenness",  # a term of the style page
        "The result is very unique.\n": "very unique",  # a check of proselint
        "It runs. What is sent is rounded. It ends.\n": "What",
        "# Title\n\nWho sends rounds. It ends.\n": "Who",
        "The rank sends the the rows.\n": "the the",
    }
    right = [
        "What does a rank send? It sends rows of the boundary.\n",
        "The key `unevenness` is a name.\n\n```bash\nunevenness unevenness\n```\n\n[A link](unevenness.md).\n",
        "# hpcgnn\n\nhpcgnn trains models.\n",
    ]
    found = {text: {place for place, _ in prose.findings_in_page(text, prose.checks())} for text in (*wrong, *right)}
    assert found == {text: {text.index(word)} for text, word in wrong.items()} | {text: set() for text in right}


def test_docstrings_begin_as_sentences(prose: ModuleType) -> None:
    text = '"""A module."""\n\n\ndef rows():\n    """What is sent."""\n\n\ndef sent():\n    """Return the rows."""\n'
    assert [line for line, _ in prose.findings_in_code(text)] == [4]


def test_terms_are_those_of_the_style_page(prose: ModuleType) -> None:
    assert prose.terms("| write | not |\n| --- | --- |\n| halo node | Ghost node; alien node |\n") == {
        "ghost node": "halo node",
        "alien node": "halo node",
    }
    assert len(prose.terms(prose.STYLE.read_text())) > 10
