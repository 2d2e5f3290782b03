"""Operators: one more kind of mutant than cosmic-ray has, and which mutants are worth a run of the tests.

A statement that is left out is the mistake people make, so `own/DropStatement` makes it: an assignment, a call or a
value returned that is missing. Not worth a run is what no test can or should notice: annotations (never evaluated
here), parameters, log lines, messages, decorators (without one the module cannot be imported), tuning (numbers outside
functions), and of the replacements of an operator all but two: `<` as `<=` and as `>=` say all that `==`, `is` and `**`
could.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from typing import Any

import parso
from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import PythonNode, ReturnStmt

COMPARISONS = {
    "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE",
    "GtE_Gt", "GtE_Lt",
}  # fmt: skip
ARITHMETIC = {"Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Add", "BitOr_BitAnd", "BitAnd_BitOr"}
OTHERS = {
    "core/AddNot", "core/ReplaceTrueWithFalse", "core/ReplaceFalseWithTrue", "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd", "core/ReplaceBreakWithContinue", "core/ReplaceContinueWithBreak", "core/ExceptionReplacer",
    "core/NumberReplacer", "core/ZeroIterationForLoop", "core/ReplaceUnaryOperator_Delete_Not", "own/DropStatement",
}  # fmt: skip
WORTH = (
    OTHERS
    | {f"core/ReplaceComparisonOperator_{one}" for one in COMPARISONS}
    | {f"core/ReplaceBinaryOperator_{one}" for one in ARITHMETIC}
)
LOGS = ("log", "LOG", "_log", "logger")
Span = tuple[tuple[int, int], tuple[int, int]]


class DropStatement(Operator):  # type: ignore[misc]  # cosmic-ray is untyped
    """An operator that leaves a statement out, or the value that one returns."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """Where `node` is a statement of one line of code, and no docstring, import or annotation alone."""
        if _is_droppable(node):
            yield (node.start_pos, node.end_pos)

    def mutate(self, node: Any, _index: int) -> Any:
        """`pass` in its place; of `return x`, `return None`."""
        prefix = node.get_first_leaf().prefix
        return parso.parse(f"{prefix}{'return None' if isinstance(node, ReturnStmt) else 'pass'}")  # type: ignore[no-untyped-call]  # parso is untyped

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """For cosmic-ray's own tests of operators."""
        return (Example("x = f()", "pass"),)


def _is_droppable(node: Any) -> bool:
    if node.parent is None or node.parent.type != "simple_stmt":
        return False
    if isinstance(node, ReturnStmt):
        return len(node.children) > 1 and node.children[1].get_code().strip() not in ("None", "False", "[]", '""')
    if node.type == "expr_stmt":
        return not (
            len(node.children) == 2 and node.children[1].type == "annassign" and len(node.children[1].children) == 2
        )
    return isinstance(node, PythonNode) and node.type in ("atom_expr", "power", "await_expr")


class Own:
    """The provider of `own/…`, as cosmic-ray wants it."""

    def __iter__(self) -> Iterator[str]:
        return iter(("DropStatement",))

    def __getitem__(self, name: str) -> type[Operator]:
        return {"DropStatement": DropStatement}[name]


class Source:
    """A module's text: tells where a mutant is not worth a run."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        self._functions = [_span(one) for one in functions]
        self._silent = [_span(one) for one in chain(*map(_silent, ast.walk(tree)))]
        self._silent += [(_span(one)[0], _span(one.body[0])[0]) for one in functions]  # parameters and their defaults
        self._silent += [_span(decorator) for one in functions for decorator in one.decorator_list]

    def is_worth(self, operator: str, span: Span) -> bool:
        """Whether the tests should notice this mutant."""
        if operator not in WORTH or any(_holds(one, span) for one in self._silent):
            return False
        return any(_holds(one, span) for one in self._functions)


def _silent(node: ast.AST) -> list[ast.AST]:
    """What of this node no test needs to notice."""
    match node:
        case ast.AnnAssign(annotation=annotation):
            return [annotation]
        case ast.Raise(exc=ast.Call(args=args, keywords=keywords)):
            return [*args, *keywords]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in LOGS:
            return [node]
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert():
            return [node]
    return []


def _span(node: Any) -> Span:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _holds(outer: Span, inner: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
