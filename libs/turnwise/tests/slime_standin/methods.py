"""Methods for tests, by import path: `{"method": "slime_standin.methods:TwoSegments"}`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from turnwise.conversation import Conversation, Overflow
from turnwise.episode import Ending, Episode
from turnwise.method import Method, MethodOptions
from turnwise.models import recorded
from turnwise.models.protocol import Answer
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row


class TwoSegments(Method[MethodOptions, str]):
    """Asks the policy two questions; each is a segment of its own."""

    fans_out = True

    def task(self, row: Row) -> str:
        return str(row.prompt)

    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        async with Conversation(policy, rollout) as talk:
            for part in ("first", "second"):
                turn = await talk.fresh([{"role": "user", "content": f"{part} {rollout.task}"}])
                assert not isinstance(turn, Overflow)
            return talk.episode(Ending.finished(), score=float(rollout.task) / 10)


class Credited(TwoSegments):
    """Gives its second question credit of its own, and ties by its scores."""

    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        episode = await super().run(rollout, policy)
        return replace(episode, score=1.0, credit=(None, float(rollout.task)))


class Broken(TwoSegments):
    """A method with a mistake in it, for rows with an odd prompt."""

    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        if int(rollout.task) % 2:
            raise KeyError("a mistake")
        return await super().run(rollout, policy)


class Helped(TwoSegments):
    """Asks the policy something before that is not trained on."""

    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        async with Conversation(policy, rollout, name="help") as talk:
            await talk.ask([{"role": "user", "content": "help"}])
        return await super().run(rollout, policy)


class Inventing(TwoSegments):
    """Trains on what was not sampled."""

    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        episode = await super().run(rollout, policy)
        for segment in episode.segments:
            ids = segment.ids.copy()
            ids[segment.prompt_length] += 1
            object.__setattr__(segment, "ids", ids)
        return episode


class Panel(Method[MethodOptions, str]):
    """Two conversations of the policy at once, of which one is the answer, and a frozen model that
    both ask.

    Attributes:
        asked: What the model was asked.
    """

    def __init__(self, options: MethodOptions) -> None:
        super().__init__(options)
        self.asked: list[str] = []

    def task(self, row: Row) -> str:
        return str(row.prompt)

    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        async def lead(name: str) -> Conversation:
            model = recorded(Oracle(self.asked), rollout, asker=name)
            async with Conversation(policy, rollout, name=name) as talk:
                said = {"role": "user", "content": f"parcel {rollout.task}. {name}"}
                for _ in range(3):
                    turn = await talk.ask([said])
                    if isinstance(turn, Overflow) or turn.ending is not None:
                        break
                    answer = await model.ask([{"role": "user", "content": turn.text}])
                    said = {"role": "user", "content": answer.text}
            return talk

        async with asyncio.TaskGroup() as group:
            talks = [group.create_task(lead(name)) for name in ("left", "right")]
        left, right = (task.result() for task in talks)
        if any(turn.ending is not None for turn in (*left.turns, *right.turns)):
            return left.episode(Ending.cancelled())
        return left.episode(Ending.finished(), score=1.0)


class Oracle:
    """A frozen model that says how long its question is."""

    name = "oracle"

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    async def ask(self, messages: Any, *, max_tokens: Any = None, seed: Any = None) -> Answer:
        text = messages[-1]["content"]
        self._asked.append(text)
        await asyncio.sleep(0)
        return Answer(f"{len(text)} letters", 3, 2)
