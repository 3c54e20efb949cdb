"""Who plays the experts: frozen models by name, each behind a breaker, and a cache if asked for.

1. A failure of an expert is a `BoundaryError`: it loses the episode and is never an answer, a query
   or anything else that the policy or a grader could read.
2. After `breaker.failures` failures of a model in a row nobody asks it for `breaker.pause_s`
   seconds: its episodes are lost at once and not each after a deadline. Then one question is let
   through, whose answer closes the breaker.
3. With a cache an answer is found by the model and all that was asked, without the seed: equal
   questions get equal answers. It costs what it cost when it was made.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.models import Act, ActingModel, Answer, FrozenModel, Message
from turnwise.run.jsonl import append_row, plain, read_rows

from apps.trainers.toolorchestra.options import BreakerOptions

AnswerT = TypeVar("AnswerT")


class BreakerOpen(BoundaryError):
    """The expert was not asked: it failed too often just now."""


class Breaker:
    """Lets nobody ask what keeps failing. See the module.

    Attributes:
        opened: How often it opened.
    """

    def __init__(
        self, name: str, options: BreakerOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.opened = 0
        self._name, self._options, self._clock = name, options, clock
        self._failures = 0
        self._until: float | None = None
        self._last = ""

    async def run(self, ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        """What `ask` gives.

        Raises:
            BreakerOpen: it was not called.
            BoundaryError: it failed.
        """
        now = self._clock()
        if self._until is not None:
            if now < self._until:
                raise BreakerOpen(
                    Boundary.ENGINE,
                    f"{self._name}: not asked for another {self._until - now:.0f} s, after"
                    f" {self._failures} failures in a row, the last: {self._last}",
                )
            # One is let through; whoever comes meanwhile is not.
            self._until = now + self._options.pause_s
        try:
            answer = await ask()
        except BoundaryError as error:
            self._failures, self._last = self._failures + 1, str(error)
            if self._failures >= self._options.failures:
                self.opened += self._until is None
                self._until = self._clock() + self._options.pause_s
            raise
        self._failures, self._until = 0, None
        return answer


class AnswerCache:
    """Answers by what was asked, in a file: one JSON line each. One process writes to it.

    Attributes:
        hits: Answers that were there.
    """

    def __init__(self, path: Path) -> None:
        """
        Raises:
            ConfigError: naming file and line of what is no recorded answer.
        """
        self.path = path
        self.hits = 0
        self._answers: dict[str, Answer] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for number, row in enumerate(read_rows(path), start=1):
            try:
                answer = Answer(
                    str(row["text"]), int(row["read"]), int(row["written"]), str(row["finish"])
                )
                self._answers.setdefault(str(row["key"]), answer)
            except (KeyError, TypeError, ValueError):
                raise ConfigError(
                    f"{path}:{number}: not a recorded answer (key, text, read, written and finish"
                    " are needed); is this another file?"
                ) from None

    async def get(
        self, model: str, asked: Any, ask: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, bool]:
        """The recorded answer, else what `ask` gives, which is then on disk; and whether it was
        recorded. What `ask` raises passes through and records nothing."""
        key = hashlib.sha256(json.dumps([model, asked], sort_keys=True).encode()).hexdigest()
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if key in self._answers:
                self.hits += 1
                return self._answers[key], True
            answer = await ask()
            row = {"key": key, "model": model, "text": plain(answer.text)}
            row |= {"read": answer.read_tokens, "written": answer.written_tokens}
            append_row(self.path, {**row, "finish": answer.finish})
            self._answers[key] = answer
            return answer, False


class Experts:
    """The experts of a run by the names that tables call them. Shared by all episodes."""

    def __init__(
        self,
        models: Mapping[str, FrozenModel],
        breaker: BreakerOptions,
        cache: AnswerCache | None = None,
        identities: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            models: By name.
            breaker: When one that fails is left alone.
            cache: Of answers.
            identities: What tells a model and its settings from others in the cache, by name; the
                name itself where it is left out.
        """
        self._models = models
        self._breakers = {name: Breaker(name, breaker) for name in models}
        self._cache = cache
        self._identities = identities or {}

    def __contains__(self, name: str) -> bool:
        return name in self._models

    @property
    def names(self) -> list[str]:
        return list(self._models)

    async def ask(
        self, name: str, messages: Sequence[Message], *, seed: int
    ) -> tuple[Answer, bool]:
        """An expert's answer, and whether it had been given before.

        Raises:
            BoundaryError: at `Boundary.ENGINE`, there is none.
        """

        async def ask() -> Answer:
            return await self._breakers[name].run(
                lambda: self._models[name].ask(messages, seed=seed)
            )

        if self._cache is None:
            return await ask(), False
        identity = self._identities.get(name, name)
        return await self._cache.get(identity, [dict(one) for one in messages], ask)

    async def act(
        self,
        name: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        *,
        seed: int,
    ) -> Act:
        """An expert's words or native calls where it stands in for the policy; never cached, since
        no two conversations are one.

        Raises:
            BoundaryError: at `Boundary.ENGINE`, there are none, or it can't be given tools.
        """
        model = self._models[name]
        if not isinstance(model, ActingModel):
            raise BoundaryError(Boundary.ENGINE, f"{name} can't be given tools")
        acting = model
        return await self._breakers[name].run(lambda: acting.act(messages, tools, seed=seed))

    def metrics(self) -> dict[str, float]:
        """`expert/breaker_opened` and `expert/cache_hits`, totals since the start."""
        counts = Counter({"expert/breaker_opened": 0})
        for breaker in self._breakers.values():
            counts["expert/breaker_opened"] += breaker.opened
        hits = {} if self._cache is None else {"expert/cache_hits": float(self._cache.hits)}
        return {**{name: float(count) for name, count in counts.items()}, **hits}
