"""The pages in docs/explanation, and that of the papers in the code, name modules, functions and classes that exist; nothing is
imported to look. The page about the claims of the papers judges each."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from checkout import assert_none, line_at, nodes_of, place, text_of
from page_blocks import blocks, without_blocks
from rank_pool import ROOT

_PAPERS, _CLAIMS = ROOT / "docs" / "internals" / "papers.md", ROOT / "docs" / "explanation" / "papers.md"
PAGES = [_PAPERS, *sorted((ROOT / "docs" / "explanation").glob("*.md"))]
_CODE = re.compile(r"`([^`\n]+)`")
# `hpcgnn/plan/build.py: sources_in_cover`, with a name or without; and the `Aggregator.finish_step` after an "and".
_PATH = re.compile(r"((?:hpcgnn|native|tests|tools)/[\w/.-]*)(?:: ([\w.]+))?")
_DOTTED = re.compile(r"hpcgnn(?:\.\w+)+")


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """The names that a module defines or imports anywhere in it, also in classes and functions; all words of another file."""
    if path.suffix != ".py":
        return frozenset(re.findall(r"\w+", text_of(path)))
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {each.asname or each.name for each in node.names}
        if isinstance(node, ast.Module | ast.ClassDef):
            assigned = (each for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign))
            found |= {each.id for one in assigned for each in ast.walk(one) if isinstance(each, ast.Name)}
    return frozenset(found)


def is_wrong(code: str) -> bool:
    """Return whether ``code`` is a path with a name behind it or without, or a dotted name in hpcgnn, that does not exist."""
    if found := _PATH.fullmatch(code):
        path, names = ROOT / found[1], found[2].split(".") if found[2] else []
    elif _DOTTED.fullmatch(code):
        path, (_, *names) = ROOT / "hpcgnn", code.split(".")
        while names and (path / names[0]).is_dir():
            path, names = path / names[0], names[1:]
        if names and (path / f"{names[0]}.py").exists():
            path, names = path / f"{names[0]}.py", names[1:]
        # Members of a class that the package hands out are looked for where it is defined, by the other rule.
        path, names = (path / "__init__.py", names[:1]) if path.is_dir() else (path, names)
    else:
        return False
    return not path.exists() or (bool(names) and not names_in(path).issuperset(names))


def codes(page: Path) -> Iterator[tuple[int, str]]:
    """The words between backticks outside of a page's fenced blocks, and their lines."""
    text = without_blocks(page)
    yield from ((line_at(text, found.start()), found[1]) for found in _CODE.finditer(text))


def imported(page: Path) -> Iterator[tuple[int, str]]:
    """The names of hpcgnn that the programs of a page import, and the lines of their blocks."""
    for block in blocks(page):
        if block.kind == "python":
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hpcgnn":
                    yield from ((block.line, f"{node.module}.{each.name}") for each in node.names)


def test_modules_and_functions_that_pages_name_exist() -> None:
    assert_none(
        f"{place(page, line)}: {name}"
        for page in PAGES
        for line, name in (*codes(page), *imported(page))
        if is_wrong(name)
    )


def test_members_after_an_and_belong_to_the_module_before() -> None:
    """A table cell may go on with a name of the same module: ``a.py: f`` and ``g``."""
    pairs = re.findall(r"`(hpcgnn/[\w/]+\.py): [\w.]+` and `([\w.]+)`", text_of(_PAPERS))
    assert pairs
    assert [pair for pair in pairs if is_wrong(": ".join(pair))] == []


def test_the_papers_page_leads_into_the_code() -> None:
    named = [found[1] for _, code in codes(_PAPERS) if (found := _PATH.fullmatch(code))]
    assert len({*named}) > 40


def test_only_names_that_do_not_exist_are_found() -> None:
    wrong = [
        "hpcgnn/plan/covers.py", "hpcgnn/plan/build.py: no_name", "hpcgnn/nn/aggregator.py: Aggregator.no_step",
        "hpcgnn.plan.no_module", "hpcgnn.kernels.messages.no_name", "hpcgnn.no_function", "native/spmm.cpp",
    ]  # fmt: skip
    right = [
        "hpcgnn/plan", "hpcgnn/plan/build.py: sources_in_cover", "hpcgnn/nn/aggregator.py: Aggregator.start_step",
        "hpcgnn.kernels.messages.encode_rows", "hpcgnn.kernels.spmm", "hpcgnn.Trainer.fit", "native/spmm.h",
    ]  # fmt: skip
    assert [name for name in (*wrong, *right) if is_wrong(name)] == wrong


# -- the claims of the papers ------------------------------------------------------------------------------------------

VERDICTS = ("reproduced", "partly", "contradicted", "cannot tell", "not tried")
_INTERVAL = re.compile(r"\[([-+]?[\d.]+), ([-+]?[\d.]+)\]")


def claims(text: str) -> Iterator[tuple[str, list[str]]]:
    """The paper, and the cells of each row: place, claim, verdict with its reason, record."""
    for section in text.split("\n## ")[1:]:
        rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
        yield from ((section.partition("\n")[0], [cell.strip() for cell in row]) for row in rows[2:])


def wrong_claims(text: str) -> Iterator[str]:
    """Rows without a verdict, or with one and no record of it; and a summary that does not count them."""
    counts: dict[str, Counter[str]] = {}
    for paper, (where, _, here, record) in claims(text):
        verdict = re.match(r"\*\*([a-z ]+)\*\*", here)
        if verdict is None or verdict[1] not in VERDICTS:
            yield f"{paper}, {where}: no verdict"
            continue
        if verdict[1] != "not tried" and "](" not in record:
            yield f"{paper}, {where}: no record"
        ends = [(float(low), float(high)) for low, high in _INTERVAL.findall(here)]
        if verdict[1] == "partly" and ends and all(low <= 0 <= high for low, high in ends):
            yield f"{paper}, {where}: all intervals contain 0, so the record cannot tell"
        counts.setdefault(paper, Counter())[verdict[1]] += 1
    for paper, found in counts.items():
        cells = " | ".join(str(found[verdict]) for verdict in VERDICTS)
        if f"| [{paper}](#{paper.lower()}) | {found.total()} | {cells} |" not in text:
            yield f"{paper}: the summary should have {found.total()} | {cells}"


def test_claims_are_judged_by_records() -> None:
    assert_none(wrong_claims(text_of(_CLAIMS)))
    assert len({paper for paper, _ in claims(text_of(_CLAIMS))}) == 5


def test_each_study_is_linked_from_the_rows_that_it_concerns_or_from_the_list_of_those_without_a_claim() -> None:
    """So whoever adds a study looks for the claims that it is about."""
    text, studies = text_of(_CLAIMS), ROOT / "docs" / "studies"
    of_rows, without = text.split("\n## Studies without a claim\n")
    linked = [set(re.findall(r"\(\.\./studies/([\w-]+)/report\.md\)", part)) for part in (of_rows, without)]
    assert linked[0] | linked[1] == {path.parent.name for path in studies.glob("*/report.md")}
    assert not linked[0] & linked[1]
