"""One tau-bench episode of a frozen model that is asked by messages.

It calls tools natively; with a text strategy it is offered none, and its words are read.
Customer, environment, views, the rule for several calls and the limits are those of
`taubench.conversation`; no tokens are known, so an episode has no segments.

| what happens                                                | ending           | score  |
|-------------------------------------------------------------|------------------|--------|
| the customer stops, or a terminating tool is called         | finished         | reward |
| `max_turns` turns and not over                              | stopped(turns)   | 0      |
| an answer ends for its length                               | stopped(tokens)  | 0      |
| the endpoint refuses the conversation for its length        | stopped(context) | 0      |
| `max_format_errors` turns in a row with no readable call    | stopped(format)  | 0      |
| endpoint, customer or environment fails                     | lost(boundary)   | none   |

Every call gets an answer under its id, as endpoints demand: one that was not made is told so. What
an endpoint may refuse to read again is repaired in the request alone: arguments that are no JSON
object are sent as `{}`, a missing id as `call_TURN_PLACE`. Thoughts that came with calls go back
with them. The transcript has what the model gave.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit, crossing
from turnwise.models.answer import ChatReply, ToolCall
from turnwise.models.client import ChatClient, ConversationTooLong

from taubench.actions import Turn, to_turn
from taubench.conversation import Conversation, Services
from taubench.strategies import TextView
from taubench.task import Task

NOT_MADE = "Error: this call was not made; make one call at a time"
HANDED_ON = "Said to the user."


async def run_chat_episode(
    task: Task,
    client: ChatClient,
    services: Services,
    *,
    rollout_id: str,
    group_id: str,
) -> Episode:
    """Plays one episode. Raises nothing on what the model wrote or a service did.

    Args:
        task: What the customer wants.
        client: Asks the model at the desk; its boundary must be the engine's.
        services: Who and what else takes part.
        rollout_id: Names the rollout.
        group_id: Names the trials of the same task.

    Each message of `Episode.transcript` has `role`, `content`, `author`, `turn`, and None for
    `segment` and `span`, as `run_episode` has them. An assistant message has `finish`, and
    `tool_calls` with arguments as the text that the model gave.
    """
    started = time.perf_counter()
    run = _ChatRun(task, client, services)
    try:
        ending = await run.play()
    except BoundaryError as error:
        ending = Ending.lost(error)
    return Episode(
        rollout_id=rollout_id,
        group_id=group_id,
        task_id=task.id,
        segments=(),
        ending=ending,
        score=run.reward if ending.by_policy else None,
        transcript=[{**message, "segment": None, "span": None} for message in run.messages],
        metrics=run.metrics(),
        info=run.info(),
        wall_s=time.perf_counter() - started,
    )


class _ChatRun(Conversation):
    """State of one episode under way.

    Attributes:
        wire: The messages as the endpoint gets them.
    """

    def __init__(self, task: Task, client: ChatClient, services: Services) -> None:
        super().__init__(task, services)
        self.client = client
        self.wire: list[dict[str, Any]] = []

    async def play(self) -> Ending:
        await self._open()
        self.wire = [
            {key: message[key] for key in ("role", "content")} for message in self.messages
        ]
        answers: list[dict[str, Any]] = []
        for turn in range(self.services.max_turns):
            try:
                reply = await self._sample()
            except ConversationTooLong:
                return self._overflow(answers)
            self._note_reply(reply, turn)
            if reply.finish == "length":
                return Ending.stopped(Limit.TOKENS)
            ending, answers = await self._act(self._read(reply), turn)
            if ending is not None:
                return ending
            self._extend_wire(reply, answers, turn)
        return Ending.stopped(Limit.TURNS)

    async def _sample(self) -> ChatReply:
        started = time.perf_counter()
        try:
            async with crossing(Boundary.ENGINE, deadline_s=self.services.engine_deadline_s):
                # Empty words are the policy's own; asking again would draw a second sample.
                reply = await self.client.complete(self.wire, tools=self.tools, as_said=True)
        finally:
            self.engine_s += time.perf_counter() - started
        self.counts["turns"] += 1
        self.counts["sampled_tokens"] += reply.written_tokens
        return reply

    def _note_reply(self, reply: ChatReply, turn: int) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.tool_calls:
            message["tool_calls"] = [_as_message(call, call.id) for call in reply.tool_calls]
        self._note({**message, "finish": reply.finish}, "policy", turn)

    def _read(self, reply: ChatReply) -> Turn:
        """The actions of a turn; counts what was called, dropped and unreadable."""
        view = self.services.view
        if isinstance(view, TextView):
            read = view.read(reply.text)
            return self._decode(read.thought, read.calls, read.errors)
        calls = [(call.name, call.arguments) for call in reply.tool_calls]
        in_a_row = self.unreadable
        decoded = self._decode(reply.text, calls, ())
        actions = to_turn(None, calls, several="all").actions
        broken = sum(action.error is not None for action in actions)
        self.counts["parse_errors"] += broken
        self.unreadable = in_a_row + 1 if broken == len(actions) else 0
        return decoded

    def _extend_wire(
        self, reply: ChatReply, answers: Sequence[Mapping[str, Any]], turn: int
    ) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, **reply.reasoning}
        ids = [call.id or f"call_{turn}_{place}" for place, call in enumerate(reply.tool_calls)]
        if ids:
            message["tool_calls"] = [
                _as_message(_readable(call), name)
                for call, name in zip(reply.tool_calls, ids, strict=True)
            ]
        self.wire.append(message)
        heard: list[dict[str, Any]] = []
        for place, name in enumerate(ids):
            answer = answers[place] if place < len(answers) else None
            content = NOT_MADE if answer is None else answer["content"]
            if answer is not None and answer["role"] == "user":
                content = HANDED_ON
                heard.append({"role": "user", "content": answer["content"]})
            self.wire.append({"role": "tool", "tool_call_id": name, "content": content})
        if not ids:
            heard = [{"role": "user", "content": answer["content"]} for answer in answers]
        self.wire.extend(heard)

    def info(self) -> dict[str, Any]:
        return {
            "user": self.user_name,
            "prompt": self.services.view.name,
            "model": self.client.config.model,
            "dropped_calls": [asdict(call) for call in self.dropped],
            "overflow_by": self.overflow_by,
        } | self._score_parts()


def _as_message(call: ToolCall, name: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": name, "type": "function", "function": function, **call.more}


def _readable(call: ToolCall) -> ToolCall:
    """The call as an endpoint can read it again."""
    try:
        readable = isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        readable = False
    arguments = call.arguments if readable else "{}"
    return replace(call, name=call.name or "unnamed", arguments=arguments)
