"""Requests to a job of slime's, and its status file, from the process that plays its episodes.

The same two files as on one machine (`turnwise.run.control`); the run folder must be on this node.
slime's driver runs none of our code, so that only what happens between our episodes can be done: a
pause holds every new episode back once those under way have ended, which is after a rollout; the
training step on it is made. Episodes of a dropped task end as cancelled before they begin, and the
dynamic filter leaves their group out. `turnwise.run.control` says of the rest why it can't be. A
job that goes on in the run folder makes what was changed again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from collections.abc import Collection
from typing import Any

from turnwise.config import ConfigError
from turnwise.run.control import (
    Inbox,
    Outcome,
    Request,
    changes,
    check_request,
    in_words,
    set_spend_cap,
)
from turnwise.run.signs import read_signs
from turnwise.run.status import LifeSign
from turnwise.run.watching import StatusWriter
from turnwise.slime import accounts
from turnwise.slime.files import RunFiles, files_of

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Between two looks at whether a pause is over."""
ENGINES_S = 15.0
"""Between two questions to the router for its engines."""
ENGINES_DEADLINE_S = 5.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A node's proxy does not lead to the router."""


class ClusterControl:
    """
    Attributes:
        writer: Of the status file; its step is the rollouts made.
    """

    def __init__(self, files: RunFiles, router: str) -> None:
        """Belongs to the event loop that runs.

        Args:
            router: URL of slime's router.
        """
        self._files, self._router = files, router
        self._inbox = Inbox(files.path)
        self._asked: Request | None = None
        self._held: Request | None = None
        self._engines: dict[str, tuple[float, str]] = {}
        self._tasks: set[str] = set()
        self._dropped: set[str] = set()
        self.writer = StatusWriter(
            files.path,
            backend="slime",
            look=self.look,
            on_stall=self._stalled,
            signs=self._signs,
        )
        # Not at once: the first status is written by the event loop, which must not wait.
        self._asked_engines = self.writer.clock()
        for request in self._inbox.new():
            self._answer(request, "refused", "it was asked for before this process began")
        for change in changes(self._inbox.history):
            self._again(change)

    def takes(self, task: str) -> bool:
        """Whether training episodes of a task are played."""
        self._tasks.add(task)
        return task not in self._dropped

    def look(self) -> None:
        """Takes the requests that have come; called from the status file's thread."""
        for request in self._inbox.new():
            try:
                check_request(request, "slime")
                self._take(request)
            except ConfigError as error:
                self._answer(request, "refused", str(error))

    async def gate(self, *, evaluation: bool) -> None:
        """Returns when a new episode may begin."""
        if not (accounts.TRAIN.in_flight or accounts.EVAL.in_flight):
            self.writer.stage("evaluation" if evaluation else f"rollout {self.writer.step + 1}")
            self._hold()
        while self._held is not None:
            await asyncio.sleep(LOOK_S)

    def rollout_made(self, step: int) -> None:
        """Says that slime logs the rollout of training step `step`."""
        self.writer.step = step
        self.writer.stage(f"training step {step}")
        self._hold()

    def _hold(self) -> None:
        """Begins a pause that was asked for."""
        request, self._asked = self._asked, None
        if request is not None:
            self._held, self.writer.state = request, "paused"
            self._answer(request, "done", f"no episode begins after rollout {self.writer.step}")

    def _again(self, change: Outcome) -> None:
        """Makes a change that an earlier job of the run folder has made."""
        try:
            if change.command == "drop":
                self._dropped.update(change.arguments)
            else:
                for key, value in change.arguments.items():
                    set_spend_cap(key, value)
        except ConfigError as error:
            logger.warning("not as before: %s", error)
        else:
            logger.info("as before: %s", in_words(change))

    def _drop(self, tasks: Collection[str]) -> str:
        left = self._tasks - self._dropped - set(tasks)
        for task in tasks:
            if task not in self._tasks:
                raise ConfigError(
                    f"drop: {task!r}: slime has dealt no training task of this name so far"
                )
        if not left:
            raise ConfigError("drop: no task would be left of those that slime has dealt so far")
        self._dropped.update(tasks)
        return "episodes under way end; no other begins, and slime draws more groups instead"

    def _take(self, request: Request) -> None:
        if request.command == "stacks":
            self._answer(request, "done", str(self.writer.dump_stacks()))
        elif request.command == "set":
            said = [set_spend_cap(key, value) for key, value in request.arguments.items()]
            self._answer(request, "done", "; ".join(said))
        elif request.command == "drop":
            self._answer(request, "done", self._drop(request.arguments))
        elif request.command == "pause":
            self._asked = request
            self._answer(request, "noted", "after the rollout under way")
        elif request.command == "resume":
            held, self._held, self._asked = self._held or self._asked, None, None
            self.writer.state = "running"
            self._answer(request, "done", "" if held is not None else "it was not paused")
        else:
            raise ConfigError("stop: a job is ended through Ray, which `runs stop` and the page do")

    def _signs(self) -> list[LifeSign]:
        now = self.writer.clock()
        if now - self._asked_engines >= ENGINES_S:
            self._asked_engines = now
            self._ask_router(now)
        engines = [LifeSign(name, now - at, said) for name, (at, said) in self._engines.items()]
        return [*engines, *read_signs(self._files.path)]

    def _ask_router(self, now: float) -> None:
        router = f"router {self._router}"
        try:
            with _DIRECT.open(f"{self._router}/workers", timeout=ENGINES_DEADLINE_S) as answer:
                workers = json.load(answer)["workers"]
            self._engines[router] = (now, "")
            for one in workers:
                name = f"engine {one['url']}"
                healthy = one.get("is_healthy", True)
                before = self._engines.get(name, (now, ""))[0]
                found = (now, "") if healthy else (before, "the router calls it unhealthy")
                self._engines[name] = found
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            at = self._engines.get(router, (now, ""))[0]
            self._engines[router] = (at, f"{type(error).__name__}: {error}"[:200])

    def _stalled(self, text: str, seconds: float, over: bool) -> None:
        self._files.append_event(self.writer.step, text, seconds, over=over)

    def _answer(self, request: Request, answer: Any, said: str) -> None:
        self._inbox.answer(request, answer, said, step=self.writer.step)


_controls: dict[str, ClusterControl] = {}


def control_of(args: Any) -> ClusterControl | None:
    """The control of these arguments, begun by the first caller; None without a folder here."""
    files = files_of(args)
    if files is None or not files.shared:
        return None
    key = str(files.path)
    if key not in _controls:
        router = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
        _controls[key] = ClusterControl(files, router)
        _controls[key].writer.__enter__()
    return _controls[key]


def close_controls() -> None:
    """Ends the threads."""
    while _controls:
        _controls.popitem()[1].writer.__exit__(None, None, None)
