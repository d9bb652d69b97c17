"""Phrases about values of wrong types."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys

import msgspec
import pytest
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import (
    Count,
    Finite,
    MessageBits,
    check_epochs,
    read_json,
    read_lines,
    text_of,
    validated,
    why_invalid,
)


class Line(msgspec.Struct):
    epoch: Count
    loss: Finite = 0.0
    shares: dict[str, dict[str, Finite]] = {}
    ranks: list[Count] = []
    bits: MessageBits = 32


WRONG = [
    (3, "it must be a table of names and values, not a whole number"),
    ([], "it must be a table of names and values, not a list"),
    ({}, "epoch is missing"),
    ({"epoch": 1.0}, "epoch must be a whole number, not a number"),
    ({"epoch": True}, "epoch must be a whole number, not true or false"),
    ({"epoch": -1}, "epoch must be a whole number of at least 0"),
    ({"epoch": 2**63}, "epoch must be a whole number below 2^63"),
    ({"epoch": 10**30}, "epoch must be a whole number below 2^63"),
    ({"epoch": 1, "loss": math.nan}, "loss must be a number that is finite"),
    ({"epoch": 1, "loss": -math.inf}, "loss must be a number that is finite"),
    ({"epoch": 1, "loss": "1"}, "loss must be a number, not a text"),
    ({"epoch": 1, "ranks": [0, "1"]}, "ranks[1] must be a whole number, not a text"),
    ({"epoch": 1, "shares": {"a": {"b": None}}}, "shares[...][...] must be a number, not nothing"),
    ({"epoch": 1, "shares": {2: {}}}, "a name in shares must be a text, not a whole number"),
    ({"epoch": 1, "shares": torch.ones(2)}, "it has a wrong type"),
    ({"epoch": 1, "bits": 3}, "bits cannot be 3"),
]


def test_a_problem_names_the_field():
    for value, sentence in WRONG:
        assert why_invalid(value, Line) == sentence
        with pytest.raises(HpcgnnError, match=f"^FILE: {re.escape(sentence)}$"):
            validated(value, Line, "FILE")
    assert why_invalid({"epoch": 0, "loss": 1, "more": object()}, Line) == ""
    assert validated({"epoch": 3}, Line, "FILE") == Line(3)


def test_lines_are_named_by_their_number(tmp_path):
    path = tmp_path / "lines"
    path.write_text('{"epoch": 0}\n{"epoch": 1, "loss": NaN}\n')
    with pytest.raises(HpcgnnError, match=r"lines, line 2: loss must be a number that is finite$"):
        read_lines(path, Line)
    for wrong in ("[" * 100_000, "{", "\x00"):
        path.write_text(f'{{"epoch": 0}}\n{wrong}\n')
        with pytest.raises(HpcgnnError, match="lines, line 2: it is not JSON"):
            read_lines(path, Line)
    path.write_text('{"epoch": 0, "more": [1]}\n{"epoch": 1}\n{"epo')
    assert read_lines(path, Line) == [{"epoch": 0, "more": [1]}, {"epoch": 1}], "a killed run leaves half a line"


def test_epochs_ascend(tmp_path):
    check_epochs([{"epoch": 0}, {"epoch": 3}], tmp_path)
    for second in (0, 1):
        with pytest.raises(HpcgnnError, match=f"line 2: epoch {second} comes after epoch 1"):
            check_epochs([{"epoch": 1}, {"epoch": second}], tmp_path)


def test_what_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "file"
    for make, sentence in (
        (lambda: None, "No such file"),
        (path.mkdir, "Is a directory"),
        (lambda: os.mkfifo(path), "it is not a file"),  # which is not waited for
        (lambda: path.write_text('{"epoch": 1}', encoding="utf-16"), "it is in UTF-16, not in UTF-8: save it as UTF-8"),
        (lambda: path.write_bytes(b"ab\xff"), "not text in UTF-8"),
    ):
        make()
        with pytest.raises(HpcgnnError, match=f"cannot read .*file: .*{sentence}"):
            read_json(path, Line)
        if path.is_dir():
            path.rmdir()
        elif sentence != "not text in UTF-8":
            path.unlink(missing_ok=True)
    assert text_of(path, "surrogateescape") == "ab\udcff"
    path.write_text('{"epoch": 1}', encoding="utf-8-sig")
    assert read_json(path, Line).epoch == 1, "a byte order mark is skipped"


def test_ranks_that_are_threads_may_read_at_once() -> None:
    """The first conversions to a type, in two threads, crashed the process in most runs of this program."""
    program = """
import sys, threading, msgspec
from hpcgnn.base.typed import Count, validated
sys.setswitchinterval(1e-6)
for _ in range(300):
    class Line(msgspec.Struct, kw_only=True):
        x: Count
        y: list[dict[str, Count]]
        z: dict[str, float] | None = None
    start = threading.Barrier(4)
    def read():
        start.wait()
        for _ in range(20):
            validated({"x": 1, "y": [{"a": 1}]}, Line, "file")
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
