"""The `calculate` tool without upstream's `eval`.

Upstream admits the characters `0123456789+-*/(). ` and evaluates what Python makes of them, so
`9**9**9` holds the interpreter for good. Here the syntax tree is walked with Python's own
operators: same results, same error texts, and a bound on the work with integers.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_CHARACTERS = "0123456789+-*/(). "
# Products of operand bits. Python multiplies some 900 of them at once, so the limit is reached
# after about a tenth of a second; 9**9**5, which upstream evaluates, takes half of it.
WORK_LIMIT = 1 << 36
_OPERATORS: Mapping[type[ast.operator | ast.unaryop], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class TooMuchWork(ArithmeticError):
    """The expression would take longer than `WORK_LIMIT` allows."""

    def __init__(self) -> None:
        super().__init__("the expression is too large to evaluate")


def _work(kind: type[ast.operator | ast.unaryop], left: Any, right: Any) -> int:
    """Upper bound of the bit products of one operation; floats and small integers cost 1."""
    if not (isinstance(left, int) and isinstance(right, int)):
        return 1
    bits = left.bit_length()
    if kind is ast.Pow:
        if right < 0 or bits <= 1:
            return max(right.bit_length(), 1)
        return (bits * right) ** 2
    return bits * right.bit_length() if kind in (ast.Mult, ast.FloorDiv) else bits + 1


def _call(node: ast.Call, callee: Any, argument: Any) -> Any:
    """`2(3)` and its like: Python's own error, without the compiler's warning on stderr."""
    if node.keywords:
        return callee(**argument)
    if not node.args:
        return callee()
    return callee(*argument) if isinstance(node.args[0], ast.Starred) else callee(argument)


def _children(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.BinOp():
            return [node.left, node.right]
        case ast.UnaryOp():
            return [node.operand]
        case ast.Call():
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            return [
                node.func,
                *(a.value if isinstance(a, ast.Starred) else a for a in arguments),
            ]
    return []


def _evaluate(tree: ast.expr) -> Any:
    """Value of the tree, by a stack: a sum of 2,000 terms is 2,000 levels deep."""
    work = 0
    values: list[Any] = []
    todo: list[tuple[ast.expr, bool]] = [(tree, False)]
    while todo:
        node, ready = todo.pop()
        children = _children(node)
        if not ready and children:
            todo.append((node, True))
            todo.extend((child, False) for child in reversed(children))
            continue
        operands = values[len(values) - len(children) :]
        del values[len(values) - len(children) :]
        match node:
            case ast.Constant():
                values.append(node.value)
            case ast.Tuple(elts=[]):
                values.append(())
            case ast.BinOp():
                work += _work(type(node.op), *operands)
                if work > WORK_LIMIT:
                    raise TooMuchWork
                values.append(_OPERATORS[type(node.op)](*operands))
            case ast.UnaryOp():
                values.append(_OPERATORS[type(node.op)](*operands))
            case ast.Call():
                values.append(_call(node, operands[0], operands[1] if operands[1:] else None))
            case _:
                raise SyntaxError(f"invalid syntax ({type(node).__name__})")
    return values[0]


def calculate(expression: Any) -> str:
    """Result rounded to two decimals, or a text that begins with `Error: `.

    Raises:
        TypeError: `expression` is not a string, as upstream does; the environment turns it into
            an observation.
    """
    if not all(character in _CHARACTERS for character in expression):
        return "Error: invalid characters in expression"
    if not isinstance(expression, str):
        return "Error: eval() arg 1 must be a string, bytes or code object"
    try:
        tree = ast.parse(expression.lstrip(" "), "<string>", "eval").body
        return str(round(float(_evaluate(tree)), 2))
    except RecursionError:
        return "Error: maximum recursion depth exceeded during compilation"
    except Exception as error:
        return f"Error: {error}"


def calculate_tool(module: str) -> Callable[..., str]:
    """The tool's function with upstream's signature and names, which its error texts show."""

    class Calculate:
        @staticmethod
        def invoke(data: Mapping[str, Any], expression: str) -> str:
            return calculate(expression)

    Calculate.invoke.__module__ = module
    Calculate.invoke.__qualname__ = "Calculate.invoke"
    return Calculate.invoke
