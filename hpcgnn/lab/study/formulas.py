"""Formulas in a graph's source, with which graphs grow with ranks: ``rmat:scale={13 + log2(ranks)}``."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping

from hpcgnn.base.errors import HpcgnnError

_BRACES = re.compile(r"\{([^{}]*)\}")
_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: dict[str, Callable[[float], float]] = {"log2": math.log2, "sqrt": math.sqrt}


def filled(text: str, values: Mapping[str, int]) -> str:
    """``text`` with each formula in braces replaced by its value, a whole number.

    values: the names that formulas may use, and their values.

    Raises:
        HpcgnnError: for a formula that is not valid, or whose value is no whole number.
    """
    return _BRACES.sub(lambda found: str(_whole(found[1], values)), text)


def names_in(text: str) -> set[str]:
    """The names that the formulas of ``text`` use."""
    inside = " ".join(_BRACES.findall(text))
    return set(re.findall(r"[A-Za-z_]\w*", inside)) - _FUNCTIONS.keys()


def _whole(formula: str, values: Mapping[str, int]) -> int:
    try:
        value = _value(ast.parse(formula.strip(), mode="eval").body, values)
    except (SyntaxError, ZeroDivisionError, ValueError, OverflowError) as error:
        raise HpcgnnError(
            f"{{{formula}}} is not a formula of numbers, + - * / //, log2() and sqrt() ({error})"
        ) from error
    if value != int(value):
        of = ", ".join(f"{name} = {values[name]}" for name in sorted(names_in(f"{{{formula}}}") & values.keys()))
        raise HpcgnnError(f"{{{formula}}} is {value:.4g} for {of}, but must be a whole number")
    return int(value)


def _value(node: ast.expr, values: Mapping[str, int]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in values:
            raise HpcgnnError(f"a formula cannot use {node.id}: it may use {', '.join(sorted(values))}")
        return values[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, values)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _FUNCTIONS
        and not node.keywords
    ):
        (argument,) = node.args
        return _FUNCTIONS[node.func.id](_value(argument, values))
    raise ValueError("it contains something else")
