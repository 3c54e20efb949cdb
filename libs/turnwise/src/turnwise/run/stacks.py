"""Where every task and thread of this process stands, also while its event loop hangs."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

MAX_TASKS = 2000
"""Tasks of one dump; a load of 256 episodes has about as many."""


def stacks(loops: Iterable[asyncio.AbstractEventLoop]) -> str:
    """The stacks of all threads, then those of the tasks of `loops`, as text.

    Callable from any thread. A task that runs at the moment stands in its thread's stack.
    """
    parts = [*_threads()]
    for loop in loops:
        tasks = _tasks(loop)
        parts.append(f"{len(tasks)} tasks of an event loop\n")
        parts += [_task(task) for task in tasks[:MAX_TASKS]]
        if len(tasks) > MAX_TASKS:
            parts.append(f"... and {len(tasks) - MAX_TASKS} more\n")
    return "\n".join(parts)


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        lines = "".join(traceback.format_stack(frame))
        yield f"thread {names.get(number, number)}\n{lines}"


def _tasks(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """By name; the set of them may change while it is read, then it is read again."""
    for _ in range(10):
        try:
            return sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
        except RuntimeError:
            continue
    return []


def _task(task: asyncio.Task[Any]) -> str:
    lines = [f"task {task.get_name()}"]
    waited: Any = task.get_coro()
    while waited is not None:
        frame = next((f for name in _FRAMES if (f := getattr(waited, name, None))), None)
        if frame is None:
            if not isinstance(waited, asyncio.Future):
                break
            lines.append(f"  waits for {type(waited).__name__}")
            break
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_qualname}')
        waited = next((w for name in _AWAITS if (w := getattr(waited, name, None))), None)
    return "\n".join(lines) + "\n"


_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITS = ("cr_await", "ag_await", "gi_yieldfrom")
