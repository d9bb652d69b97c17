"""The pages in docs/explanation, and that of the papers in the code, name modules, functions and classes that exist; nothing is
imported to look. The page about the claims of the papers judges each."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from checkout import assert_none, line_at, place, text_of, tree_of
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
    """The names that a module defines or imports, and the members of its classes as ``Class.member``."""
    return frozenset(_names(tree_of(path).body))


def _names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef():
                yield prefix + node.name
                yield from _names(node.body, f"{prefix}{node.name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield prefix + node.name
                if node.name == "__init__":  # attributes are members as well
                    yield from (
                        prefix + each.attr
                        for each in ast.walk(node)
                        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
                    )
            case ast.Assign():
                targets = (each for target in node.targets for each in ast.walk(target))
                yield from (prefix + each.id for each in targets if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name
            case ast.Import() | ast.ImportFrom():
                yield from (prefix + (each.asname or each.name) for each in node.names)
            case ast.If():  # names for type checkers, which a package hands out lazily
                yield from _names(node.body, prefix)
            case _:
                pass


def wrong_path(code: str) -> bool:
    """Return whether ``code`` is a path, with a name behind it or without, that does not exist."""
    found = _PATH.fullmatch(code)
    if found is None:
        return False
    path, name = ROOT / found[1], found[2]
    if not path.exists() or name is None:
        return not path.exists()
    known = names_in(path) if path.suffix == ".py" else re.findall(r"\w+", text_of(path))
    return name not in known


def wrong_module(code: str) -> bool:
    """Return whether ``code`` is a dotted name in hpcgnn that does not exist."""
    if _DOTTED.fullmatch(code) is None:
        return False
    folder, (_, *names) = ROOT / "hpcgnn", code.split(".")
    while names and (folder / names[0]).is_dir():
        folder, names = folder / names[0], names[1:]
    if names and (folder / f"{names[0]}.py").exists():
        module, names = folder / f"{names[0]}.py", names[1:]
    else:
        module = folder / "__init__.py"
    if not names:
        return not module.exists()
    known = names_in(module)
    # Members of a class that the module only imports are looked for where it is defined, by the other rule.
    return ".".join(names) not in known and (len(names) == 1 or names[0] not in known)


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
        if wrong_path(name) or wrong_module(name)
    )


def test_members_after_an_and_belong_to_the_module_before() -> None:
    """A table cell may go on with a name of the same module: ``a.py: f`` and ``g``."""
    pairs = re.findall(r"`(hpcgnn/[\w/]+\.py): [\w.]+` and `([\w.]+)`", text_of(_PAPERS))
    assert pairs
    assert [(path, name) for path, name in pairs if name not in names_in(ROOT / path)] == []


def test_the_papers_page_leads_into_the_code() -> None:
    named = [found[1] for _, code in codes(_PAPERS) if (found := _PATH.fullmatch(code))]
    assert len({*named}) > 40


def test_only_names_that_do_not_exist_are_found() -> None:
    wrong = [
        "hpcgnn/plan/covers.py", "hpcgnn/plan/build.py: sources", "hpcgnn/nn/aggregator.py: Aggregator.no_step",
        "hpcgnn.plan.no_module", "hpcgnn.kernels.messages.encode", "hpcgnn.no_function", "native/spmm.cpp",
    ]  # fmt: skip
    right = [
        "hpcgnn/plan", "hpcgnn/plan/build.py: sources_in_cover", "hpcgnn/nn/aggregator.py: Aggregator.start_step",
        "hpcgnn.kernels.messages.encode_rows", "hpcgnn.kernels.spmm", "hpcgnn.Trainer.fit", "native/spmm.h",
    ]  # fmt: skip
    assert [name for name in (*wrong, *right) if wrong_path(name) or wrong_module(name)] == wrong


# -- the claims of the papers ------------------------------------------------------------------------------------------

VERDICTS = ("reproduced", "partly", "contradicted", "not tried")


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
        counts.setdefault(paper, Counter())[verdict[1]] += 1
    for paper, found in counts.items():
        cells = " | ".join(str(found[verdict]) for verdict in VERDICTS)
        if f"| [{paper}](#{paper.lower()}) | {found.total()} | {cells} |" not in text:
            yield f"{paper}: the summary should have {found.total()} | {cells}"


def test_claims_are_judged_by_records() -> None:
    assert_none(wrong_claims(text_of(_CLAIMS)))
    assert len({paper for paper, _ in claims(text_of(_CLAIMS))}) == 5


def test_wrong_claims_are_found() -> None:
    head = "| [A](#a) | 2 | 1 | 0 | 0 | 1 |\n\n## A\n\n| in the paper | what it says | here | record |\n| - | - | - | - |\n"
    right = "| §1 | so | **reproduced** on b | [c](d) |\n| §2 | so | **not tried**: why | - |\n"
    assert [*wrong_claims(head + right)] == []
    assert [*wrong_claims(head + right + "| §3 | so | yes | [c](d) |\n")] == ["A, §3: no verdict"]
    assert [*wrong_claims(head + right.replace("[c](d)", "-"))] == ["A, §1: no record"]
    (found,) = wrong_claims((head + right).replace("| 2 | 1 |", "| 2 | 2 |"))
    assert found.startswith("A: the summary should have 2 |")
