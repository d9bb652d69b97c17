"""The pictures and tables of docs/explanation/algebra.md are those that tools/draw_example.py makes with the present code."""

from __future__ import annotations

from types import ModuleType
from xml.etree import ElementTree

import checkout
import pytest

AGAIN = "run `python tools/draw_example.py`"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return checkout.tool("draw_example")


@pytest.fixture(scope="module")
def made(tool: ModuleType) -> dict:
    return tool.examples()


def test_the_committed_files_are_those_that_are_made(tool: ModuleType) -> None:
    files = tool.files()
    assert len(files) == 6
    assert [path.name for path, text in files.items() if path.read_text() != text] == [], AGAIN


def test_hybrid_beats_both_and_has_rows_of_both_kinds(made: dict) -> None:
    rows = {strategy: len(example.rows) for strategy, example in made.items()}
    assert rows == {"pre": 5, "post": 4, "hybrid": 3, "relations": 3, "type a": 3, "type b": 1}
    assert {row.kind for row in made["hybrid"].rows_of(0)} == {"pre", "post"}


def test_the_page_says_which_nodes_are_in_which_of_the_four_blocks(tool: ModuleType, made: dict) -> None:
    table = tool.texts(made)["blocks"]
    assert "none" not in table, "the example is to have a node in each block"


def test_a_picture_has_a_line_for_each_edge_and_each_row(tool: ModuleType, made: dict) -> None:
    for name, svg in tool.pictures(made).items():
        root = ElementTree.fromstring(svg)
        lines = [each.get("class") for each in root.iter("{http://www.w3.org/2000/svg}path")]
        legend, of_type_b = 1, len(tool.OF_TYPE_B) if name == tool.TYPED else 0
        assert lines.count("cut") == len(tool.CUT) - of_type_b + legend
        assert lines.count("cut b") == (of_type_b + legend if of_type_b else 0)
        assert lines.count("inside") == len(tool.INSIDE) + (name == "graph")
        assert lines.count("carry") == (0 if name == "graph" else len(made[name].rows) + legend)
