"""A log gets one line for a step; a terminal gets a bar as well."""

import io
import math

from rich.console import Console
from turnwise.run.progress import ProgressDisplay

from .rows import eval_row, train_row

EQUATION = "64 started = 60 finished + 3 stopped + 1 lost (user 1) + 0 cancelled"


def shown(*, terminal: bool, **changes: object) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=40)
    with ProgressDisplay(20, console=console) as progress:
        progress.stage("evaluating")
        progress.evaluated(eval_row(), EQUATION)
        progress.stage("step 3")
        progress.stepped(train_row(**changes), EQUATION)
    return stream.getvalue()


def test_a_log_has_one_line_for_each_row() -> None:
    lines = shown(terminal=False).splitlines()
    assert lines == [
        "eval after step 0: score 0.500 ± 0.100 (doing nothing 0.000), coverage 0.750, 4 s; "
        + EQUATION,
        "step  3/20  reward 0.500  loss +0.1000  groups 1/2  engine-trainer gap 1e-06"
        "  rollout 2.0 s  train 1.0 s  coverage 0.750; " + EQUATION,
    ]


def test_a_log_holds_no_control_characters() -> None:
    assert "\x1b" not in shown(terminal=False)


def test_a_terminal_sees_the_lines_and_what_goes_on() -> None:
    text = shown(terminal=True)
    assert "score 0.500" in text and "step 3" in text and "\x1b" in text


def test_numbers_that_do_not_exist_are_a_dash() -> None:
    text = shown(
        terminal=False, loss=None, max_logprob_diff=None, reward_mean=math.nan, coverage=None
    )
    assert "reward -  loss -  groups 1/2  engine-trainer gap -" in text
    assert "coverage -;" in text


def test_text_in_brackets_and_colons_is_said_as_it_is() -> None:
    stream = io.StringIO()
    progress = ProgressDisplay(1, console=Console(file=stream, width=20))
    progress.say("[bold]user :smile: said[/] and more than twenty characters")
    assert stream.getvalue() == "[bold]user :smile: said[/] and more than twenty characters\n"
    progress.say("task \x1b]0;title\x07")
    assert stream.getvalue().endswith("task \\x1b]0;title\\x07\n")
