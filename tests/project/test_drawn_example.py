"""The pictures and tables of docs/explanation/algebra.md are those that tools/draw_example.py makes with the present code."""

from __future__ import annotations

from checkout import tool


def test_the_committed_files_are_those_that_are_made() -> None:
    files = tool("draw_example").files()
    assert len(files) == 6
    changed = [path.name for path, text in files.items() if path.read_text() != text]
    assert changed == [], "run `python tools/draw_example.py`, and look at what has changed"
