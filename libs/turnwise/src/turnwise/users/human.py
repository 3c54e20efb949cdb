"""A user played by a person at the terminal.

> agent's words
you: ...                    an empty line says nothing; /stop or the end of input stops
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from typing import TextIO

from turnwise.printable import printable
from turnwise.users.protocol import Exchange, Scenario, UserReply


class Terminal:
    """One person at one terminal, asked by one conversation at a time.

    Lines are read by a thread that ends with the process, so that a person who does not answer
    blocks neither the event loop nor its end.
    """

    def __init__(self, source: TextIO | None = None, sink: TextIO | None = None) -> None:
        self._source = source or sys.stdin
        self._sink = sink or sys.stdout
        self._lock = asyncio.Lock()

    def show(self, text: str) -> None:
        """Writes lines; what could steer the terminal is shown as text."""
        print(printable(text), file=self._sink, flush=True)

    async def ask(self, text: str) -> str | None:
        """Shows `text` and waits for a line; None at the end of input."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[str] = loop.create_future()

            def deliver(line: str) -> None:
                if not answer.done():
                    answer.set_result(line)

            def read() -> None:
                line = self._source.readline()
                if not loop.is_closed():
                    loop.call_soon_threadsafe(deliver, line)

            self.show(text)
            print("you: ", end="", file=self._sink, flush=True)
            threading.Thread(target=read, daemon=True, name="terminal").start()
            line = await answer
        return line.rstrip("\r\n") if line else None


class HumanUser:
    """See the module. Implements `ResumableUser`."""

    name = "human"

    def __init__(self, terminal: Terminal, *, stop: str) -> None:
        """
        Args:
            terminal: Where the person sits.
            stop: The benchmark's marker that ends a conversation.
        """
        self._terminal = terminal
        self._stop = stop

    async def reset(self, scenario: Scenario) -> str:
        """Shows the part to play and waits for the first message."""
        self._terminal.show(f"\n{scenario.id}: your part\n{scenario.instruction}\n")
        first = await self._terminal.ask("You write first. /stop ends the chat.")
        return _clean(first or "")

    async def reply(self, agent_text: object) -> UserReply:
        """See `User`."""
        shown = agent_text if isinstance(agent_text, str) and agent_text.strip() else "(silence)"
        line = await self._terminal.ask(f"> {shown}")
        if line is None or line.strip() in (self._stop, "/stop"):
            return UserReply(self._stop, done=True)
        return UserReply(_clean(line), done=self._stop in line)

    async def resume(self, scenario: Scenario, opening: str, exchanges: Sequence[Exchange]) -> None:
        """Shows a conversation that was led elsewhere."""
        self._terminal.show(f"\n{scenario.id}: your part\n{scenario.instruction}\n\nyou: {opening}")
        for heard, answer in exchanges:
            self._terminal.show(f"> {heard or '(silence)'}\nyou: {answer.text}")


def _clean(line: str) -> str:
    return line.encode("utf-8", "replace").decode()
