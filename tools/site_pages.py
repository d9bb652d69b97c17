"""A hook of MkDocs: pages of the documentation site that are made from the package, so that they cannot be out of date.

`reference/commands.md` gets the help of every command, `reference/settings.md` a table of every setting, and `studies/index.md` a
list of the reports in `docs/studies`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

_STUDIES_PAGE = "studies/index.md"
_HELP_WIDTH = 100
_PARTS = {
    "run": "The run",
    "model": "The model",
    "links": "Links",
    "labels": "Labels as inputs",
    "train": "Training",
    "schedule": "Learning rate and early stopping",
    "messages": "Messages",
    "policy": "Policies of bits and staleness",
    "int8": "Training in 8-bit integers",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the list of studies."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, _STUDIES_PAGE, content=studies(Path(config.docs_dir) / "studies")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put what is made into its page, in place of a comment."""
    for name, place, make in (
        ("reference/commands.md", "<!-- commands: made from their help -->", commands),
        ("reference/settings.md", "<!-- settings: made from the configuration -->", settings),
    ):
        if page.file.src_uri == name:
            assert place in markdown, f"{name} has no place for what is made"
            return markdown.replace(place, "\n".join(make()))
    return markdown


def studies(folder: Path) -> str:
    """A table of the reports in ``folder``, with what each says that it is about."""
    lines = [
        "# Studies",
        "",
        "A study is a set of runs that a specification describes; `hpcgnn study run NAME --out DIR` runs it again. Where fewer",
        "runs have finished than the specification describes, the report covers those that have.",
        "",
        "| study | about | runs |",
        "| --- | --- | --- |",
    ]
    for report in sorted(folder.glob("*/report.md")):
        head = dict(re.findall(r"^- (About|Runs): (.*)$", report.read_text(), re.MULTILINE))
        sentence = head.get("About", "").partition(": ")[0].partition(". ")[0].rstrip(".")
        runs = head.get("Runs", "").removesuffix(" have finished")
        lines.append(f"| [{report.parent.name}]({report.parent.name}/report.md) | {_in_a_cell(sentence)} | {runs} |")
    return "\n".join([*lines, ""])


def commands() -> Iterator[str]:
    """The help of every command, as a terminal shows it."""
    from hpcgnn.cli.main import cli

    yield from _help_of(cli, "hpcgnn", None)


def _help_of(command: Any, name: str, parent: Any) -> Iterator[str]:
    import click

    width = {"max_content_width": _HELP_WIDTH, "terminal_width": _HELP_WIDTH, "help_option_names": ["-h", "--help"]}
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent, **width)
    yield from ("", f"## {name}", "", "```text", *click.unstyle(command.get_help(context)).splitlines(), "```")
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _help_of(command.get_command(context, each), f"{name} {each}", context)


def settings() -> Iterator[str]:
    """Tables of all settings: flag, type, default, range, who uses it, and what it does."""
    from hpcgnn.train.run_config import settings_by_name

    named = settings_by_name()
    for part, title in _PARTS.items():
        yield from (
            "",
            f"## {title}",
            "",
            "| setting | type and range | default | used by | meaning |",
            "| --- | --- | --- | --- | --- |",
        )
        yield from (_row(name, each) for name, each in named.items() if each.part == part)


def _row(name: str, named: Any) -> str:
    from hpcgnn.base.settings import as_flag
    from hpcgnn.train.run_config import as_written

    setting = named.setting
    default = setting.default_in_words or _plain(as_written(setting, setting.default))
    users = ", ".join(dict.fromkeys(user.rpartition(" ")[2] for user in named.users)) or "all"
    cells = (f"`{as_flag(name)}`", _kind(setting), default, users, setting.in_words())
    return f"| {' | '.join(map(_in_a_cell, cells))} |"


def _kind(setting: Any) -> str:
    from hpcgnn.base.settings import kind_of
    from hpcgnn.train.run_config import in_words

    if choices := setting.chosen_from():
        return ", ".join(map(in_words, choices))
    if isinstance(setting.default, bool):
        return "flag" if setting.default is False else "on, off"
    kind = kind_of(setting.type)[0]
    words = {int: "whole number", float: "number", str: "text", Path: "path"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )
    limits = [
        (setting.least, "at least"),
        (setting.above, "above"),
        (setting.most, "at most"),
        (setting.below, "below"),
    ]
    return ", ".join([words, *(f"{word} {_plain(limit)}" for limit, word in limits if limit is not None)])


def _plain(value: Any) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " ".join(map(_plain, value))
    if isinstance(value, int) and value > 2**31:
        return f"2^{value.bit_length()}" + (" - 1" if value & (value + 1) == 0 else "")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _in_a_cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
