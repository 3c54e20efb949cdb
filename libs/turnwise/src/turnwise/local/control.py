"""Requests to a training run on this machine (`turnwise.run.control`), and its status file.

    with LocalControl(folder, trainer, progress, done) as control:
        for step in ...:
            await control.between(step - 1, interrupted, evaluate=..., save=...)

1. The thread of the status file takes requests; what is at once is done there: a spend cap, stacks.
2. Everything else waits for the loop to come to `between`, where no episode is under way and no
   weight changes. A pause waits there, so that the run stands between two steps.
3. A change is made again by a run that goes on, after the same step: step k of it is step k of the
   unbroken run.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from turnwise.config import ConfigError
from turnwise.engine.torch_engine import TorchEngine
from turnwise.inflight import REGISTRY
from turnwise.local.options import MAX_COUNT
from turnwise.local.trainer import Trainer
from turnwise.run.control import (
    Inbox,
    Outcome,
    Request,
    changes,
    check_request,
    in_words,
    number_above_0,
    set_spend_cap,
)
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import EventRow, as_row
from turnwise.run.progress import ProgressDisplay
from turnwise.run.watching import StatusWriter

LOOK_S = 0.2
"""Between two looks at whether a pause is over."""


class LocalControl:
    """
    Attributes:
        stopping: Somebody asked the run to end; as the first interrupt does.
        writer: Of the status file.
    """

    def __init__(
        self, folder: RunFolder, trainer: Trainer[Any], progress: ProgressDisplay, done: int
    ) -> None:
        """
        Args:
            done: Training steps done.
        """
        self.stopping: Request | None = None
        self._folder, self._trainer, self._progress = folder, trainer, progress
        self._inbox = Inbox(folder.path)
        self._made: set[str] = set()
        self._due: deque[Request] = deque()
        self._paused: Request | None = None
        self.writer = StatusWriter(
            folder.path,
            backend="local",
            look=self.look,
            on_stall=self._stalled,
            # A server's tokens are known once their turn has ended.
            sampled=_sampled(trainer.engine) if isinstance(trainer.engine, TorchEngine) else None,
        )
        self.writer.step = done
        for request in self._inbox.new():
            if request.command in ("set", "drop"):
                self._take(request)
            else:
                self._answer(request, "refused", "it was asked for before this process began")

    def __enter__(self) -> LocalControl:
        self._progress.on_stage = self.writer.stage
        self.writer.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.writer.__exit__(kind, error, traceback)
        if self.stopping is not None:
            self._answer(self.stopping, "done", f"the run has ended after step {self.writer.step}")
        for request in self._due:
            # A run that goes on finds settings that were noted and makes them.
            if kind is None or request.command not in ("set", "drop"):
                self._answer(request, "refused", "the run has ended before it came to this")

    def look(self) -> None:
        """Takes the requests that have come; called from the status file's thread."""
        for request in self._inbox.new():
            self._take(request)

    async def between(
        self,
        step: int,
        interrupted: Callable[[], bool],
        *,
        evaluate: Callable[[], Awaitable[str]],
        save: Callable[[], str],
    ) -> None:
        """Does what was asked for, and stands still while the run is paused.

        Args:
            step: Training steps done.
            interrupted: Whether the run shall end.
            evaluate, save: Do so, if it was not done after this step, and say what was done.
        """
        self.writer.step = step
        for change in changes(self._inbox.history):
            if change.step <= step and change.request not in self._made:
                self._made.add(change.request)
                self._again(change)
        while True:
            while self._due:
                await self._do(self._due.popleft(), evaluate, save)
            if self._paused is None or interrupted():
                self.writer.state = "running"
                return
            await asyncio.sleep(LOOK_S)

    def _again(self, change: Outcome) -> None:
        """Makes a change that an earlier process of the run has made."""
        try:
            self._change(change.command, change.arguments)
        except ConfigError as error:
            self._progress.say(f"not as before: {error}")
        else:
            self._progress.say(f"as before: {in_words(change)}")

    def _take(self, request: Request) -> None:
        try:
            check_request(request, "local")
            if request.command == "stacks":
                self._answer(request, "done", str(self.writer.dump_stacks()))
            elif request.command == "stop" and self.stopping is not None:
                raise ConfigError("stop: it was asked for already")
            elif request.command == "stop":
                self.stopping = request
                self._answer(request, "noted", "after the step or the evaluation under way")
            elif request.command == "set" and _is_cap(request):
                said = [set_spend_cap(key, value) for key, value in request.arguments.items()]
                self._answer(request, "done", "; ".join(said))
            else:
                self._note(request)
        except ConfigError as error:
            self._answer(request, "refused", str(error))

    def _note(self, request: Request) -> None:
        """Keeps a request for `between`. Raises ConfigError where it can't be done then."""
        keys = {_dashed(key): text for key, text in request.arguments.items()}
        ahead = self._trainer.options.rollout_lag
        if ahead and (request.command == "drop" or "rollout-temperature" in keys):
            raise ConfigError(
                f"{request.command}: with --rollout-lag {ahead} the rollouts of the next step are"
                " sampled by then; another temperature or task would not match them"
            )
        if request.command == "set":
            if any(key.endswith("spend-cap-usd") for key in keys):
                raise ConfigError("set: a spend cap is set at once; ask for it by itself")
            for key, text in keys.items():
                _value(key, text)
        if request.command == "drop":
            for task in request.arguments:
                self._check_drop(task)
                self._cancel(task)
        self._due.append(request)
        self._answer(request, "noted", "now" if self._paused is not None else "after this step")

    def _check_drop(self, task: str) -> None:
        tasks = self._trainer.experiment.train_tasks
        if task not in tasks:
            held = task in self._trainer.experiment.eval_tasks
            why = "is evaluated, and the verdict pairs all of these" if held else "none has this id"
            raise ConfigError(f"drop: {task!r} is no training task: {why}")
        if len(tasks) == 1:
            raise ConfigError(f"drop: {task!r} is the last training task")

    def _cancel(self, task: str) -> None:
        """Cancels its training episodes under way: their group is left out and counted."""
        for entry in REGISTRY.entries():
            # The group of an evaluation is the task.
            if entry.task_id == task != entry.group_id and entry.task is not None:
                entry.task.get_loop().call_soon_threadsafe(entry.task.cancel)

    async def _do(
        self, request: Request, evaluate: Callable[[], Awaitable[str]], save: Callable[[], str]
    ) -> None:
        said = ""
        if request.command == "pause":
            self._paused, said = request, f"after step {self.writer.step}"
            self.writer.state = "paused"
            self.writer.stage("paused")
        elif request.command == "resume":
            said = "" if self._paused is not None else "it was not paused"
            self._paused, self.writer.state = None, "running"
        elif request.command == "eval":
            said = await evaluate()
        elif request.command == "save":
            said = save()
        else:
            try:
                self._change(request.command, request.arguments)
            except ConfigError as error:
                self._answer(request, "refused", str(error))
                return
            self._made.add(request.id)
        self._answer(request, "done", said)
        self._progress.say(f"{in_words(request)}, asked by {request.by}")

    def _change(self, command: str, arguments: Mapping[str, str]) -> None:
        for name, text in arguments.items():
            if command == "set" and _dashed(name).endswith("spend-cap-usd"):
                set_spend_cap(name, text)
            elif command == "set":
                change_option(self._trainer, _dashed(name), text)
            else:
                self._check_drop(name)
                tasks = dict(self._trainer.experiment.train_tasks)
                del tasks[name]
                self._trainer.experiment = replace(self._trainer.experiment, train_tasks=tasks)

    def _stalled(self, text: str, seconds: float, over: bool) -> None:
        event = EventRow(
            step=self.writer.step,
            event="stall over" if over else "stall",
            at=time.time(),
            seconds=seconds,
            text=text,
        )
        self._folder.append_metrics(as_row(event))
        self._progress.say(text)

    def _answer(self, request: Request, answer: Any, said: str) -> None:
        self._inbox.answer(request, answer, said, step=self.writer.step)


def _sampled(engine: TorchEngine) -> Callable[[], int]:
    return lambda: engine.stats.sampled_tokens


def change_option(trainer: Trainer[Any], name: str, text: str) -> None:
    """Changes an option of a trainer between two steps.

    Raises:
        ConfigError: the value is none.
    """
    value = _value(name, text)
    changed = {name.replace("-", "_"): value}
    trainer.options = trainer.options.model_copy(update=changed)
    trainer.updater.settings = trainer.options.update_settings()
    if name == "rollout-temperature":
        policy = trainer.experiment.policy
        sampling = replace(policy.sampling, temperature=value)
        trainer.experiment = replace(trainer.experiment, policy=replace(policy, sampling=sampling))


def _value(name: str, text: str) -> float | int:
    value = number_above_0(name, text)
    if name != "concurrency":
        return value
    if value != int(value) or value > MAX_COUNT:
        raise ConfigError(f"{name}: expected a whole number up to {MAX_COUNT}, found {text!r}")
    return int(value)


def _is_cap(request: Request) -> bool:
    return all(_dashed(key).endswith(".spend-cap-usd") for key in request.arguments)


def _dashed(key: str) -> str:
    return key.replace("_", "-")
