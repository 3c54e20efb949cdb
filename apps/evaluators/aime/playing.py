"""Who answers a problem: a model asked once, or a method with its whole loop.

| player           | asks                                    | sampling from          |
|------------------|-----------------------------------------|------------------------|
| `PlainPlayer`    | an engine once, with token ids          | the policy             |
| `EndpointPlayer` | OpenAI's chat completions once          | the request            |
| `MethodPlayer`   | what a `turnwise.method.Method` asks    | the policy, checked    |

All of them give a `Played`: how it ended and the final text. What that is worth is decided
elsewhere, by one grader for all, so that a method and a plain model differ in nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import tokendelta
from numpy.typing import NDArray
from turnwise.config import ConfigError
from turnwise.engine import Completion, Engine, SamplingParams
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit, crossing
from turnwise.method import Job, Method
from turnwise.models.client import ChatClient, ConversationTooLong
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed

from apps.evaluators.aime.problems import Problem

ANSWER_DEADLINE_S = 1800.0
"""For one sampled turn, with every repeat of its request."""
RELEASE_DEADLINE_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a player made of a problem.

    Attributes:
        ending: `finished`, `stopped` by a limit of the policy's, `lost` or `cancelled`.
        output: The final text; "" where there is none.
        metrics: Among them `read_tokens` and `written_tokens` of the policy.
        segments, transcript, info: As of an `Episode`.
    """

    ending: Ending
    output: str
    metrics: Mapping[str, float]
    transcript: Sequence[Mapping[str, Any]] = ()
    segments: tuple[tokendelta.Sample, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0


class Player(Protocol):
    """Answers problems; used from one event loop."""

    async def play(self, rollout: Rollout[Problem]) -> Played:
        """One attempt; failures become its ending.

        Raises:
            ConfigError: no attempt could be right.
        """
        ...

    def services(self) -> Mapping[str, float]:
        """Totals of frozen models and tools that took part."""
        ...

    async def close(self) -> None:
        """Frees what it holds."""
        ...


def plain_prompt(question: str) -> str:
    """The one message of a plain model.

    How to give the answer is added, unless the question says it already.
    """
    if "\\boxed" in question:
        return question
    return (
        f"{question.rstrip()}\n\nReason step by step. Then state the final answer once, inside"
        " \\boxed{}, as the last thing you write."
    )


class MeteredEngine:
    """An engine that counts what one attempt reads and writes, and how it is sampled.

    A method's own helpers may share the engine: what has another session than the attempt's passes
    through.

    Attributes:
        read, written: Tokens of prompts and of turns.
        turns: Turns sampled.
        wrong: The first request with another temperature, top-p or length than the policy's.
    """

    def __init__(self, engine: Engine, sampling: SamplingParams, session: str) -> None:
        self._engine, self._sampling, self._session = engine, sampling, session
        self.read = self.written = self.turns = 0
        self.wrong: SamplingParams | None = None

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        if not session_id.startswith(self._session):
            return await self._engine.generate(prompt_ids, params, session_id=session_id)
        asked = self._sampling
        same = (params.temperature, params.top_p) == (asked.temperature, asked.top_p)
        if self.wrong is None and not (same and params.max_new_tokens <= asked.max_new_tokens):
            self.wrong = params
        completion = await self._engine.generate(prompt_ids, params, session_id=session_id)
        self.read += len(prompt_ids)
        self.written += len(completion.ids)
        self.turns += 1
        return completion

    async def release(self, session_id: str) -> None:
        await self._engine.release(session_id)

    async def close(self) -> None:
        """Nothing: the engine is shared."""

    def metrics(self) -> dict[str, float]:
        return {
            "read_tokens": float(self.read),
            "written_tokens": float(self.written),
            "turns": float(self.turns),
        }


class PlainPlayer:
    """Asks the policy's engine once."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    async def play(self, rollout: Rollout[Problem]) -> Played:
        started = time.perf_counter()
        prompt = plain_prompt(rollout.task.question)
        meter = MeteredEngine(self.policy.engine, self.policy.sampling, rollout.rollout_id)
        session = tokendelta.Session(
            self.policy.profile, tools=(), max_tokens=self.policy.max_context_tokens
        )
        output = ""
        try:
            ending, output = await self._ask(session, meter, prompt, rollout)
        except BoundaryError as error:
            ending = Ending.lost(error)
        finally:
            await _release(self.policy.engine, rollout.rollout_id)
        return Played(
            ending=ending,
            output=output,
            metrics=meter.metrics(),
            transcript=_transcript(prompt, output),
            segments=session.samples().samples if session.turns else (),
            wall_s=time.perf_counter() - started,
        )

    async def _ask(
        self,
        session: tokendelta.Session,
        meter: MeteredEngine,
        prompt: str,
        rollout: Rollout[Problem],
    ) -> tuple[Ending, str]:
        async with crossing(Boundary.ENVIRONMENT):
            ids = session.start([{"role": "user", "content": prompt}])
        if isinstance(ids, tokendelta.Overflow) or not session.remaining:
            return Ending.stopped(Limit.CONTEXT), ""
        sampling = self.policy.sampling
        params = replace(
            sampling,
            seed=derive_seed(rollout.seed, "turn", 0),
            max_new_tokens=min(sampling.max_new_tokens, session.remaining),
        )
        async with crossing(Boundary.ENGINE, deadline_s=ANSWER_DEADLINE_S):
            found = await meter.generate(ids, params, session_id=rollout.rollout_id)
            session.append_sampled(found.ids.tolist(), found.logprobs.tolist(), found.finish)
            text = self.policy.text(found.ids)
        if found.finish == "abort":
            return Ending.cancelled(), text
        if found.finish == "length":
            full = len(found.ids) >= sampling.max_new_tokens
            return Ending.stopped(Limit.TOKENS if full else Limit.CONTEXT), text
        return Ending.finished(), text

    def services(self) -> Mapping[str, float]:
        return {}

    async def close(self) -> None:
        await self.policy.engine.close()


class EndpointPlayer:
    """Asks an endpoint once.

    An answer without words is the model's (a thinking one may spend all its tokens on thoughts):
    it is not asked for again.
    """

    def __init__(self, client: ChatClient, *, top_p: float) -> None:
        self.client, self._top_p = client, top_p

    async def play(self, rollout: Rollout[Problem]) -> Played:
        started = time.perf_counter()
        prompt = plain_prompt(rollout.task.question)
        output, metrics = "", {"read_tokens": 0.0, "written_tokens": 0.0, "turns": 0.0}
        # Servers keep seeds as signed integers.
        seed = derive_seed(rollout.seed, "turn", 0) & 0x7FFFFFFF
        try:
            reply = await self.client.complete(
                [{"role": "user", "content": prompt}],
                as_said=True,
                extra={"seed": seed, "top_p": self._top_p},
            )
        except ConversationTooLong:
            ending = Ending.stopped(Limit.CONTEXT)
        except BoundaryError as error:
            ending = Ending.lost(error)
        else:
            output = reply.text
            metrics = {
                "read_tokens": float(reply.read_tokens),
                "written_tokens": float(reply.written_tokens),
                "turns": 1.0,
            }
            cut = reply.finish == "length"
            ending = Ending.stopped(Limit.TOKENS) if cut else Ending.finished()
        return Played(
            ending=ending,
            output=output,
            metrics=metrics,
            transcript=_transcript(prompt, output),
            wall_s=time.perf_counter() - started,
        )

    async def check(self) -> None:
        """Raises BoundaryError if the endpoint gives no answer to a greeting."""
        await self.client.check(extra={"seed": 0, "top_p": self._top_p})

    def services(self) -> Mapping[str, float]:
        return {}

    async def close(self) -> None:
        await self.client.close()


class MethodPlayer:
    """Plays a method, whose own reward is kept as the metric `method_score`."""

    def __init__(self, method: Method, policy: Policy, name: str) -> None:
        self.method, self.policy, self.name = method, policy, name

    async def play(self, rollout: Rollout[Problem]) -> Played:
        meter = MeteredEngine(self.policy.engine, self.policy.sampling, rollout.rollout_id)
        problem = rollout.task
        job = Job(
            prompt=problem.question,
            label=problem.label,
            metadata={"id": problem.id, "data": problem.data, "index": problem.index},
            policy=replace(self.policy, engine=meter),
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            seed=rollout.seed,
        )
        started = time.perf_counter()
        try:
            episode = await self.method.run(job)
        except ConfigError:
            raise
        except Exception as error:
            if not isinstance(error, BoundaryError):
                logger.exception("%s: a bug of the method", rollout.rollout_id)
            seconds = time.perf_counter() - started
            ending = Ending.lost(_boundary(error))
            return Played(ending=ending, output="", metrics=meter.metrics(), wall_s=seconds)
        if meter.wrong is not None:
            asked = self.policy.sampling
            raise ConfigError(
                f"--method {self.name}: the policy was sampled with temperature"
                f" {meter.wrong.temperature:g}, top-p {meter.wrong.top_p:g} and"
                f" {meter.wrong.max_new_tokens} tokens, asked for were {asked.temperature:g},"
                f" {asked.top_p:g} and at most {asked.max_new_tokens}: its scores could not be"
                " compared with another run's"
            )
        metrics = {**episode.metrics, **meter.metrics()}
        if episode.score is not None:
            metrics["method_score"] = episode.score
        return Played(
            ending=episode.ending,
            output=final_text(episode),
            metrics=metrics,
            transcript=episode.transcript,
            segments=episode.segments,
            info=episode.info,
            wall_s=episode.wall_s,
        )

    def services(self) -> Mapping[str, float]:
        return self.method.metrics()

    async def close(self) -> None:
        try:
            await self.method.close()
        finally:
            await self.policy.engine.close()


def final_text(episode: Episode) -> str:
    """What a method's episode answers: `info["answer"]`, else its last message of an assistant."""
    answer = episode.info.get("answer")
    if isinstance(answer, str):
        return answer
    for message in reversed(episode.transcript):
        if message.get("role") == "assistant":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""


def _boundary(error: Exception) -> BoundaryError:
    """What a method raised: a failure of its own, unless it says otherwise."""
    if isinstance(error, BoundaryError):
        return error
    return BoundaryError(Boundary.ENVIRONMENT, f"{type(error).__name__}: {error}")


async def _release(engine: Engine, session: str) -> None:
    """Frees the session; a failure is not the attempt's, which is over."""
    try:
        async with crossing(Boundary.ENGINE, deadline_s=RELEASE_DEADLINE_S):
            await engine.release(session)
    except BoundaryError:
        pass


def _transcript(prompt: str, output: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": prompt, "author": "prompt", "turn": 0},
        {"role": "assistant", "content": output, "author": "policy", "turn": 0},
    ]
