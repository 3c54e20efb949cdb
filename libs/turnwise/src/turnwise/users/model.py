"""Customers played by a model: `llm`, `react`, `verify` and `reflection`.

| strategy     | requests for a message                                                          |
|--------------|---------------------------------------------------------------------------------|
| `llm`        | one: the answer is the message                                                  |
| `react`      | one: a thought, which nobody is shown, and the message                          |
| `verify`     | `llm`'s and a verdict on it; drawn again while it is wrong, `MAX_DRAFTS` in all |
| `reflection` | `llm`'s and a verdict on it; a wrong one is thought over, `MAX_REFLECTIONS`     |

The last draft of `verify` and `reflection` is said whatever the verdict. All requests of a message
share one deadline. How an answer is read, and when a stop is put off, is in
`turnwise.users.markers`; what the agent says is stripped of markers, so that it cannot put them
into the customer's mouth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from taubench.task import STOP, Task

from turnwise.episode import Boundary, BoundaryError
from turnwise.models.client import ChatClient, Message
from turnwise.users import prompts
from turnwise.users.markers import (
    Words,
    puts_stop_off,
    read_reply,
    read_verdict,
    read_words,
    without_markers,
    without_scratchpad,
)
from turnwise.users.protocol import UserReply

MAX_DRAFTS = 3
MAX_REFLECTIONS = 2
MAX_REMINDERS = 2


class LlmUser:
    """The model's answer is the message. Implements `User`; one conversation at a time."""

    strategy = "llm"
    thinks = False

    def __init__(self, client: ChatClient) -> None:
        self._client = client
        self._task: Task | None = None
        self._history: list[Message] = []
        self._dialogue: list[tuple[str, str]] = []
        self._stop_next = False
        self._over = False
        self._deadline = 0.0

    @property
    def name(self) -> str:
        """`llm-1(MODEL,temperature=1)`: strategy, version of the prompts, model and temperature."""
        return user_name(self.strategy, self._client.config.model, self._client.config.temperature)

    async def reset(self, task: Task) -> str:
        """See `User`. A stop in the first message is ignored.

        Raises:
            BoundaryError: no message could be had.
        """
        self._start(task)
        words = await self._next(opening=True)
        return words.text

    async def reply(self, agent_text: object) -> UserReply:
        """See `User`.

        Raises:
            RuntimeError: `reset` was not called.
            BoundaryError: no message could be had, or the model says that its part does not
                provide for this.
        """
        if self._task is None:
            raise RuntimeError("reset() must come before reply()")
        heard = _heard(agent_text)
        if self._over or self._stop_next:
            self._over = True
            return UserReply(STOP, done=True)
        self._hear(heard)
        words = await self._next(opening=False)
        if words.stop and not puts_stop_off(heard, words):
            self._over = True
            return UserReply(f"{words.text} {STOP}".strip(), done=True)
        self._stop_next = words.stop
        return UserReply(words.text)

    async def resume(
        self, task: Task, opening: str, exchanges: Sequence[tuple[str | None, UserReply]]
    ) -> None:
        """Goes on with a conversation that was led elsewhere; asks nothing.

        Args:
            task: What it is about.
            opening: The customer's first message.
            exchanges: What the agent said and the customer's answer, in order.
        """
        self._start(task)
        self._say(Words(opening), opening)
        for heard, answer in exchanges:
            self._hear(_heard(heard))
            self._say(Words(answer.text, answer.done), answer.text)
            self._over = answer.done

    def _start(self, task: Task) -> None:
        self._task = task
        rules = prompts.rules(task.instruction, STOP, thinks=self.thinks)
        self._history = [{"role": "system", "content": rules}]
        self._dialogue = []
        self._stop_next = self._over = False
        self._hear(prompts.GREETING)

    def _hear(self, words: str) -> None:
        self._history.append({"role": "user", "content": words})
        self._dialogue.append(("agent", words))

    def _say(self, words: Words, answer: str) -> None:
        """Remembers a message, and `answer` as what the model has answered."""
        self._history.append({"role": "assistant", "content": answer})
        said = f"{words.text} {STOP}".strip() if words.stop else words.text
        self._dialogue.append(("customer", said))

    async def _next(self, *, opening: bool) -> Words:
        self._deadline = asyncio.get_running_loop().time() + self._client.config.deadline_s
        words, answer = await self._decide(opening)
        if words.out_of_scope:
            raise BoundaryError(Boundary.USER, f"{self.name} calls it out of scope: {answer[:200]}")
        self._say(words, answer)
        return words

    async def _decide(self, opening: bool) -> tuple[Words, str]:
        """The message, and what is remembered as the answer."""
        return await self._draft(opening)

    async def _draft(self, opening: bool) -> tuple[Words, str]:
        answer = await self._ask(self._history, lambda text: _says(read_words(text), opening))
        words = read_words(answer)
        return words, words.text or answer

    async def _labelled(self, history: Sequence[Message], opening: bool) -> tuple[Words, str]:
        """An answer in two parts; the form is asked for again `MAX_REMINDERS` times."""
        asked = list(history)
        for _ in range(1 + MAX_REMINDERS):
            answer = await self._ask(asked, lambda text: bool(without_scratchpad(text)))
            words = read_reply(answer)
            if _says(words, opening):
                return words, answer
            reminder = {"role": "user", "content": prompts.format_reminder()}
            asked = [*history, {"role": "assistant", "content": answer}, reminder]
        raise BoundaryError(
            Boundary.USER,
            f"{self.name}: {1 + MAX_REMINDERS} answers of which no message can be told from a "
            "thought; use the strategy llm for this model",
        )

    async def _ask(self, messages: Sequence[Message], usable: Callable[[str], bool]) -> str:
        left_s = self._deadline - asyncio.get_running_loop().time()
        reply = await self._client.complete(messages, usable=usable, deadline_s=left_s)
        if not usable(reply.text):
            raise BoundaryError(Boundary.USER, f"{self.name}: an answer without words")
        return without_scratchpad(reply.text)

    async def _judge(self, words: Words) -> tuple[bool, str]:
        """Whether the part's player may say this, and why."""
        assert self._task is not None
        draft = f"{words.text} {STOP}".strip() if words.stop else words.text
        question = prompts.check(self._task.instruction, self._dialogue, draft, STOP)
        answer = await self._ask(
            [{"role": "user", "content": question}], lambda text: read_verdict(text) is not None
        )
        verdict = read_verdict(answer)
        assert verdict is not None
        return verdict


class ReactUser(LlmUser):
    """The model thinks before each message; the thought stays in its own history."""

    strategy = "react"
    thinks = True

    async def resume(
        self, task: Task, opening: str, exchanges: Sequence[tuple[str | None, UserReply]]
    ) -> None:
        """See `LlmUser.resume`; the thoughts of the messages so far are not known."""
        await super().resume(task, opening, exchanges)
        self._history = [
            {**message, "content": f"Reply: {message['content']}"}
            if message["role"] == "assistant"
            else message
            for message in self._history
        ]

    async def _decide(self, opening: bool) -> tuple[Words, str]:
        return await self._labelled(self._history, opening)


class VerifyUser(LlmUser):
    """A message that a second request calls wrong is drawn again."""

    strategy = "verify"

    async def _decide(self, opening: bool) -> tuple[Words, str]:
        for _ in range(MAX_DRAFTS - 1):
            words, answer = await self._draft(opening)
            right, _ = await self._judge(words)
            if right:
                return words, answer
        return await self._draft(opening)


class ReflectionUser(LlmUser):
    """A message that a second request calls wrong is thought over."""

    strategy = "reflection"

    async def _decide(self, opening: bool) -> tuple[Words, str]:
        words, answer = await self._draft(opening)
        for _ in range(MAX_REFLECTIONS):
            right, reason = await self._judge(words)
            if right:
                break
            note = prompts.reflect(words.text or STOP, reason, STOP)
            words, _ = await self._labelled(
                [
                    *self._history,
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": note},
                ],
                opening,
            )
            answer = words.text or STOP
        return words, answer


MODEL_USERS: dict[str, type[LlmUser]] = {
    user.strategy: user for user in (LlmUser, ReactUser, VerifyUser, ReflectionUser)
}


def user_name(strategy: str, model: str, temperature: float | None) -> str:
    """What a customer of these options is called in reports and caches."""
    drawn = "" if temperature is None else f",temperature={temperature:g}"
    return f"{strategy}-{prompts.VERSION}({model}{drawn})"


def _heard(agent_text: object) -> str:
    text = without_markers(agent_text) if isinstance(agent_text, str) else ""
    return text if text.strip() else prompts.SILENCE


def _says(words: Words, opening: bool) -> bool:
    return bool(words.text) if opening else not words.empty
