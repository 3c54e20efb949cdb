"""The best of many runs against values worked out by hand."""

import math

import pytest
from turnwise.command import run_command
from turnwise.evaluation.best_of import best_of
from turnwise.evaluation.estimates import Attempt
from turnwise.evaluation.spread import chance_of_best, expected_best, single_runs


def table(**rows: list[float | None]) -> dict[str, list[Attempt]]:
    return {name: [Attempt(score) for score in scores] for name, scores in rows.items()}


def test_single_runs_are_columns() -> None:
    found = single_runs(table(a=[1, 0, 1], b=[1, 0, None]))
    # Runs score 1, 0 and 1 (the lost attempt is left out): deviation sqrt(1/3).
    assert (found.runs, found.best) == (3, 1)
    assert found.mean == pytest.approx(2 / 3)
    assert found.deviation == pytest.approx(math.sqrt(1 / 3))
    assert single_runs({}).runs == 0


@pytest.mark.parametrize(
    ("runs", "value"),
    [
        (1, 0.0),
        (2, 1 / math.sqrt(math.pi)),
        (3, 1.5 / math.sqrt(math.pi)),
        (100, 2.50759),  # tabulated, e.g. Harter 1961
    ],
)
def test_the_expected_best_of_normal_draws(runs: int, value: float) -> None:
    assert expected_best(runs) == pytest.approx(value, abs=2e-5)


def test_the_chance_that_the_best_reaches_a_claim() -> None:
    assert chance_of_best(1, 18.7, 5.1, 18.7) == pytest.approx(1 / 2)
    assert chance_of_best(3, 0.0, 1.0, 0.0) == pytest.approx(7 / 8)
    with pytest.raises(ValueError, match="deviation > 0"):
        chance_of_best(3, 0.0, 0.0, 1.0)


def test_the_published_maximum_is_what_chance_gives(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ["--runs", "170", "--mean", "18.7", "--deviation", "5.1", "--claimed", "30"]
    assert best_of(numbers) == 0
    out = capsys.readouterr().out
    assert "expected at 32.4" in out and "+2.2 deviations" in out and "89.8%" in out


@pytest.mark.parametrize(
    ("flag", "value"), [("--runs", "0"), ("--deviation", "0"), ("--mean", "-1")]
)
def test_numbers_that_make_no_sense_exit_with_2(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {"--runs": "2", "--mean": "1", "--deviation": "1", "--claimed": "2", flag: value}
    argv = [word for pair in numbers.items() for word in pair]
    assert run_command(best_of, argv) == 2
    assert flag in capsys.readouterr().err
