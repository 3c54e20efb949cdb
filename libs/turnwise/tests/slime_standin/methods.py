"""Methods for tests, by import path: `{"method": "slime_standin.methods:two_segments"}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tokendelta
from taubench.method import TauMethod, TauOptions
from taubench.task import STOP, Task
from taubench.users import OfflineUser
from turnwise.engine.http import HttpPool
from turnwise.episode import Ending, Episode
from turnwise.method import Job, Method
from turnwise.users import User, UserReply
from turnwise.users.protocol import User as UserProtocol


class TauWith(TauMethod):
    """tau with a customer of the test's choice."""

    def __init__(self, options: TauOptions, user: Callable[[], User]) -> None:
        super().__init__(options, make_user=user)


class EndpointUser:
    """A customer behind an OpenAI-compatible endpoint; a reply that is no text is an error.

    Attributes:
        asked: Requests of all customers of this class that were answered.
        resumed: Conversations that were taken up again.
    """

    asked = 0
    resumed = 0

    def __init__(self, url: str, pool: HttpPool) -> None:
        self._url, self._pool = url, pool
        self._messages: list[dict[str, str]] = []

    @property
    def name(self) -> str:
        return "endpoint"

    async def reset(self, task: Task) -> str:
        self._messages = [{"role": "system", "content": task.instruction}]
        return await self._ask()

    async def reply(self, agent_text: object) -> UserReply:
        self._messages.append({"role": "user", "content": str(agent_text)})
        text = await self._ask()
        return UserReply(text, done=STOP in text)

    async def resume(
        self, task: Task, opening: str, exchanges: list[tuple[str | None, UserReply]]
    ) -> None:
        type(self).resumed += 1
        self._messages = [
            {"role": "system", "content": task.instruction},
            {"role": "assistant", "content": opening},
        ]
        for heard, reply in exchanges:
            self._messages.append({"role": "user", "content": str(heard)})
            self._messages.append({"role": "assistant", "content": reply.text})

    async def _ask(self) -> str:
        answer = await self._pool.post(
            f"{self._url}/v1/chat/completions", {"model": "user", "messages": self._messages}
        )
        text = answer["choices"][0]["message"]["content"]
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"the customer's reply is no text: {text!r}")
        type(self).asked += 1
        self._messages.append({"role": "assistant", "content": text})
        return text


class Forgetful:
    """A customer that is asked over the network and can't take up a conversation."""

    name = "forgetful"

    def __init__(self, inner: UserProtocol) -> None:
        self._inner = inner

    async def reset(self, task: Task) -> str:
        return await self._inner.reset(task)

    async def reply(self, agent_text: object) -> UserReply:
        return await self._inner.reply(agent_text)


class TwoSegments(Method):
    """Asks the engine two questions; each is a segment of its own."""

    fans_out = True

    async def run(self, job: Job) -> Episode:
        segments: list[tokendelta.Sample] = []
        for part in ("first", "second"):
            session = tokendelta.Session(job.policy.profile, max_tokens=2048)
            prompt = session.start([{"role": "user", "content": f"{part} {job.prompt}"}])
            assert not isinstance(prompt, tokendelta.Overflow)
            turn = await job.policy.engine.generate(
                prompt, job.policy.sampling, session_id=job.rollout_id
            )
            session.append_sampled(self.kept(turn.ids), turn.logprobs, turn.finish)
            segments += session.samples().samples
        return Episode(
            rollout_id=job.rollout_id,
            group_id=job.group_id,
            task_id=f"two/{job.prompt}",
            segments=tuple(segments),
            ending=Ending.finished(),
            score=float(str(job.prompt)) / 10,
            transcript=(),
        )

    def kept(self, ids: Any) -> Any:
        """What is trained on of a turn."""
        return ids


class Inventing(TwoSegments):
    """Trains on what was not sampled."""

    def kept(self, ids: Any) -> Any:
        return [*ids[:-2][::-1], *ids[-2:]]


class Helped(TwoSegments):
    """Asks the engine something before that is not trained on."""

    async def run(self, job: Job) -> Episode:
        session = tokendelta.Session(job.policy.profile, max_tokens=2048)
        prompt = session.start([{"role": "user", "content": "help"}])
        assert not isinstance(prompt, tokendelta.Overflow)
        params = job.policy.sampling
        await job.policy.engine.generate(prompt, params, session_id=job.rollout_id)
        return await super().run(job)


class Broken(Method):
    """A method with a mistake in it, for rows with an odd prompt."""

    fans_out = True

    async def run(self, job: Job) -> Episode:
        if int(str(job.prompt)) % 2:
            raise KeyError("a mistake")
        return await TwoSegments().run(job)


def two_segments(options: Mapping[str, Any]) -> TwoSegments:
    return TwoSegments()


def inventing(options: Mapping[str, Any]) -> Inventing:
    return Inventing()


def helped(options: Mapping[str, Any]) -> Helped:
    return Helped()


def broken(options: Mapping[str, Any]) -> Broken:
    return Broken()


def patient_user() -> OfflineUser:
    """Says everything at once and stays for four idle turns."""
    return OfflineUser(opening="everything", patience=4)


def patient(options: Mapping[str, Any]) -> TauWith:
    return TauWith(TauOptions(**options), patient_user)
