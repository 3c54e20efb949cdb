"""What a person sees of a run: one line per step, and a bar where there is a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from turnwise.console import OutputConsole
from turnwise.printable import printable
from turnwise.run.metrics import EvalRow, TrainRow


class ProgressDisplay:
    """Prints a line for each row; shows a bar over `total` steps on a terminal.

    Where there is no terminal, as in the log of a CI job, a step is exactly one line, however long.

    Attributes:
        on_stage: Told as well what is going on.
    """

    def __init__(self, total: int, *, done: int = 0, console: Console | None = None) -> None:
        self.console = console or OutputConsole(highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("training", total=total, completed=done)
        self._total = total
        self.on_stage: Callable[[str], None] = lambda text: None

    def __enter__(self) -> ProgressDisplay:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self.console.print(
            printable(text), markup=False, emoji=False, highlight=False, soft_wrap=True
        )

    def stage(self, text: str) -> None:
        """Says what is going on, on a terminal alone."""
        self.on_stage(text)
        self._bar.update(self._task, description=escape(printable(text)))

    def evaluated(self, row: EvalRow, equation: str) -> None:
        beside = ", ".join(f"{name} {score:.3f}" for name, score in row.baselines.items())
        self.say(
            f"eval after step {row.step}: score {number(row.reward_mean, '.3f')}"
            f" ± {number(row.reward_stderr, '.3f')}{f' ({beside})' if beside else ''},"
            f" coverage {number(row.coverage, '.3f')}, {row.eval_s:.0f} s; {equation}"
        )

    def stepped(self, row: TrainRow, equation: str) -> None:
        self.say(
            f"step {row.step:>{len(str(self._total))}}/{self._total}"
            f"  reward {number(row.reward_mean, '.3f')}  loss {number(row.loss, '+.4f')}"
            f"  groups {row.groups_kept}/{row.groups}"
            f"  engine-trainer gap {number(row.max_logprob_diff, '.0e')}"
            f"  rollout {row.rollout_s:.1f} s  train {row.train_s:.1f} s"
            f"  coverage {number(row.coverage, '.3f')}; {equation}"
        )
        self._bar.update(self._task, completed=row.step)


def number(value: float | None, form: str) -> str:
    """The number in a format, or `-` where there is none."""
    return "-" if value is None or math.isnan(value) else format(value, form)
