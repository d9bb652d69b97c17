"""``hpcgnn report``: pages about a run, about several runs and about a study, whatever their folders contain."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import made_up
import pytest
import small_graphs
from command_line import refusal, said, told

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.report import drawing, words
from hpcgnn.lab.report.page import Page, Picture, as_html, as_markdown
from hpcgnn.lab.report.run_pages import comparison_page, run_page
from hpcgnn.lab.report.study_page import study_of
from hpcgnn.lab.study import catalogue, records, specification
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.tables import Figure, Series
from hpcgnn.train.run_files import read_run

_EMPTY = ("meta", "link", "img", "br", "hr", "input")


class Reader(HTMLParser):
    """The content of a page for a browser: text, attributes by tag, and whether all elements are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.attributes, self._open = "", [], []
        self.feed(page)
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def values(self, name):
        return [value for _, found, value in self.attributes if found == name]


def tables(page: Page) -> dict[str, list[tuple[str, ...]]]:
    """The rows of all tables, by title."""
    return {table.title: list(table.rows) for section in page.sections for table in (*section.tables, *section.folded)}


def pictures(page: Page) -> dict[str, Picture]:
    return {picture.title: picture for section in page.sections for picture in section.pictures}


def notes(page: Page) -> str:
    return "\n".join(page.notes)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Page:
    return run_page(made_up.run_folder(tmp_path_factory.mktemp("usual") / "run"))


@pytest.fixture(scope="module")
def html(page) -> str:
    return as_html(page)


class TestRun:
    def test_the_page_has_the_numbers_of_the_folder(self, page, html):
        found = tables(page)
        result = dict(found["In short"])
        assert result["best validation accuracy"] == "51.00 % in epoch 11"
        assert result["test accuracy in that epoch"] == "41.00 %"
        assert result["bytes sent per epoch, all ranks (mean)"] == "120.6 KiB (123,456)"
        assert result["seconds per epoch, slowest rank (median)"] == "12.5 ms"
        assert result["ranks x threads"] == "4 x 3"
        assert result["peak memory per rank, largest"] == "77.0 MiB"
        assert ("hidden", "17", "256") in found["Settings that differ from the defaults"]
        assert ("aggregation", "4.00 ms", "2.00 ms", "32.00 %", "2.00") in found["An epoch by phase"]
        assert ("0", "5.9 KiB", "2.9 KiB", "3", "1") in found["Bytes by rank"]
        assert ("nodes", "800", "200", "600", "3.00") in found["Parts"]
        shown = Reader(html).text
        for value in ("51.00 % in epoch 11", "77.0 MiB", "Rank 3 works longest", "finished after 12 of 12 epochs"):
            assert value in shown

    def test_what_few_epochs_spend_is_told(self, tmp_path):
        """Medians were 0 bytes, and hid a policy that took 6.4 % of the time."""
        lines = [made_up.record(epoch, bytes_sent=123456 * (epoch % 4 == 0)) for epoch in range(13)]
        for line in lines:
            line["policy_seconds_mean"] = 0.0048 * (line["epoch"] in (0, 5))
        found = tables(run_page(made_up.run_folder(tmp_path / "run", lines=lines)))
        assert dict(found["In short"])["bytes sent per epoch, all ranks (mean)"] == "37.1 KiB (37,986.5)"
        (policy,) = (row for row in found["An epoch by phase"] if row[0] == "policy")
        assert policy[2:4] == ("400 µs", "6.40 %")  # 4.8 ms in one of the twelve epochs after the first, of 6.25 ms

    @pytest.mark.parametrize("more", [0, 4])
    def test_a_run_with_another_plan_than_the_file_says_so(self, tmp_path, more):
        folder = made_up.run_folder(tmp_path / "run")
        path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 4, plans=["hybrid"])
        rows, ranks = told("show", path)["plans"]["hybrid"]["rows"], json.loads((folder / "ranks.json").read_text())
        ranks["mean"]["rows_sent"] = [(rows + more) / 4] * 4
        (folder / "ranks.json").write_text(json.dumps(ranks | {"parts_uuid": told("show", path)["uuid"]}))
        (folder / "config.toml").write_text(f'parts = "{path}"\n')
        shown = Reader(as_html(run_page(folder))).text
        assert f"{rows:,}" in shown
        assert (f"first exchange has {rows + more:,} rows, and so none of these plans" in shown) == (more > 0)

    def test_of_equally_good_epochs_the_last_is_the_best_as_in_training(self, tmp_path):
        """best.pt has its weights, and summary.json its test metric."""
        folder = made_up.run_folder(tmp_path / "run")
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        records = [record | {"val_metric": min(record["val_metric"], records[5]["val_metric"])} for record in records]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        assert "in epoch 11" in dict(tables(run_page(folder))["In short"])["best validation accuracy"]

    def test_a_page_is_complete_and_every_picture_says_what_it_shows(self, html):
        found = Reader(html)
        names = ("src", "href", "xlink:href", "data", "action", "srcset", "poster")
        references = [value for name in names for value in found.values(name)]
        assert references
        assert all(value.startswith(("#", "data:image/")) for value in references), references
        assert not re.search(r"<(script|link|iframe|object|embed)\b|@import|url\((?!#)", html, re.IGNORECASE)
        labels = [value for tag, name, value in found.attributes if tag == "svg" and name == "aria-label"]
        assert len(labels) == found.values("role").count("img") == 8
        assert all(len(label) > 30 for label in labels)
        ids = found.values("id")
        assert len(set(ids)) == len(ids)
        assert {value[1:] for value in found.values("href")} <= set(ids)

    def test_bits_ages_and_distances_have_pictures_where_they_change(self, tmp_path, page):
        name = "layer 1's boundary rows"
        decided = [{}, {"failure": "none"}, *({name: {"distance": 0.25 / i, "q": 0}} for i in (1, 2, 5, 5))]
        lines = [
            made_up.record(
                i, bits={name: {"2": 10, "8": 10 * i}}, stale=i > 3, stale_epochs={name: max(i - 3, 0)}, policy=policy
            )
            for i, policy in enumerate(decided)
        ]
        changing = pictures(run_page(made_up.run_folder(tmp_path / "run", lines=lines)))
        for title, change in {
            "Mean bit-width over rows": "from 2 to 7",
            "Age of the rows that are used": "from 0 to 2",
            "Distance of rows from those of the message before, without noise": "from 0.25 to 0.05",
        }.items():
            assert f"{name} {change}" in changing[title].alt
            assert title not in pictures(page)

    def test_text_of_files_stays_text(self, tmp_path):
        bad = "<script>alert('$x_1$ & co')</script>"
        folder = made_up.run_folder(tmp_path / "<b>run", metric=bad, versions={bad: bad})
        with (folder / "config.toml").open("a") as stream:
            stream.write(f'"{bad}" = "{bad}"\n')
        page = as_html(run_page(folder))
        assert "<script" not in page
        assert "<b>" not in page
        assert bad in Reader(page).text
        assert bad in " ".join(Reader(page).values("aria-label"))
        assert "<script" not in as_markdown(run_page(folder), "report")[0]

    def test_many_ranks_and_epochs_make_no_large_page(self, tmp_path):
        lines = [made_up.record(epoch) for epoch in range(5000)]
        page = run_page(made_up.run_folder(tmp_path / "run", lines=lines, size=8192))
        found = tables(page)["Bytes by rank"]
        assert (len(found), found[1][0]) == (64, "128-255")
        text = as_html(page)
        assert len(text) < 1_000_000
        assert "about every 13th" in text


class TestDamage:
    def test_torn_and_foreign_lines_are_left_out_and_the_last_line_of_an_epoch_counts(self, tmp_path):
        folder = made_up.run_folder(tmp_path / "run")
        path = folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        lines[4] = "no json at all\n"
        lines[7] = '{"epoch": "seven"}\n'
        path.write_text("".join(lines) + json.dumps(made_up.record(2, loss=99.0)) + '\n{"epoch": 12, "lo')
        found = notes(run_page(folder))
        assert "2 lines are not records of epochs and are left out (line 5, 8)" in found
        assert "the last line of metrics.jsonl is incomplete" in found
        assert "1 epochs have several lines" in found
        epochs, losses = read_run(folder).values("loss")
        assert epochs == (0, 1, 2, 3, 5, 6, 8, 9, 10, 11)
        assert losses[:4] == (2.0, 1.0, 99.0, 0.5)

    def test_other_damage_is_a_note(self, tmp_path):
        """Each file is damaged in each way, all three at a time."""
        names, contents = (
            ["config.toml", "summary.json", "ranks.json"],
            [b"", b"{", b"[1, 2]", b"\xff\xfe\x00", b'{"ranks": 4}'],
        )
        for first in range(len(contents)):
            folder = made_up.run_folder(tmp_path / str(first))
            damage = dict(zip(names, (contents * 2)[first:], strict=False))
            for name, content in damage.items():
                (folder / name).write_bytes(content)
            found = notes(run_page(folder))
            for name, content in damage.items():
                if content and not (name == "summary.json" and content.startswith(b'{"')):
                    assert name in found, damage

    def test_lists_of_other_lengths_are_left_out(self, tmp_path):
        folder = made_up.run_folder(tmp_path / "run")
        content = json.loads((folder / "ranks.json").read_text())
        content["mean"]["nodes"].pop()
        (folder / "ranks.json").write_text(json.dumps(content))
        assert "do not have the same length" in notes(run_page(folder))

    def test_runs_that_are_not_at_their_end_are_told(self, tmp_path):
        going, stopped = (made_up.run_folder(tmp_path / name, settings={"epochs": 40}) for name in ("going", "stopped"))
        (going / "summary.json").unlink()
        (going / "ranks.json").unlink()
        told = {"metric_name": "accuracy", "epochs": 12, "stop_reason": "SIGUSR1", "finished": False}
        (stopped / "summary.json").write_text(json.dumps(told))
        assert "it is still running or was killed, after 12 of 40 epochs, last written 20" in notes(run_page(going))
        assert "No data by rank" in Reader(as_html(run_page(going))).text
        assert "was stopped by SIGUSR1 after 12 of 40 epochs: --resume continues it" in notes(run_page(stopped))
        (stopped / "summary.json").write_text(json.dumps(told | {"epochs": 5}))
        assert "was resumed after 5 epochs and is still running or was killed" in notes(run_page(stopped))

    def test_a_run_before_its_first_epoch(self, tmp_path):
        folder = made_up.run_folder(tmp_path / "run", lines=[made_up.record(0)])
        for name in ("metrics.jsonl", "summary.json", "ranks.json"):
            (folder / name).unlink()
        page = run_page(folder)
        assert "no epoch is known" in notes(page)
        assert "still running" in as_html(page)
        assert "still running" in as_html(comparison_page([folder, folder]))


class TestComparison:
    def test_figures_have_ratios_to_the_first_run(self, tmp_path):
        one = made_up.run_folder(tmp_path / "one")
        half = [made_up.record(i, bytes_sent=61728, seconds=0.025, val_metric=0.5, test_metric=0.45) for i in range(3)]
        other = made_up.run_folder(tmp_path / "other", lines=half, settings={"bits": "4"})
        page = comparison_page([one, other])
        first, second = tables(page)["Runs"]
        assert first[:7] == ("one", "finished", "51.00 %", "41.00 %", "12", "12.5 ms", "120.6 KiB")
        assert second[2:7] == ("50.00 % (-1.00)", "45.00 % (+4.00)", "3", "25.0 ms (x2.00)", "60.3 KiB (x0.50)")
        assert tables(page)["Settings that differ"] == [("bits", "32", "4")]
        assert "Loss" in pictures(page)

    def test_other_metrics_are_not_compared_and_folders_of_one_name_are_told_apart(self, tmp_path):
        one = made_up.run_folder(tmp_path / "a" / "run")
        other = made_up.run_folder(tmp_path / "b" / "run", metric="hits@50")
        page = comparison_page([one, other, one])
        assert "different metrics (accuracy, hits@50)" in notes(page)
        rows = tables(page)["Runs"]
        assert [row[0] for row in rows] == ["a/run", "b/run", "a/run (3)"]
        assert rows[1][2] == "51.00 % hits@50"
        validation = next(picture for title, picture in pictures(page).items() if "by epoch" in title)
        assert "a/run" in validation.alt
        assert "b/run" not in validation.alt

    def test_more_runs_than_lines(self, tmp_path):
        folders = [made_up.run_folder(tmp_path / f"run{i}") for i in range(14)]
        page = comparison_page(folders)
        assert len(tables(page)["Runs"]) == 14
        assert any("2 more are not drawn." in picture.notes for picture in pictures(page).values())


class TestCommand:
    def test_markdown_has_its_pictures_beside_it(self, tmp_path):
        folder, out = made_up.run_folder(tmp_path / "run"), tmp_path / "page.md"
        said("report", folder, "--out", out, "--format", "md")
        text = out.read_text()
        named = re.findall(r"\]\(([^)]*)\)", text)
        assert len(named) == 8
        for name in named:
            assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg")
        assert "| hidden | 17 | 256 |" in text
        assert all(line.count("|") == 4 for line in text.splitlines() if line.startswith("| hidden"))

    @pytest.mark.parametrize("kind", ["html", "md"])
    def test_it_writes_one_page_and_replaces_reports_and_nothing_else(self, tmp_path, kind):
        folder, out, graph = made_up.run_folder(tmp_path / "run"), tmp_path / "page", tmp_path / "graph.h5"
        for _ in range(2):
            found = told("report", folder, "--out", out, "--format", kind)
            assert found["out"] == str(out)
            assert len(list(tmp_path.iterdir())) == 2 + len(found["pictures"]) == (2 if kind == "html" else 10)
        graph.write_bytes(b"\x89HDF")
        sentence = refusal("report", folder, "--out", graph, "--format", kind)
        assert "graph.h5 is not a report of hpcgnn" in sentence
        assert graph.read_bytes() == b"\x89HDF"

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("nowhere",), "holds no run: there is no such folder"),
            (("file",), "it is a file"),
            (("empty",), "holds no run \\(no metrics.jsonl\\) and no study"),
            (("above",), "give the runs in it, such as .*above/run"),
            (("above/run", "study"), "is a study and needs a report of its own"),
            (("above/run", "--out", "above/run/metrics.jsonl"), "is an input of this command"),
            (("above/run", "--out", "nowhere/page.html"), "folder .*nowhere does not exist"),
        ],
    )
    def test_bad_input_is_one_sentence(self, tmp_path, words, sentence):
        made_up.run_folder(tmp_path / "above" / "run")
        (tmp_path / "empty").mkdir()
        (tmp_path / "study").mkdir()
        (tmp_path / "study" / "records.jsonl").touch()
        (tmp_path / "file").touch()
        before = (tmp_path / "above" / "run" / "metrics.jsonl").read_bytes()
        found = refusal("report", *(word if word.startswith("--") else tmp_path / word for word in words))
        assert re.search(sentence, found)
        assert (tmp_path / "above" / "run" / "metrics.jsonl").read_bytes() == before


class TestPictures:
    def test_lines_differ_in_more_than_colour(self):
        series = tuple(Series(f"line {i}", (1.0, 2.0, 4.0), (1.0, 2.0, 3.0 + i)) for i in range(5))
        svg = drawing.lines(Figure("title", "x", "y", series, x_is_log=True, y_is_log=True))
        assert len(set(re.findall(r"stroke-dasharray: ([\d., ]+)", svg))) >= 4
        assert "mathdefault" not in svg

    def test_the_last_epoch_is_never_thinned_out(self):
        for count in (1, 399, 400, 401, 4999):
            x, y = drawing.thinned(range(count), range(count))
            assert x[-1] == count - 1
            assert len(x) == len(y) <= 400

    def test_numbers_in_words(self):
        assert [words.seconds(value) for value in (0.0, 2e-6, 0.0123, 4.5, 3725.0, None, float("nan"))] == [
            "0 s", "2.00 µs", "12.3 ms", "4.50 s", "3,725 s", "-", "-",
        ]  # fmt: skip
        assert [words.size(value) for value in (0, 1023, 3 << 20, 5 << 40)] == ["0 B", "1023 B", "3.0 MiB", "5.0 TiB"]
        assert [words.ratio(1.0, base) for base in (0.0, None, 2.0, 400.0)] == ["", "", "x0.50", "x0.0025"]


# -- studies -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path):
    """The shipped study ``quick`` with times that halve when ranks double; its last run has failed."""

    def told(run):
        seconds = 0.8 / run.configuration["ranks"]
        phases = {"aggregation_seconds": 0.75 * seconds, "communication_wait_seconds": 0.25 * seconds}
        summary = {"epoch_seconds_median": seconds, "bytes_sent_per_epoch": 1000.0}
        summary["breakdown_seconds_mean_per_epoch"] = phases
        status = records.FAILED if run.key == last.key else records.FINISHED
        return {"status": status, "error": "<i>", "versions": {"hpcgnn": "<b>1</b>"}, "summary": summary}

    last = specification.read(catalogue.find("quick")).runs[-1]
    return made_up.study(tmp_path, catalogue.find("quick").read_text(), told)


def test_it_has_the_tables_the_figures_and_the_phases_by_ranks(study):
    page = study_of(study)
    drawn = pictures(page)
    assert "1: 800 ms, of which waiting 200 ms; 2: 400 ms, of which waiting 100 ms" in drawn["An epoch by phase"].alt
    assert "0.8 at 1, 0.4 at 2, 0.2 at 4" in drawn["Seconds of an epoch"].alt
    assert any("failed: <i>" in note for note in page.notes)
    text = Reader(as_html(study_of(study))).text
    assert "8 of 9 have finished" in text
    assert "<b>1</b>" in text


def test_a_study_of_which_nothing_has_run(study):
    (study / records.RECORDS).unlink()
    with pytest.raises(HpcgnnError, match="no run has finished yet"):
        as_html(study_of(study))


def test_a_study_of_which_nothing_has_finished(study):
    run = specification.read(study / records.SPECIFICATION).runs[0]
    (study / records.RECORDS).unlink()
    told = {"configuration": run.configuration, "machine": records.machine_facts()}
    records.append(study, Record(key=run.key, status=records.STARTED, **told))
    assert "No run has finished yet." in Reader(as_html(study_of(study))).text
