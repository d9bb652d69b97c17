"""The output of the command convert: a JSON object, a table, or nothing."""

import json

import pytest
from click.testing import CliRunner

from hpcgnn import HpcgnnError
from hpcgnn.cli import console
from hpcgnn.cli.convert import convert


def run(*arguments):
    return CliRunner().invoke(convert, list(map(str, arguments)), catch_exceptions=False)


def test_json_is_one_object(tmp_path):
    result = run(
        "sbm:nodes=100,blocks=2", tmp_path / "g.h5", "--json", "--self-loops", "--split", "random:0.5,0.2,0.3,1"
    )
    values = json.loads(result.stdout)
    assert result.stderr == ""
    assert (values["num_nodes"], values["num_classes"]) == (100, 2)
    assert values["split_sizes"] == {"train_mask": 50, "val_mask": 20, "test_mask": 30}
    assert values["file_bytes"] == (tmp_path / "g.h5").stat().st_size
    assert values["seconds"] > 0
    assert values["peak_memory_bytes"] > 1 << 20


def test_table_and_quiet(tmp_path):
    result = run("sbm:nodes=1000,blocks=2", tmp_path / "g.h5")
    for word in (
        "1,000",
        "16,000 undirected",
        "64 dense",
        "2 single-label",
        "600 / 200 / 200",
        "peak memory",
        "file size",
    ):
        assert word in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["source", "sbm:nodes=1000,blocks=2"] in lines
    assert "".join(result.stdout.split()).startswith(f"{tmp_path}/g.h5")
    assert run("sbm:nodes=1000", tmp_path / "g.h5", "--force", "--quiet").output == ""


def test_errors_propagate_to_main(tmp_path):
    with pytest.raises(HpcgnnError, match="does not exist"):
        run("npz:none.npz", tmp_path / "g.h5")


def test_help_has_examples():
    text = run("--help").output
    assert "hpcgnn convert digits digits.h5" in text
    for option in ("--split", "--features", "--undirected", "--self-loops", "--row-normalise", "--drop-duplicates"):
        assert option in text


def test_progress_only_on_a_terminal(capsys, monkeypatch):
    with console.progress("edges", 10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(console, "is_terminal", lambda descriptor: True)
    monkeypatch.setenv("TERM", "xterm")
    with console.progress("edges", 10) as advance:
        advance(10)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "edges" in shown.err
    with console.progress("edges", 10, quiet=True) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


def test_sizes():
    assert [console.size(n) for n in (0, 1023, 3 << 20, 5 << 40)] == ["0 B", "1023 B", "3.0 MiB", "5.0 TiB"]
