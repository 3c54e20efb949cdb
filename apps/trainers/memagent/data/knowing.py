"""Which questions a model answers without the text: those teach nothing about reading.

As in MemAgent's recipe a question is dropped if any of a few samples is right, in its box or by a
gold answer that it holds. What a model said is on disk at once, so that an interrupted pass goes
on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.answers import boxed, exact_match, final_text, normalise
from turnwise.config import ConfigError
from turnwise.models.client import ChatClient

from apps.trainers.memagent.data.sources import Item

ASK = (
    "{question}\n\nAnswer from what you know, in as few words as it takes, inside \\boxed{{}}. If"
    " you don't know, say so."
)


class Said:
    """What a model said to each question: JSON lines, one answer each."""

    def __init__(self, path: Path, model: str) -> None:
        """
        Raises:
            ConfigError: the file is broken, or of another model.
        """
        self.path, self._model = path, model
        self._answers: dict[str, list[str]] = {}
        if not path.exists():
            return
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row: Any = json.loads(line)
                question, answer, asked = row["question"], row["answer"], row["model"]
            except (ValueError, KeyError, TypeError):
                raise ConfigError(
                    f"{path}:{number}: no answer of a model; remove the line, or the file"
                ) from None
            if asked != model:
                raise ConfigError(
                    f"{path}:{number}: is of the model {asked}, not of {model}; name another folder"
                )
            self._answers.setdefault(question, []).append(answer)

    def add(self, question: str, answer: str) -> None:
        """Writes an answer down."""
        row = {"question": question, "answer": answer, "model": self._model}
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._answers.setdefault(question, []).append(answer)

    def of(self, question: str) -> Sequence[str]:
        """The answers to a question so far."""
        return self._answers.get(question, ())


async def ask_all(client: ChatClient, items: Sequence[Item], said: Said, *, samples: int) -> None:
    """Asks what is missing; as many requests are under way as the client allows.

    Raises:
        BoundaryError: the endpoint failed; what was answered is kept.
    """

    async def ask(item: Item) -> None:
        prompt = ASK.format(question=item.question)
        reply = await client.complete([{"role": "user", "content": prompt}], as_said=True)
        said.add(item.question, reply.text)

    async with asyncio.TaskGroup() as group:
        for item in items:
            for _ in range(samples - len(said.of(item.question))):
                group.create_task(ask(item))


def knows(answers: Sequence[str], golds: Sequence[str]) -> bool:
    """Whether one of the answers is right: in its box, or by a gold answer that it holds."""
    return any(_is_right(final_text(answer), golds) for answer in answers)


def _is_right(answer: str, golds: Sequence[str]) -> bool:
    box = boxed(answer)
    if box is not None and normalise(box) and exact_match(box, golds):
        return True
    words = f" {normalise(answer)} "
    return any(f" {normalise(gold)} " in words for gold in golds)
