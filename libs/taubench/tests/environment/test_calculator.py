"""`calculate` gives what upstream's `eval` gives, and an answer where that would hang."""

import warnings
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from taubench import SPLITS, Action, Environment, load_tasks
from taubench.calculator import calculate

CHARACTERS = "0123456789+-*/(). "
TOO_LARGE = "Error: the expression is too large to evaluate"


def upstream(expression: Any) -> str:
    """Upstream's rule, to be given nothing that hangs."""
    if not all(character in CHARACTERS for character in expression):
        return "Error: invalid characters in expression"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            value = eval(expression, {"__builtins__": None}, {})
        return str(round(float(value), 2))
    except Exception as error:
        return f"Error: {error}"


NUMBERS = st.sampled_from(["0", "1", "2", "3", "10", "007", "0.5", ".25", "7.", "1234.56", " 4 "])
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//"]), inner).map("".join),
        st.tuples(NUMBERS, st.sampled_from(["**", "** -"]), st.sampled_from("0123")).map("".join),
        inner.map(lambda text: f"({text})"),
        st.tuples(st.sampled_from("+-"), inner).map("".join),
        st.tuples(inner, st.sampled_from(["({})", "()", "(*{})", "(**{})"]), inner).map(
            lambda parts: parts[0] + parts[1].format(parts[2])
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS)
def test_expressions_give_upstreams_results(expression: str) -> None:
    assert calculate(expression) == upstream(expression)


@settings(max_examples=600, deadline=None)
@given(st.text(CHARACTERS.replace("*", ""), max_size=12) | st.text(max_size=4))
@example("")
@example("()")
@example("...")
@example("  1")
@example("1 2")
def test_any_text_gives_upstreams_result(expression: str) -> None:
    assert calculate(expression) == upstream(expression)


@pytest.mark.parametrize("expression", [["1", "+"], [], {"1": 2}, ()])
def test_what_is_no_string_gives_upstreams_text(expression: Any) -> None:
    assert calculate(expression) == upstream(expression)


@pytest.mark.parametrize("expression", ["9**9**5", "1**9**9**5", "2**-99999999", "(-8)**.5", "1/0"])
def test_powers_that_upstream_survives_are_evaluated(expression: str) -> None:
    assert calculate(expression) == upstream(expression) != TOO_LARGE


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "9**9**9**9",
        "9**9**7",
        "-(2.5+9**9**8)",
        "9**9**5*" * 200 + "1",
        "9**9**5//9**(9**5-1)//9**9**9",
    ],
)
def test_what_would_hang_is_an_error(expression: str) -> None:
    assert calculate(expression) == TOO_LARGE


@pytest.mark.parametrize("terms", [900, 2000])
def test_a_long_sum_is_no_deeper_than_upstreams(terms: int) -> None:
    assert calculate("+".join(["1"] * terms)) == f"{terms}.0"


@pytest.mark.parametrize("expression", ["(" * 300, "-" * 100_000 + "1", "1" * 5000, "()" * 3000])
def test_text_made_to_exhaust_the_parser_is_an_error(expression: str) -> None:
    assert calculate(expression).startswith("Error: ")


def test_no_other_syntax_comes_near_an_evaluation() -> None:
    assert calculate("__import__('os')") == "Error: invalid characters in expression"
    assert calculate("1 if 2 else 3") == "Error: invalid characters in expression"


def test_every_calculation_of_the_ground_truths_is_as_upstreams() -> None:
    for domain in SPLITS:
        for task in load_tasks(domain, "test"):
            for action in filter(lambda action: action.name == "calculate", task.actions):
                expected = upstream(action.kwargs["expression"])
                assert Environment(task).step(action).observation == expected


@pytest.mark.parametrize("domain", SPLITS)
def test_the_signature_is_upstreams(domain: str) -> None:
    environment = Environment(load_tasks(domain, "test")[0])
    assert environment.step(Action("calculate", {})).observation == (
        "Error: Calculate.invoke() missing 1 required positional argument: 'expression'"
    )
