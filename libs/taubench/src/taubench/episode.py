"""One tau-bench episode: the loop for training and evaluation, on every backend.

1. The customer speaks first; the prompt is the view's system prompt, its tools and that message.
2. The engine samples a turn. Its ids and log-probs go into the session verbatim; only their text
   is parsed. Turn k is drawn with `derive_seed(seed, "turn", k)`, so that a result depends on the
   rollout's seed and not on what else was running.
3. The turn becomes actions (`taubench.to_turn`), from its tool calls or, with a text view
   (`taubench.strategies`), from its words. Tools answer at once; a message goes to
   the customer, who is awaited here and never inside of the environment.
4. All answers of a turn form one append to the session, and so the next prompt.

| what happens                                                    | ending            | score   |
|-----------------------------------------------------------------|-------------------|---------|
| the customer stops, or a terminating tool is called             | finished          | reward  |
| `max_turns` turns and not over                                  | stopped(turns)    | 0       |
| a turn reaches `max_new_tokens`                                 | stopped(tokens)   | 0       |
| prompt or turn reaches `max_context_tokens`                     | stopped(context)  | 0       |
| `max_format_errors` turns in a row of which no call can be read | stopped(format)   | 0       |
| engine, customer or environment fails or misses its deadline    | lost(boundary)    | none    |
| the engine gives a turn back unfinished (`abort`)               | cancelled         | none    |

A stopped episode scores 0 as upstream's does, which pays only when the conversation is over.
Cancellation of the surrounding task passes through after the engine was told.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import tokendelta
import toolparse
from tokendelta import Overflow, Sample
from turnwise.engine import Completion
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit, crossing
from turnwise.policy import Policy
from turnwise.rollout import derive_seed

from taubench.actions import Turn
from taubench.conversation import (
    Conversation,
    Services,
    compact_user,
    default_services,
)
from taubench.strategies import TextTurn, TextView
from taubench.task import Task

__all__ = ["Services", "compact_user", "default_services", "run_episode"]

RELEASE_DEADLINE_S = 10.0


async def run_episode(
    task: Task,
    policy: Policy,
    services: Services,
    *,
    rollout_id: str,
    group_id: str,
    seed: int,
) -> Episode:
    """Plays one episode. Raises nothing on what the model wrote or a service did.

    Args:
        task: What the customer wants.
        policy: Who is at the desk.
        services: Who and what else takes part.
        rollout_id: Names the rollout, and the engine's session.
        group_id: Names the rollouts that are compared with this one.
        seed: Non-negative; fixes every draw of the episode.

    Each message of `Episode.transcript` has `role`, `content`, `author` (`prompt`, `policy`, the
    customer's name, or `tool:<name>`), `turn`, and `segment` with `span`: the place [start, stop)
    in `Episode.segments[segment].ids`, None where the message never got into a prompt. Messages
    that entered a prompt together share their span. An assistant message has `text` (all that was
    sampled) and `finish` as well.
    """
    started = time.perf_counter()
    run = _Run(task, policy, services, rollout_id, seed)
    try:
        ending = await run.play()
    except BoundaryError as error:
        ending = Ending.lost(error)
    finally:
        await run.release()
    segments, transcript = run.record()
    return Episode(
        rollout_id=rollout_id,
        group_id=group_id,
        task_id=task.id,
        segments=segments,
        ending=ending,
        score=run.reward if ending.by_policy else None,
        transcript=transcript,
        metrics=run.metrics(),
        info=run.info(),
        wall_s=time.perf_counter() - started,
    )


class _Run(Conversation):
    """State of one episode of a policy that samples tokens."""

    def __init__(
        self, task: Task, policy: Policy, services: Services, rollout_id: str, seed: int
    ) -> None:
        super().__init__(task, services)
        self.policy = policy
        self.rollout_id, self.seed = rollout_id, seed
        self.toolset = toolparse.ToolSet(self.tools)
        self.session = tokendelta.Session(
            policy.profile,
            tools=self.tools,
            max_tokens=policy.max_context_tokens,
            on_rewrite=policy.on_rewrite,
        )
        self.weight_versions: set[int] = set()
        self.release_error: str | None = None

    async def play(self) -> Ending:
        await self._open()
        async with crossing(Boundary.ENVIRONMENT):
            prompt = self.session.start(_plain(self.messages))
        answers: list[dict[str, Any]] = []
        for turn in range(self.services.max_turns):
            if isinstance(prompt, Overflow) or not self.session.remaining:
                return self._overflow(answers)
            completion = await self._sample(prompt, turn)
            ending, answers = await self._take(completion, turn)
            if ending is not None:
                return ending
            async with crossing(Boundary.ENVIRONMENT):
                prompt = self.session.append_env(_plain(answers))
        return Ending.stopped(Limit.TURNS)

    async def _sample(self, prompt: tokendelta.sample.IntArray, turn: int) -> Completion:
        remaining = self.session.remaining
        assert remaining is not None
        sampling = self.policy.sampling
        params = replace(
            sampling,
            seed=derive_seed(self.seed, "turn", turn),
            max_new_tokens=min(sampling.max_new_tokens, remaining),
        )
        started = time.perf_counter()
        try:
            async with crossing(Boundary.ENGINE, deadline_s=self.services.engine_deadline_s):
                completion = await self.policy.engine.generate(
                    prompt, params, session_id=self.rollout_id
                )
        finally:
            self.engine_s += time.perf_counter() - started
        self.counts["cached_tokens"] += completion.cached_tokens
        self.weight_versions.add(completion.weight_version)
        return completion

    async def _take(
        self, completion: Completion, turn: int
    ) -> tuple[Ending | None, list[dict[str, Any]]]:
        """Records a sampled turn and acts on it: how the episode ended, or the answers."""
        async with crossing(Boundary.ENGINE):
            text = self.policy.text(completion.ids)
        stopped = completion.finish == "stop"
        parsed = self._parse(text)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if stopped and isinstance(parsed, toolparse.Parsed):
            message = _assistant(parsed)
        async with crossing(Boundary.ENGINE):
            overflow = self.session.append_sampled(
                completion.ids.tolist(),
                completion.logprobs.tolist(),
                completion.finish,
                message=message if message.get("tool_calls") else None,
            )
            if overflow is not None:
                raise BoundaryError(
                    Boundary.ENGINE,
                    f"{overflow.needed} tokens sampled where {overflow.available} were asked for",
                )
        self.counts["turns"] += 1
        self.counts["sampled_tokens"] += len(completion.ids)
        self._note({**message, "text": text, "finish": completion.finish}, "policy", turn)
        if completion.finish == "abort":
            return Ending.cancelled(), []
        if not stopped:
            full = self.policy.sampling.max_new_tokens <= len(completion.ids)
            return Ending.stopped(Limit.TOKENS if full else Limit.CONTEXT), []
        return await self._act(self._read(parsed), turn)

    def _parse(self, text: str) -> toolparse.Parsed | TextTurn:
        if isinstance(self.services.view, TextView):
            return self.services.view.read(text)
        return toolparse.parse(text, format=self.policy.tool_format, tools=self.toolset)

    def _read(self, parsed: toolparse.Parsed | TextTurn) -> Turn:
        """The actions of a turn."""
        if isinstance(parsed, TextTurn):
            return self._decode(parsed.thought, parsed.calls, parsed.errors)
        calls = [(call.name, call.arguments) for call in _callable(parsed)]
        return self._decode(parsed.content, calls, parsed.errors)

    async def release(self) -> None:
        """Frees the engine's session; a failure is noted, since the episode is over anyway."""
        try:
            async with crossing(Boundary.ENGINE, deadline_s=RELEASE_DEADLINE_S):
                await self.policy.engine.release(self.rollout_id)
        except BoundaryError as error:
            self.release_error = str(error)

    def record(self) -> tuple[tuple[Sample, ...], list[dict[str, Any]]]:
        """The segments, and the messages with their places in them."""
        segments = self.session.samples().samples
        places: dict[tuple[int, bool], list[int]] = {}
        for number, sample in enumerate(segments):
            for span in sample.spans:
                place = places.setdefault((span.turn, span.trained), [number, span.start, 0])
                if place[0] == number:
                    place[2] = span.stop
        transcript = []
        for message in self.messages:
            found = places.get((message["turn"], message["author"] == "policy"))
            where = {"segment": found and found[0], "span": found and found[1:]}
            transcript.append({**message, **where})
        return segments, transcript

    def info(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "user": self.user_name,
            "prompt": self.services.view.name,
            "seed": self.seed,
            "weight_versions": sorted(self.weight_versions),
            "dropped_calls": [asdict(call) for call in self.dropped],
            "release_error": self.release_error,
            "overflow_by": self.overflow_by,
        }
        return facts | self._score_parts()


def _callable(parsed: toolparse.Parsed) -> list[toolparse.Call]:
    return [
        call
        for call in parsed.attempts
        if call.error is None or (call.error.kind == "unknown_tool" and call.name is not None)
    ]


def _assistant(parsed: toolparse.Parsed) -> dict[str, Any]:
    """The turn as an OpenAI-style message."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments or {}}}
        for call in _callable(parsed)
    ]
    return {**message, "tool_calls": calls} if calls else message


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the chat template sees of the messages."""
    return [
        {key: message[key] for key in ("role", "name", "content") if key in message}
        for message in messages
    ]
