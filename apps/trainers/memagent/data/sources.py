"""Published data files as items: HotpotQA's JSON, and MemAgent's parquet or JSON lines.

| file            | an item has                                                      | its context |
|-----------------|------------------------------------------------------------------|-------------|
| HotpotQA, .json | `question`, `answer`, `context` [[title, sentences]],            | is built    |
|                 | `supporting_facts` [[title, sentence]]                           |             |
| MemAgent's      | `prompt`, `context`, `reward_model.ground_truth`, `extra_info`   | stays       |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError
from turnwise.rows.checks import check_text, shown
from turnwise.rows.files import records

from apps.trainers.memagent.task import read_answers


@dataclass(frozen=True, slots=True)
class Item:
    """One question.

    Attributes:
        question: What is asked.
        answers: What is right.
        documents: Its own documents, a text each; none where the context is made already.
        supporting: Of these, places of those that answer.
        context: The whole text where it is made already.
        id: Of the data set.
        where: For errors.
    """

    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]
    supporting: tuple[int, ...]
    context: str | None
    id: str
    where: str


def read_items(path: Path) -> list[Item]:
    """The items of a file.

    Raises:
        ConfigError: naming file and item, what was found and what is expected.
    """
    if path.suffix == ".json":
        try:
            found = json.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: no JSON ({error}); give a list of questions") from None
        if not isinstance(found, list) or not found:
            raise ConfigError(f"{path}: expected a list of questions, found {shown(found)}")
        return [_hotpot(value, f"{path}: question {n}", n) for n, value in enumerate(found)]
    return [_memagent(one.fields, one.where, one.number) for one in records(path)]


def _hotpot(value: Any, where: str, number: int) -> Item:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected an object, found {shown(value)}")
    question = _text(value, "question", where)
    context = value.get("context")
    documents, titles = [], []
    for n, one in enumerate(context if isinstance(context, list) else []):
        if not (isinstance(one, list) and len(one) == 2 and isinstance(one[1], list)):
            raise ConfigError(
                f"{where}: context[{n}]: expected [title, sentences], found {shown(one)}"
            )
        text = f"{one[0]}\n{''.join(map(str, one[1])).strip()}"
        check_text(text, where, f"context[{n}]")
        documents.append(text)
        titles.append(str(one[0]))
    if not documents:
        raise ConfigError(f"{where}: context: expected documents, found {shown(context)}")
    facts = value.get("supporting_facts") or []
    named = {str(fact[0]) for fact in facts if isinstance(fact, list) and fact}
    if missing := sorted(named - set(titles)):
        raise ConfigError(f"{where}: supporting_facts: {missing[0]!r} is no title of its context")
    return Item(
        question,
        read_answers(value.get("answer"), where),
        tuple(documents),
        tuple(place for place, title in enumerate(titles) if title in named),
        None,
        str(value.get("_id", number)),
        where,
    )


def _memagent(fields: Mapping[str, Any], where: str, number: int) -> Item:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], Mapping):
        prompt = prompt[-1].get("content")
    if not isinstance(prompt, str) or not prompt.strip():
        raise ConfigError(f"{where}: prompt: expected a question, found {shown(prompt)}")
    extra = fields.get("extra_info")
    name = extra.get("index", number) if isinstance(extra, Mapping) else number
    return Item(
        prompt,
        read_answers(fields.get("reward_model"), where),
        (),
        (),
        _text(fields, "context", where),
        str(name),
        where,
    )


def _text(fields: Mapping[str, Any], key: str, where: str) -> str:
    text = fields.get(key)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{where}: {key}: expected a text, found {shown(text)}")
    check_text(text, where, key)
    return text
