"""Projections: their figures, files and reports, and warnings about profiles whose numbers are estimates."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from small_graphs import even_graph, random_parts, write_parts

from hpcgnn.cli.model import model as command
from hpcgnn.cost_model import profiles
from hpcgnn.cost_model.project import SETS, WAYS, ways_of
from hpcgnn.data import plan_store
from hpcgnn.errors import HpcgnnError
from hpcgnn.report import page, projection_section

NODE = ("--ranks-per-node", "1", "--hidden", "16", "--layers", "2")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A graph in 2 and 4 parts, and one of twice its size in 4."""
    folder, found = tmp_path_factory.mktemp("parts"), []
    for nodes, ranks in ((400, 2), (400, 4), (800, 4)):
        graph = even_graph(nodes, 4 * nodes)
        found.append(folder / f"{nodes}-{ranks}.h5")
        write_parts(found[-1], graph, random_parts(nodes, ranks), ranks)
        plan_store.store_plans(found[-1], ["pre", "post", "hybrid"])
    return found


def run(*args: object) -> Result:
    return CliRunner().invoke(command, [str(each) for each in args], catch_exceptions=True)


def written(*args: object) -> dict[str, Any]:
    found = run(*args, "--json")
    assert found.exit_code == 0, (found.output, found.exception)
    return json.loads(found.stdout)


def test_strong_and_weak_scaling_in_one_figure(files: list[Path], tmp_path: Path):
    outs = [tmp_path / f"projection.{kind}" for kind in ("svg", "pdf", "json", "md", "html")]
    args = ("project", "fugaku-like", *files[:2], "--weak", files[0], "--weak", files[2], *NODE)
    told = written(*args, *(each for out in outs for each in ("--out", out)))
    assert told["written"] == [str(out) for out in outs]
    assert len(told["predictions"]) == 4 * len(SETS["strategies"])
    projection = projection_section.read(outs[2])
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


def test_policies_say_what_they_assume(files: list[Path], tmp_path: Path):
    out = tmp_path / "policies.json"
    written("project", "h100-ndr", *files[:2], "--ways", "policies", "--out", out, *NODE)
    by_way = {each.way: each for each in projection_section.read(out).points if each.ranks == 4}
    assert list(by_way) == list(SETS["policies"])
    assert not by_way["vanilla"].assumes
    assert all(by_way[name].assumes for name in ("adaqp", "sylvie", "pipeqs"))
    assert (by_way["sylvie"].stale_share, by_way["pipeqs"].sent_share) == (0.5, 0.25)
    assert by_way["adaqp"].bytes_sent < by_way["int8"].bytes_sent < by_way["vanilla"].bytes_sent
    text, _ = page.as_markdown(projection_section.page(projection_section.read(out)), "x")
    assert "8 bits, the initial bit-width of PipeQS" in text


def test_a_study_with_a_projection_in_its_folder_shows_it(files: list[Path], tmp_path: Path):
    assert projection_section.section_of(tmp_path) == ()
    written("project", "xeon-hdr", *files[:2], "--ways", "vanilla", "--out", tmp_path / projection_section.NAME, *NODE)
    (section,) = projection_section.section_of(tmp_path)
    assert [table.title for table in section.tables] == ["Strong scaling"]
    assert len(section.tables[0].rows) == 2
    (tmp_path / projection_section.NAME).write_text("{}")
    with pytest.raises(HpcgnnError, match=projection_section.NAME):
        projection_section.section_of(tmp_path)


def test_shares_and_settings_on_the_command_line(files: list[Path]):
    args = ("predict", "h100-ndr", files[1], *NODE, "--bits", "adaqp")
    told = written(*args, "--shares", "2:0.5,8:0.5")["predictions"]["hybrid"]
    assert told["bits_shares"] == {"2": 0.5, "8": 0.5}
    assert "bit-widths 2: 50.0%, 8: 50.0%, as given" in told["assumes"][0]
    fewest = written(*args, "--set", "variance_weight=0")["predictions"]["hybrid"]
    assert fewest["bits_shares"] == {"2": 1.0}
    assert fewest["bytes_sent"] < told["bytes_sent"]
    sylvie = written("predict", "h100-ndr", files[1], *NODE, "--staleness", "sylvie", "--stale-share", "0.9")
    assert sylvie["predictions"]["hybrid"]["stale_share"] == pytest.approx(0.9)


def test_a_table_for_people_says_what_is_assumed(files: list[Path]):
    found = run("predict", "h100-ndr", files[1], *NODE, "--bits", "uniform", "--staleness", "pipeqs")
    assert found.exit_code == 0, found.exception
    for text in (
        "equal shares",
        "in one of 4 epochs",
        "seconds are estimates",
        "messages timed one by one",
        "uniform+pipeqs",
    ):
        assert text in " ".join(found.output.split()), text


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
    found = run(args[0], "h100-ndr", files[0], *NODE, *args[1:])
    assert isinstance(found.exception, HpcgnnError)
    assert problem in str(found.exception)


def test_ways_have_words_of_their_own():
    assert len({way.in_words for way in WAYS.values()}) == len(WAYS)
    assert list(ways_of("policies,pipeline")) == [*SETS["policies"], "pipeline"]


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


def test_numbers_without_a_source_are_estimates(tmp_path: Path):
    text = profiles.OWN.read_text()
    table = tomllib.loads(text)["xeon-hdr"]
    path = tmp_path / "own.toml"
    start = text.index("[xeon-hdr]")
    own = text[start : text.index("[epyc-slingshot]")]
    line = next(each for each in own.splitlines() if each.startswith("units_per_node"))
    path.write_text(own.replace(line, "units_per_node = 72"))
    found = profiles.find(str(path))
    assert found.units_per_node == table["units_per_node"]["value"]
    assert "units_per_node" in found.estimates
    path.write_text(own.replace(line, "units_per_node = { value = 72 }"))
    with pytest.raises(HpcgnnError, match="units_per_node must be a number, or"):
        profiles.find(str(path))
