"""A page: sections of tables and pictures, as one self-contained HTML file, or as Markdown with pictures in files beside it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import jinja2
from markupsafe import Markup

from hpcgnn.base.version import __version__
from hpcgnn.lab.study.tables import Table

_ROOT = re.compile(r"<svg\b([^>]*)>", re.DOTALL)
_SIZE = re.compile(r'\s(?:width|height|role|aria-label)="[^"]*"')
_IDS = ((re.compile(r'\bid="'), 'id="{}'), (re.compile(r"url\(#"), "url(#{}"), (re.compile(r'href="#'), 'href="#{}'))


@dataclass(frozen=True)
class Picture:
    """A picture. draw: returns a whole SVG file, when the page is written. alt: description for readers who cannot see it."""

    title: str
    draw: Callable[[], str]
    alt: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A section. text: sentences. folded: tables that a reader has to open in HTML; on paper and in Markdown they are shown."""

    title: str
    text: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Page:
    """A page. notes: sentences that a reader must know first. tiles: names and values to show large in HTML."""

    title: str
    sections: tuple[Section, ...]
    subtitle: str = ""
    notes: tuple[str, ...] = field(default=())
    tiles: tuple[tuple[str, str], ...] = ()


def as_html(page: Page) -> str:
    """One HTML file. All text is escaped."""
    environment = _environment(autoescape=True)
    numbers = itertools.count()
    environment.filters["inline"] = lambda picture: _inline(picture, f"p{next(numbers)}-")
    return environment.get_template("page.html.j2").render(page=page, version=__version__)


def as_markdown(page: Page, stem: str) -> tuple[str, dict[str, str]]:
    """The Markdown text, and the pictures by the names of their files, which begin with ``stem``."""
    environment = _environment(autoescape=False)
    files: dict[str, str] = {}

    def name_of(picture: Picture) -> str:
        name = f"{stem}-{len(files) + 1}-{_slug(picture.title)}.svg"
        files[name] = picture.draw()
        return name

    environment.filters |= {"file": name_of, "text": _markdown_text, "lines": _markdown_table}
    text = environment.get_template("page.md.j2").render(page=page, version=__version__)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n", files


def _environment(*, autoescape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hpcgnn.lab.report"),
        autoescape=autoescape,  # noqa: S701 - off for Markdown, whose filters escape
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["slug"] = _slug
    return environment


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "section"


def _inline(picture: Picture, prefix: str) -> Markup:
    """The SVG element of a picture for a page with several: its ids are unique, its width follows the page, and it has a
    label."""
    whole = picture.draw()
    svg = whole[whole.index("<svg") :]
    for pattern, replacement in _IDS:
        svg = pattern.sub(replacement.format(prefix), svg)
    label = Markup.escape(f"{picture.title}. {picture.alt}")
    svg = _ROOT.sub(lambda found: f'<svg{_SIZE.sub("", found[1])} role="img" aria-label="{label}">', svg, count=1)
    return Markup(svg)  # noqa: S704 - matplotlib has escaped it


def _markdown_text(text: str) -> str:
    """The text with the special characters of Markdown and HTML escaped."""
    escaped = re.sub(r"([\\`*_\[\]|#])", r"\\\1", text.replace("\n", " "))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _markdown_table(table: Table) -> str:
    return "\n".join(table.markdown(lambda cell: _markdown_text(cell) or " ", right="---:"))
