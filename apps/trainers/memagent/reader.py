"""How a policy reads: as ids where it samples tokens, as text where it is an endpoint."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

import tokendelta
from turnwise.conversation import Conversation, Overflow, Turn

from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.prompts import MEMORY, PROBLEM, SECTION, Prompts
from apps.trainers.memagent.sections import Ids, bounded, encoded, keep, slices
from apps.trainers.memagent.task import Task
from apps.trainers.memagent.template import Template

PartT = TypeVar("PartT")
_TEXTS = 64
"""Encoded texts that are kept: the rollouts of a group read the same one."""
_STEPS_BACK = 4
"""Tokens that a border goes back at most to end on a whole character."""


@dataclass(slots=True)
class Opened(Generic[PartT]):
    """A text that is being read.

    Attributes:
        problem: What is asked.
        sections: In order; each is made when it is reached.
        lost: Tokens that the rule for overlong texts cut off.
    """

    problem: PartT
    sections: AsyncIterator[PartT]
    lost: int


class Reader(Protocol[PartT]):
    """What the episode's loop knows of a policy."""

    nothing: PartT

    async def open(self, task: Task) -> Opened[PartT]:
        """The task as the policy sees it. Raises TooLong, also while sections are read."""
        ...

    async def update(
        self, talk: Conversation, problem: PartT, memory: PartT, section: PartT
    ) -> Turn | Overflow:
        """The turn that writes the next memory."""
        ...

    async def final(self, talk: Conversation, problem: PartT, memory: PartT) -> Turn | Overflow:
        """The turn that answers."""
        ...

    def memory(self, turn: Turn) -> PartT:
        """What a turn wrote, as it stands in the next prompt."""
        ...

    def text(self, memory: PartT) -> str:
        """A memory as text, for metrics."""
        ...


class Source:
    """Texts as slices of ids; a text that is held whole is encoded once, whoever asks for it."""

    def __init__(self, template: Template, options: MemAgentOptions) -> None:
        self._template, self._options = template, options
        self._texts: OrderedDict[str, asyncio.Future[Ids]] = OrderedDict()

    async def open(self, task: Task) -> tuple[AsyncIterator[Ids], int]:
        """The sections of a text, and how many of its tokens are lost. Encoding runs in threads.

        Raises:
            TooLong: it has too many, at once or when they are reached.
        """
        options = self._options
        size, most = options.chunk_tokens, options.max_chunks
        if not isinstance(task.context, str) and options.on_overlong == "refuse":
            pieces = encoded(task.context(), self._template.encode)
            return _in_thread(bounded(slices(pieces, size), most)), 0
        tokens = None if most is None else most * size
        kept = keep(await self._whole(task), tokens, options.on_overlong)
        return _at_once(slices([kept.ids], size)), kept.lost

    async def _whole(self, task: Task) -> Ids:
        if not isinstance(task.context, str):
            return await asyncio.to_thread(self._template.encode, "".join(task.context()))
        text = task.context
        found = self._texts.get(text)
        if found is None:
            made = asyncio.to_thread(self._template.encode, text)
            found = self._texts[text] = asyncio.ensure_future(made)
            if len(self._texts) > _TEXTS:
                self._texts.popitem(last=False)
        # One episode's cancellation must not take the ids from the others.
        return await asyncio.shield(found)


class TokenReader:
    """See `Reader`: sampled ids go into the next prompt verbatim."""

    def __init__(
        self, profile: tokendelta.Profile, prompts: Prompts, options: MemAgentOptions
    ) -> None:
        self.template = Template(profile, prompts)
        self.nothing = self.template.nothing
        self._profile, self._options = profile, options
        self._source = Source(self.template, options)

    async def open(self, task: Task) -> Opened[Ids]:
        sections, lost = await self._source.open(task)
        return Opened(self.template.encode(task.problem), sections, lost)

    async def update(
        self, talk: Conversation, problem: Ids, memory: Ids, section: Ids
    ) -> Turn | Overflow:
        ids = self.template.update(problem, memory, section)
        return await talk.fresh(ids=ids, max_new_tokens=self._options.max_memory_tokens)

    async def final(self, talk: Conversation, problem: Ids, memory: Ids) -> Turn | Overflow:
        ids = self.template.final(problem, memory)
        return await talk.fresh(ids=ids, max_new_tokens=self._options.max_final_tokens)

    def memory(self, turn: Turn) -> Ids:
        assert turn.ids is not None, "a policy of tokens"
        return self.template.memory(turn.ids)

    def text(self, memory: Ids) -> str:
        return self._profile.text_of(memory.tolist())


class TextReader:
    """See `Reader`: for an endpoint, whose sections are cut by a tokenizer of ours.

    A section's text ends on a whole character, and the server encodes it anew.
    """

    def __init__(
        self, profile: tokendelta.Profile, prompts: Prompts, options: MemAgentOptions
    ) -> None:
        self.nothing = prompts.nothing
        self._profile, self._prompts, self._options = profile, prompts, options
        self._source = Source(Template(profile, prompts), options)

    async def open(self, task: Task) -> Opened[str]:
        sections, lost = await self._source.open(task)
        return Opened(task.problem, self._texts(sections), lost)

    async def update(
        self, talk: Conversation, problem: str, memory: str, section: str
    ) -> Turn | Overflow:
        content = _filled(self._prompts.update, problem, memory, section)
        message = {"role": "user", "content": content}
        return await talk.fresh([message], max_new_tokens=self._options.max_memory_tokens)

    async def final(self, talk: Conversation, problem: str, memory: str) -> Turn | Overflow:
        message = {"role": "user", "content": _filled(self._prompts.final, problem, memory, "")}
        return await talk.fresh([message], max_new_tokens=self._options.max_final_tokens)

    def memory(self, turn: Turn) -> str:
        return turn.content.strip()

    def text(self, memory: str) -> str:
        return memory

    async def _texts(self, sections: AsyncIterator[Ids]) -> AsyncIterator[str]:
        rest: list[int] = []
        async for section in sections:
            ids = rest + section.tolist()
            end = next(
                (
                    len(ids) - back
                    for back in range(min(_STEPS_BACK, len(ids) - 1) + 1)
                    if not self._profile.text_of(ids[: len(ids) - back]).endswith("\ufffd")
                ),
                len(ids),
            )
            rest = ids[end:]
            yield self._profile.text_of(ids[:end])
        if rest:
            yield self._profile.text_of(rest)


def _filled(prompt: str, problem: str, memory: str, section: str) -> str:
    values = {PROBLEM: problem, MEMORY: memory, SECTION: section}
    return "".join(values.get(part, part) for part in prompt)


async def _at_once(sections: Iterator[Ids]) -> AsyncIterator[Ids]:
    for section in sections:
        yield section


async def _in_thread(sections: Iterator[Ids]) -> AsyncIterator[Ids]:
    done: Any = object()
    endless = chain(sections, [done])
    while (section := await asyncio.to_thread(next, endless)) is not done:
        yield section
