"""A run that answers requests and trains nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnwise.run.control import Inbox, Request
from turnwise.run.watching import StatusWriter


class AnsweringRun:
    """Answers from the status file's thread.

    Attributes:
        taken: The requests.
        answers: Answer and words by command; `done` where it has none.
    """

    def __init__(self, run_dir: Path, answers: Mapping[str, tuple[Any, str]]) -> None:
        self.taken: list[Request] = []
        self._inbox, self._answers = Inbox(run_dir), answers
        self.writer = StatusWriter(run_dir, backend="local", look=self._look)
        self.writer.step = 3

    def _look(self) -> None:
        for request in self._inbox.new():
            self.taken.append(request)
            answer, said = self._answers.get(request.command, ("done", ""))
            if request.command == "pause":
                self.writer.state = "paused"
            if request.command == "resume":
                self.writer.state = "running"
            if request.command == "stacks":
                said = str(self.writer.dump_stacks())
            self._inbox.answer(request, answer, said, step=3)


@contextmanager
def answering(run_dir: Path, **answers: tuple[Any, str]) -> Iterator[AnsweringRun]:
    """The run in a folder, under way for the block."""
    run = AnsweringRun(run_dir, answers)
    with run.writer:
        yield run
