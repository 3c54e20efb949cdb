"""Users played by a model: `llm`, `react`, `verify` and `reflection`.

| strategy     | requests for a message                                                          |
|--------------|---------------------------------------------------------------------------------|
| `llm`        | one: the answer is the message                                                  |
| `react`      | one: a thought, which nobody is shown, and the message                          |
| `verify`     | `llm`'s and a verdict on it; drawn again while it is wrong, `MAX_DRAFTS` in all |
| `reflection` | `llm`'s and a verdict on it; a wrong one is thought over, `MAX_REFLECTIONS`     |

The last draft of `verify` and `reflection` is said whatever the verdict. All requests of a message
share one deadline. What the model is told, how an answer is read and when a stop is put off is the
benchmark's `UserRole`. An answer that holds no message, or one that is too long for a person, is
asked for again a few times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from turnwise.episode import Boundary, BoundaryError, crossing
from turnwise.models import FrozenModel, Message, without_scratchpad
from turnwise.users.protocol import MAX_MESSAGE_CHARACTERS, Exchange, Scenario, UserReply
from turnwise.users.role import UserMessage, UserRole

MAX_DRAFTS = 3
MAX_REFLECTIONS = 2
MAX_REMINDERS = 2


class LlmUser:
    """The model's answer is the message. Implements `ResumableUser`; one conversation at a time.

    Attributes:
        name: `llm-1(MODEL,temperature=1)`: see `user_name`.
    """

    strategy = "llm"
    thinks = False

    def __init__(
        self,
        model: FrozenModel,
        role: UserRole,
        *,
        name: str,
        deadline_s: float = 110.0,
        max_repeats: int = 2,
    ) -> None:
        """
        Args:
            model: Plays the user.
            role: What it is told, and how it is read.
            name: For reports.
            deadline_s: For each message, every request for it included.
            max_repeats: How often an answer that holds no message is asked for again.
        """
        self.name = name
        self._model = model
        self._role = role
        self._deadline_s = deadline_s
        self._max_repeats = max_repeats
        self._scenario: Scenario | None = None
        self._history: list[Message] = []
        self._dialogue: list[tuple[str, str]] = []
        self._stop_next = False
        self._over = False
        self._deadline = 0.0

    async def reset(self, scenario: Scenario) -> str:
        """See `User`. A stop in the first message is ignored.

        Raises:
            BoundaryError: no message could be had.
        """
        self._start(scenario)
        message = await self._next(opening=True)
        return message.text

    async def reply(self, agent_text: object) -> UserReply:
        """See `User`.

        Raises:
            RuntimeError: `reset` was not called.
            BoundaryError: no message could be had, or the model says that its part does not
                provide for this.
        """
        if self._scenario is None:
            raise RuntimeError("reset() must come before reply()")
        heard = self._role.heard(agent_text)
        if self._over or self._stop_next:
            self._over = True
            return UserReply(self._role.stop, done=True)
        self._hear(heard)
        message = await self._next(opening=False)
        if message.stop and not self._role.puts_stop_off(heard, message):
            self._over = True
            return UserReply(self._shown(message), done=True)
        self._stop_next = message.stop
        return UserReply(message.text)

    async def resume(self, scenario: Scenario, opening: str, exchanges: Sequence[Exchange]) -> None:
        """See `ResumableUser`; asks nothing."""
        self._start(scenario)
        self._say(UserMessage(opening), opening)
        for heard, answer in exchanges:
            self._hear(self._role.heard(heard))
            self._say(UserMessage(answer.text, answer.done), answer.text)
            self._over = answer.done

    def _start(self, scenario: Scenario) -> None:
        self._scenario = scenario
        rules = self._role.rules(scenario.instruction, thinks=self.thinks)
        self._history = [{"role": "system", "content": rules}]
        self._dialogue = []
        self._stop_next = self._over = False
        self._hear(self._role.greeting)

    def _hear(self, words: str) -> None:
        self._history.append({"role": "user", "content": words})
        self._dialogue.append(("agent", words))

    def _say(self, message: UserMessage, answer: str) -> None:
        """Remembers a message, and `answer` as what the model has answered."""
        self._history.append({"role": "assistant", "content": answer})
        self._dialogue.append(("user", self._shown(message)))

    def _shown(self, message: UserMessage) -> str:
        return f"{message.text} {self._role.stop}".strip() if message.stop else message.text

    async def _next(self, *, opening: bool) -> UserMessage:
        self._deadline = asyncio.get_running_loop().time() + self._deadline_s
        message, answer = await self._decide(opening)
        if message.out_of_scope:
            raise BoundaryError(Boundary.USER, f"{self.name} calls it out of scope: {answer[:200]}")
        self._say(message, answer)
        return message

    async def _decide(self, opening: bool) -> tuple[UserMessage, str]:
        """The message, and what is remembered as the answer."""
        return await self._draft(opening)

    async def _draft(self, opening: bool) -> tuple[UserMessage, str]:
        read = self._role.read
        answer = await self._ask(self._history, lambda text: _says(read(text), opening))
        message = read(answer)
        return message, message.text or answer

    async def _labelled(self, history: Sequence[Message], opening: bool) -> tuple[UserMessage, str]:
        """An answer in two parts; the form is asked for again `MAX_REMINDERS` times."""
        asked = list(history)
        for _ in range(1 + MAX_REMINDERS):
            answer = await self._ask(asked, lambda text: bool(without_scratchpad(text)))
            message = self._role.read_labelled(answer)
            if _says(message, opening):
                return message, answer
            reminder = {"role": "user", "content": self._role.reminder()}
            asked = [*history, {"role": "assistant", "content": answer}, reminder]
        raise BoundaryError(
            Boundary.USER,
            f"{self.name}: {1 + MAX_REMINDERS} answers of which no message can be told from a "
            "thought; use the strategy llm for this model",
        )

    async def _ask(self, messages: Sequence[Message], usable: Callable[[str], bool]) -> str:
        answer = ""
        left_s = self._deadline - asyncio.get_running_loop().time()
        async with crossing(Boundary.USER, deadline_s=max(0.0, left_s)):
            for _ in range(1 + self._max_repeats):
                answer = (await self._model.ask(messages)).text
                if usable(answer):
                    return without_scratchpad(answer)
        raise BoundaryError(
            Boundary.USER,
            f"{self.name}: {1 + self._max_repeats} answers that hold no message, the last of "
            f"{len(answer)} characters: {answer[:200]!r}",
        )

    async def _judge(self, message: UserMessage) -> tuple[bool, str]:
        """Whether the part's player may say this, and why."""
        assert self._scenario is not None
        question = self._role.check(
            self._scenario.instruction, self._dialogue, self._shown(message)
        )
        read = self._role.read_verdict
        answer = await self._ask(
            [{"role": "user", "content": question}], lambda text: read(text) is not None
        )
        verdict = read(answer)
        assert verdict is not None
        return verdict


class ReactUser(LlmUser):
    """The model thinks before each message; the thought stays in its own history."""

    strategy = "react"
    thinks = True

    async def resume(self, scenario: Scenario, opening: str, exchanges: Sequence[Exchange]) -> None:
        """See `LlmUser.resume`; the thoughts of the messages so far are not known."""
        await super().resume(scenario, opening, exchanges)
        self._history = [
            {**message, "content": f"Reply: {message['content']}"}
            if message["role"] == "assistant"
            else message
            for message in self._history
        ]

    async def _decide(self, opening: bool) -> tuple[UserMessage, str]:
        return await self._labelled(self._history, opening)


class VerifyUser(LlmUser):
    """A message that a second request calls wrong is drawn again."""

    strategy = "verify"

    async def _decide(self, opening: bool) -> tuple[UserMessage, str]:
        for _ in range(MAX_DRAFTS - 1):
            message, answer = await self._draft(opening)
            right, _ = await self._judge(message)
            if right:
                return message, answer
        return await self._draft(opening)


class ReflectionUser(LlmUser):
    """A message that a second request calls wrong is thought over."""

    strategy = "reflection"

    async def _decide(self, opening: bool) -> tuple[UserMessage, str]:
        stop = self._role.stop
        message, answer = await self._draft(opening)
        for _ in range(MAX_REFLECTIONS):
            right, reason = await self._judge(message)
            if right:
                break
            note = self._role.reflect(message.text or stop, reason)
            message, _ = await self._labelled(
                [
                    *self._history,
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": note},
                ],
                opening,
            )
            answer = message.text or stop
        return message, answer


MODEL_USERS: dict[str, type[LlmUser]] = {
    user.strategy: user for user in (LlmUser, ReactUser, VerifyUser, ReflectionUser)
}


def user_name(strategy: str, version: int, model: str, temperature: float | None) -> str:
    """What a user of these options is called in reports and caches."""
    drawn = "" if temperature is None else f",temperature={temperature:g}"
    return f"{strategy}-{version}({model}{drawn})"


def _says(message: UserMessage, opening: bool) -> bool:
    if len(message.text) > MAX_MESSAGE_CHARACTERS:
        return False
    return bool(message.text) if opening else not message.empty
