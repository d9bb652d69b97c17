"""Hold README, pages and docstrings to docs/style.md: proselint's checks, the terms of that page, and how sentences begin.

``python tools/prose.py`` prints each finding as ``file:line:column: message``, and exits with 1 where there is one. Text between
backticks, fenced blocks and addresses are not looked at. The terms are the last table of ``docs/style.md``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from proselint.checks import __register__ as proselints_own
from proselint.registry.checks import Check, CheckResult, types

ROOT = Path(__file__).resolve().parent.parent
STYLE = ROOT / "docs" / "style.md"
# Reports of studies are made of records, by sentences of hpcgnn/lab/study and of specifications.
PAGES = ["*.md", "docs/*.md", "docs/[!s]*/**/*.md", "examples/*.md", "packaging/*.md"]
CODE = ["hpcgnn/**/*.py", "tools/**/*.py", "examples/*.py", "tests/**/*.py"]
# Checks of proselint that misread Markdown and commands: quotation marks and signs written in ASCII, dates, sums of money.
LEFT_OUT = ("typography", "dates_times", "restricted", "misc.currency", "misc.scare_quotes", "misc.capitalization")

_CODE = re.compile(
    r"^```.*?^```$|``[^`]*``|`[^`\n]*`|<!--.*?-->|(?<=\]\()[^)\s]*|https?://\S+", re.MULTILINE | re.DOTALL
)
_NO_SENTENCE = re.compile(r"(?:What|Who|Whoever|Whatever|Which|How|Where|That|Whether)\b")
_BEGINS = re.compile(r"(?:\A|\n\n|[.:!?][ \n])(What|Who|Whoever|Whatever)\b[^.?!|]*[.!|]")


def terms(style: str) -> dict[str, str]:
    """Return the words to avoid, in lower case, each with the term to write instead."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", style.partition("| write | not |")[2], re.MULTILINE)
    avoided = {word.strip(): write.strip() for write, words in rows for word in words.split(";")}
    return {word.lower(): write for word, write in avoided.items() if not set(word) <= set("-: ")}


def checks() -> list[Check]:
    """Return proselint's checks, and one for the terms of the style page."""
    kept = [check for check in proselints_own if not any(check.matches_partial(name) for name in LEFT_OUT)]
    own = types.PreferredFormsSimple(items=terms(STYLE.read_text()))
    return [*kept, Check(check_type=own, path="style", message="Write '{}' in place of '{}'.")]


def without_code(text: str) -> str:
    """Replace code by tildes: line and column of each remaining word are those of the text."""
    return _CODE.sub(lambda found: re.sub(r"[^\n]", "~", found[0]), text)


def findings_in_page(text: str, with_checks: list[Check]) -> Iterator[tuple[int, str]]:
    """Yield the place and the message of each finding in a page."""
    prose = without_code(text)
    # proselint's checks need a character on both sides of a word, and must not join a heading to the paragraph below it.
    padded = "\n" + re.sub(r"\n(?=\n)", "~", prose) + "\n"
    for check in with_checks:
        yield from ((_start(padded, result) - 1, result.message) for result in check.check_with_flags(padded))
    for found in _BEGINS.finditer(prose):
        yield found.start(1), f"A statement begins with '{found[1]}': begin with the noun that it is about."


def _start(text: str, result: CheckResult) -> int:
    """Return the place of a finding's first letter: spans begin with the space or sign before the word."""
    start, end = result.span
    return start + len(text[start:end]) - len(text[start:end].lstrip())


def findings_in_code(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the message of each docstring that begins with a pronoun or a conjunction."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            if begins := _NO_SENTENCE.match(docstring):
                yield getattr(node, "lineno", 1), f"A docstring begins with '{begins[0]}'."


def findings(root: Path) -> Iterator[str]:
    """Yield all findings, as lines to print."""
    with_checks = checks()
    for page in sorted({page for pattern in PAGES for page in root.glob(pattern)} - {STYLE}):
        text = page.read_text()
        for place, message in sorted(findings_in_page(text, with_checks)):
            line = text.count("\n", 0, place) + 1
            column = place - text.rfind("\n", 0, place)
            yield f"{page.relative_to(root)}:{line}:{column}: {message}"
    for path in sorted({path for pattern in CODE for path in root.glob(pattern)}):
        yield from (
            f"{path.relative_to(root)}:{line}: {message}" for line, message in findings_in_code(path.read_text())
        )


def main() -> int:
    """Print the findings."""
    found = list(findings(ROOT))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
