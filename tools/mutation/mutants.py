"""Mutants: one small change each of the syntax tree of a module, as the tools of the field make them.

A mutant is named by its file, its function, the operator and its number among those of this operator in this function, so that
names stay as long as the function stays. No mutants are made of annotations, decorators, assertions, imports, docstrings, texts,
errors, log messages, shapes, and arguments that change no result.
"""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

Apply = Callable[[], object]  # changes the tree
Site = tuple[str, str, int, Apply]  # function, operator, line within a function or 0, and what makes the mutant

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_BOOLEAN: dict[type[ast.boolop], type[ast.boolop]] = {ast.And: ast.Or, ast.Or: ast.And}
_KEYWORDS = {
    "strict",
    "check",
    "what",
    "metavar",
    "users",
    "maxsize",
}  # they check what is right anyway, or are for people
_CALLS = {
    "view",
    "reshape",
    "flatten",
    "squeeze",
    "expand",
    "warning",
    "info",
}  # their numbers are shapes, or no numbers


@dataclass(frozen=True, order=True)
class Mutant:
    """One mutant. line: where it is now, or 0 if it is code that runs when the module is imported."""

    name: str
    line: int = 0


class _Sites:
    """The places of a module where an operator applies, in the order of the source."""

    def __init__(self) -> None:
        self._scope: list[str] = []
        self._bodies = 0  # of functions, around the node

    def _site(self, operator: str, node: ast.stmt | ast.expr, apply: Apply) -> Site:
        return ".".join(self._scope) or "module", operator, node.lineno if self._bodies else 0, apply

    def of(self, node: ast.AST) -> Iterator[Site]:
        """Yield the sites of ``node`` and below it."""
        if _is_left_out(node):
            return
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if named:
            self._scope.append(node.name)  # type: ignore[attr-defined]
        yield from self._here(node)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                continue
            is_body = field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            self._bodies += is_body
            children = value if isinstance(value, list) else [value]
            for place, child in enumerate(children):
                if isinstance(child, ast.stmt) and _may_be_deleted(child):
                    yield self._site(
                        "deleted statement", child, lambda c=children, p=place: c.__setitem__(p, ast.Pass())
                    )
                if isinstance(child, ast.UnaryOp):
                    yield self._site(
                        "deleted sign", child, lambda n=node, f=field, p=place, u=child: _unsigned(n, f, p, u)
                    )
                if isinstance(child, ast.AST):
                    yield from self.of(child)
            self._bodies -= is_body
        if named:
            self._scope.pop()

    def _here(self, node: ast.AST) -> Iterator[Site]:
        def put(operator: str, field: str, value: object, owner: ast.AST = node) -> Site:
            return self._site(operator, node, lambda: setattr(owner, field, value))

        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield put("other truth", "value", not node.value)
            elif isinstance(node.value, int | float):
                yield put("number + 1", "value", node.value + 1)
        elif isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                other = _COMPARISONS[type(operator)]()
                yield self._site("other comparison", node, lambda p=place, o=other: node.ops.__setitem__(p, o))
        elif isinstance(node, ast.BoolOp):
            yield put("and or", "op", _BOOLEAN[type(node.op)]())
        elif isinstance(node, ast.BinOp | ast.AugAssign) and self._scope and type(node.op) in _BINARY:
            yield put("other arithmetic", "op", _BINARY[type(node.op)]())
        elif isinstance(node, ast.If | ast.IfExp | ast.While) and not _has_opposite(node.test):
            yield put("negated condition", "test", ast.UnaryOp(ast.Not(), node.test))
        elif isinstance(node, ast.For):
            yield put("loop without rounds", "iter", ast.Tuple([], ast.Load()))
        if isinstance(node, ast.For | ast.While):
            for body, place in _jumps(node.body):
                other = ast.Break() if isinstance(body[place], ast.Continue) else ast.Continue()
                yield self._site("break continue", body[place], lambda b=body, p=place, o=other: b.__setitem__(p, o))


def _unsigned(parent: ast.AST, field: str, place: int, child: ast.UnaryOp) -> None:
    """Put the operand of ``-``, ``~`` or ``not`` in the place of its operation."""
    value = getattr(parent, field)
    if isinstance(value, list):
        value[place] = child.operand
    else:
        setattr(parent, field, child.operand)


def _has_opposite(test: ast.expr) -> bool:
    """Return whether another operator negates a condition already."""
    if isinstance(test, ast.Compare):
        return not isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    return isinstance(test, ast.UnaryOp)


def _jumps(body: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], int]]:
    """Yield each ``break`` and ``continue`` of a loop, as a list of statements and a place in it."""
    for place, statement in enumerate(body):
        if isinstance(statement, ast.Break | ast.Continue):
            yield body, place
        elif not isinstance(statement, ast.For | ast.While | ast.FunctionDef | ast.ClassDef):
            for _, value in ast.iter_fields(statement):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield from _jumps(value)


def _called(node: ast.AST) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""


def _is_left_out(node: ast.AST) -> bool:
    """Return whether no mutants are made of a node and what is below it."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.keyword) and node.arg in _KEYWORDS:
        return True
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
        return True  # a negative number, whose sign may be deleted
    kinds = (ast.Assert, ast.Import, ast.ImportFrom, ast.Raise, ast.JoinedStr)
    return isinstance(node, kinds) or _called(node) in _CALLS or _called(node).endswith("Error")


def _may_be_deleted(node: ast.stmt) -> bool:
    """Return whether the module still makes sense without a statement: a call, a check, or a change of something that exists."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and not _is_left_out(node.value)
    return isinstance(node, ast.Raise | ast.AugAssign)


def _named(file: str, text: str) -> Iterator[tuple[Mutant, ast.Module, Apply]]:
    """Yield each mutant of a module, the module's tree, and the function that makes the mutant of the tree."""
    tree, seen = ast.parse(text), Counter[tuple[str, str]]()
    for function, operator, line, apply in _Sites().of(tree):
        number = seen[function, operator]
        seen[function, operator] += 1
        yield Mutant(f"{file}: {function}: {operator}: {number}", line), tree, apply


def file_of(name: str) -> str:
    """The file of the mutant with this name."""
    return name.partition(":")[0]


def of_file(root: Path, file: str) -> list[Mutant]:
    """All mutants of a file below ``root``."""
    return [mutant for mutant, _, _ in _named(file, (root / file).read_text())]


def _found(name: str, path: Path) -> tuple[ast.Module, Apply]:
    """The tree of the file, and the function that makes the mutant ``name`` of it."""
    for mutant, tree, apply in _named(file_of(name), path.read_text()):
        if mutant.name == name:
            return tree, apply
    raise LookupError(f"{path} has no mutant {name}")


def compiled(name: str, path: Path) -> CodeType:
    """The code of the file, with the mutant ``name`` in it."""
    tree, apply = _found(name, path)
    apply()
    return compile(ast.fix_missing_locations(tree), str(path), "exec")


def texts(name: str, path: Path) -> tuple[str, str]:
    """The file as Python writes its tree, without the mutant ``name`` and with it."""
    tree, apply = _found(name, path)
    before = ast.unparse(tree)
    apply()
    return before, ast.unparse(tree)


def drawn(root: Path, packages: Sequence[str], sample: int, seed: int) -> list[Mutant]:
    """Draw ``sample`` mutants of the packages, all with the same chance; the same ones for the same source and seed."""
    files = [path.relative_to(root).as_posix() for each in packages for path in (root / "hpcgnn" / each).rglob("*.py")]
    found = [mutant for file in sorted(files) for mutant in of_file(root, file)]
    return random.Random(seed).sample(found, min(sample, len(found)))  # noqa: S311 - no secret
