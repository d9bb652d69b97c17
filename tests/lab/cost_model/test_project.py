"""Projections: their figures, files and reports, and warnings about profiles whose numbers are estimates."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_line import refusal, said, told
from small_graphs import even_graph, in_parts

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.cost_model import profiles
from hpcgnn.lab.cost_model.predict import SETS
from hpcgnn.lab.report import page, study_page

NODE = ("--ranks-per-node", "1", "--hidden", "16", "--layers", "2")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A graph in 2 and 4 parts, and one of twice its size in 4."""
    folder, strategies = tmp_path_factory.mktemp("parts"), ["pre", "post", "hybrid"]
    return [
        in_parts(folder / f"{nodes}-{ranks}.h5", even_graph(nodes, 4 * nodes), ranks, strategies)
        for nodes, ranks in ((400, 2), (400, 4), (800, 4))
    ]


def test_strong_and_weak_scaling_in_one_figure(files: list[Path], tmp_path: Path):
    outs = [tmp_path / f"projection.{kind}" for kind in ("svg", "pdf", "json", "md", "html")]
    args = ("model", "project", "fugaku-like", *files[:2], "--weak", files[0], "--weak", files[2], *NODE)
    found = told(*args, *(each for out in outs for each in ("--out", out)))
    assert found["written"] == [str(out) for out in outs]
    assert len(found["predictions"]) == 4 * len(SETS["strategies"])
    projection = study_page.read_projection(outs[2])
    assert [(each.scaling, each.ranks) for each in projection.points if each.way == "int2"] == [
        ("strong", 2), ("strong", 4), ("weak", 2), ("weak", 4),
    ]  # fmt: skip
    svg = outs[0].read_text()
    for text in ("Strong scaling", "Weak scaling", "vanilla (post, 32 bits)", "int2 (hybrid, 2 bits)", "ideal"):
        assert text in svg, text
    assert outs[1].read_bytes().startswith(b"%PDF")
    pictures = list(tmp_path.glob("projection-*.svg"))
    assert [each.name in outs[3].read_text() for each in pictures] == [True]
    for out in outs[3:]:
        text = out.read_text()
        assert "nothing was measured" in text
        assert "seconds are estimates" in text.lower()
        assert "Sato 2020" in text
        assert "A64FX" in text


def test_each_strategy_comes_with_all_bits_and_then_hybrid_with_fewer(files: list[Path], tmp_path: Path):
    flags = ("--bits", "32,8,2", "--out", tmp_path / "scaling.svg")
    found = told("model", "project", "fugaku-like", *files[:2], *NODE, *flags)["predictions"]
    assert [(each["ranks"], each["strategy"], each["bits"]) for each in found[:5]] == [
        (2, "pre", 32), (2, "post", 32), (2, "hybrid", 32), (2, "hybrid", 8), (2, "hybrid", 2),
    ]  # fmt: skip


def test_policies_say_what_they_assume(files: list[Path], tmp_path: Path):
    out = tmp_path / "policies.json"
    told("model", "project", "h100-ndr", *files[:2], "--ways", "policies", "--out", out, *NODE)
    by_way = {each.way: each for each in study_page.read_projection(out).points if each.ranks == 4}
    assert list(by_way) == list(SETS["policies"])
    assert not by_way["vanilla"].assumes
    assert all(by_way[name].assumes for name in ("adaqp", "sylvie", "pipeqs"))
    assert (by_way["sylvie"].stale_share, by_way["pipeqs"].sent_share) == (1.0, 0.25)
    assert by_way["adaqp"].bytes_sent < by_way["int8"].bytes_sent < by_way["vanilla"].bytes_sent
    text, _ = page.as_markdown(study_page.projection_page(study_page.read_projection(out)), "x")
    assert text.count("so little that 2 bits, the fewest ones, are enough") == 1, "for both numbers of ranks"


def test_a_study_with_a_projection_in_its_folder_shows_it(files: list[Path], tmp_path: Path):
    assert study_page.section_of(tmp_path) == ()
    out = tmp_path / study_page.PROJECTION
    told("model", "project", "xeon-hdr", *files[:2], "--ways", "vanilla", "--out", out, *NODE)
    (section,) = study_page.section_of(tmp_path)
    assert [table.title for table in section.tables] == ["Strong scaling"]
    assert len(section.tables[0].rows) == 2
    out.write_text("{}")
    with pytest.raises(HpcgnnError, match=study_page.PROJECTION):
        study_page.section_of(tmp_path)


def test_shares_and_settings_on_the_command_line(files: list[Path]):
    args = ("model", "predict", "h100-ndr", files[1], *NODE)
    both = told(*args, "--bits", "adaqp", "--shares", "2:0.5,8:0.5")["predictions"]["hybrid"]
    assert both["bits_shares"] == {"2": 0.5, "8": 0.5}
    assert "bit-widths 2: 50.0%, 8: 50.0%, as given" in both["assumes"][0]
    fewest = told(*args, "--bits", "adaqp", "--set", "variance_weight=0")["predictions"]["hybrid"]
    assert fewest["bits_shares"] == {"2": 1.0}
    assert fewest["bytes_sent"] < both["bytes_sent"]
    sylvie = told(*args, "--staleness", "sylvie", "--stale-share", "0.9")["predictions"]["hybrid"]
    assert sylvie["stale_share"] == pytest.approx(0.9)


def test_a_table_for_people_says_what_is_assumed(files: list[Path]):
    found = said("model", "predict", "h100-ndr", files[1], *NODE, "--bits", "uniform", "--staleness", "pipeqs")
    about = ("hybrid", "equal shares", "in one of 4 epochs", "seconds are estimates", "messages timed one by one")
    assert [text for text in (*about, "uniform+pipeqs") if text not in " ".join(found.split())] == []


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("project", "--ways", "fastest", "--out", "x.svg"), "--ways must be a list of strategies, policies, vanilla"),
        (("project", "--out", "x.png"), "must end in one of .svg, .pdf"),
        (("project", "--bits", "3", "--out", "x.svg"), "--bits must be a list of"),
        (("predict", "--bits", "random"), "random"),
        (("predict", "--staleness", "never"), "staleness"),
        (("predict", "--bits", "uniform", "--shares", "2-0.5"), "--shares must be a list of BITS:SHARE"),
        (("predict", "--bits", "uniform", "--shares", "2:0.5"), "must add up to 1"),
        (("predict", "--set", "shoe_size=43"), "--set must be NAME=VALUE"),
        (("predict", "--like", "nowhere"), "nowhere"),
    ],
)
def test_bad_input(files: list[Path], args: tuple[str, ...], problem: str):
    assert problem in refusal("model", args[0], "h100-ndr", files[0], *NODE, *args[1:])


# -- sources of numbers --------------------------------------------------------------------------------------------------


def numbers_of(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """All values that are numbers, with or without a source."""
    found = {}
    for name, value in table.items():
        if isinstance(value, dict) and "value" not in value:
            found |= numbers_of(value, f"{prefix}{name}.")
        elif isinstance(value, dict | int | float):
            found[prefix + name] = value
    return found


def test_every_number_has_a_source_or_says_why_it_is_estimated():
    for name, table in tomllib.loads(profiles.OWN.read_text()).items():
        own = profiles.profiles()[name]
        found = numbers_of(table)
        assert found.keys() == own.numbers.keys(), name
        for number, value in found.items():
            assert isinstance(value, dict), (name, number)
            source = value["source"]
            if source.startswith(profiles.ESTIMATE):
                assert len(source) > len("estimate: because"), (name, number)
            else:  # a document and its year, or a system, which must be among the sources
                first = source.split(":")[0].split(",")[0].split()[0]
                assert any(first in each for each in own.sources), (name, number, source)
        assert 0 < len(own.estimates) < len(found)
