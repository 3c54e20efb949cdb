"""Eight episodes at once, of which one meets a misbehaving engine or customer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    generate_and_rm_group,
)
from slime_standin.contract import make_args, to_train_data
from slime_standin.desk import Desk, make_tokenizer, openings, prompts
from taubench.task import STOP, Task
from turnwise.engine.http import HttpPool
from turnwise.slime import close as close_connections
from turnwise.slime import rollout_log, shared
from turnwise.testing.servers import Call, FakeChat, FakeSGLang, Misbehaviour
from turnwise.users import User, UserReply

from apps.trainers.tau.method import TauMethod
from apps.trainers.tau.options import TauOptions

EPISODES = 8
VICTIM = 3
PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong for the victim.

    Attributes:
        name: For people.
        what: Makes the misbehaviour.
        ends: How the victim's episode ends.
        turn: The request of the victim's that meets it, from 0.
        times: How many requests of the victim's meet it from then on.
        deadline_s: For each answer of the engine and the customer.
        error: What the ending's error must contain.
    """

    name: str
    what: Callable[[], Misbehaviour]
    ends: str
    turn: int = 1
    times: int = 1000
    deadline_s: float = 60.0
    error: str = ""

    def at(self, number: int) -> bool:
        return self.turn <= number < self.turn + self.times


@dataclass(frozen=True, slots=True)
class Outcome:
    """What slime and its tracker got to see.

    Attributes:
        samples: In the order of their index.
        numbers: What was logged.
        data: The training data.
    """

    samples: list[Any]
    numbers: dict[str, float]
    data: dict[str, list[Any]]


class Counter(TauMethod):
    """tau with the users of the test under way."""

    users: ClassVar[list[Callable[[], User]]] = []

    def __init__(self, options: TauOptions) -> None:
        super().__init__(options, make_user=lambda: self.users[-1]())


class EndpointUser:
    """A user behind an OpenAI-compatible endpoint; a reply that is no text is an error."""

    name = "endpoint"

    def __init__(self, url: str, pool: HttpPool) -> None:
        self._url, self._pool = f"{url}/v1/chat/completions", pool
        self._messages: list[dict[str, str]] = []

    async def reset(self, task: Task) -> str:
        self._messages = [{"role": "system", "content": task.instruction}]
        return await self._ask()

    async def reply(self, agent_text: object) -> UserReply:
        self._messages.append({"role": "user", "content": str(agent_text)})
        text = await self._ask()
        return UserReply(text, done=STOP in text)

    async def _ask(self) -> str:
        asked = {"model": "user", "messages": self._messages}
        text = (await self._pool.post(self._url, asked))["choices"][0]["message"]["content"]
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"the user's reply is no text: {text!r}")
        self._messages.append({"role": "assistant", "content": text})
        return text


async def play(
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    engine: Fault | None = None,
    user: Fault | None = None,
    **changes: Any,
) -> Outcome:
    """Plays the episodes under slime's arguments `changes`; asserts that nothing is left behind."""
    fault = engine or user
    deadline_s = fault.deadline_s if fault else 60.0
    options = {
        "prompt": "compact",
        "user": {"strategy": "offline"},
        "user_deadline_s": deadline_s,
        "engine_deadline_s": deadline_s,
    }
    rows = prompts(EPISODES)
    for number, sample in enumerate(rows):
        sample.index, sample.group_index, sample.session_id = number, 0, f"session-{number}"
    instructions = [_instruction(sample.prompt) for sample in rows]
    quick = partial(HttpPool, backoff_s=0.001, max_backoff_s=0.02)
    monkeypatch.setattr(shared, "HttpPool", quick)
    with nothing_left_behind():
        pool = quick()
        server = FakeSGLang(Desk(make_tokenizer(), asks=1).answer)
        customer = FakeChat(says)
        async with server, customer:
            monkeypatch.setattr(Counter, "users", [lambda: EndpointUser(customer.url, pool)])
            server.misbehave = _meet(engine, lambda call: call.session == f"session-{VICTIM}")
            customer.misbehave = _meet(user, lambda call: _speaks_of(call, instructions[VICTIM]))
            args = make_args(
                hf_checkpoint=checkpoint,
                turnwise={"method": f"{__name__}:Counter", **options},
                **changes,
                sglang_router_port=server.port,
                n_samples_per_prompt=EPISODES,
            )
            samples = await generate_and_rm_group(args, rows, PARAMS)
            await close_connections()
            await pool.close()
        data = to_train_data(args, [samples])
        assert rollout_log(0, args, samples, {}, 1.0) is True
        await _settle()
    return Outcome(samples, logging_utils.logged[-1], data)


def _instruction(index: int) -> str:
    return next(task.instruction for task in openings().values() if task.index == index)


def _meet(
    fault: Fault | None, concerns: Callable[[Call], bool]
) -> Callable[[Call], Misbehaviour | None]:
    met = [0]

    def misbehave(call: Call) -> Misbehaviour | None:
        if fault is None or not concerns(call):
            return None
        number, met[0] = met[0], met[0] + 1
        return fault.what() if fault.at(number) else None

    return misbehave


def _speaks_of(call: Call, instruction: str) -> bool:
    return bool(call.body["messages"][0]["content"] == instruction)


def says(messages: list[dict[str, Any]]) -> str:
    """A customer who says everything at once, agrees, and leaves when it is done."""
    if len(messages) == 1:
        wanted = messages[0]["content"]
        return next(words for words, task in openings().items() if task.instruction == wanted)
    return "###STOP###" if "done" in messages[-1]["content"] else "Yes, please."


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Asserts that the block leaves no task, file or socket, not even to the collector."""
    tasks = asyncio.all_tasks()
    files = _open_files()
    yield
    left = asyncio.all_tasks() - tasks
    assert not left, f"tasks left: {left}"
    more = _open_files() - files
    assert not more, f"files left: {more}"


def _open_files() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return found


async def _settle() -> None:
    """Lets closed connections finish closing."""
    for _ in range(20):
        await asyncio.sleep(0)
