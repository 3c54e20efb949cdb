"""The items of an evaluation: generated ones of any length, and files of published and own ones.

A generated item is a recipe: its context is put together while it is read, document by document, so
that a million tokens are never held as text. The same questions are asked at every length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError
from turnwise.rollout import derive_seed
from turnwise.rows import Row
from turnwise.rows.checks import check_text, shown
from turnwise.rows.contexts import EvidenceOrder, arrange, blocks

from apps.evaluators.ruler_hqa.world import Question, World, make_world

TOKENS_A_DOCUMENT = 140
"""About; the longest texts are read first."""
COMPARED = 3
"""Every third item compares two documents; the others follow a chain."""


def generated(
    documents: int, count: int, *, seed: int, hops: int, order: EvidenceOrder, size: int
) -> list[Row]:
    """Items of a length.

    Args:
        documents: Of each context.
        count: Items.
        seed: Of the world and its questions.
        hops: Documents that a chain leads through.
        order: In which these stand.
        size: Documents of the world; the same for every length that is compared.
    """
    world = make_world(seed, size)
    rows = []
    for number in range(count):
        compare = number % COMPARED == COMPARED - 1
        asked = derive_seed(seed, "question", hops, number)
        question = world.question(asked, hops, compare=compare)
        arranged = derive_seed(seed, "context", documents, order, number)
        rows.append(_row(world, question, documents, number, order=order, seed=arranged))
    return rows


def _row(
    world: World,
    question: Question,
    documents: int,
    number: int,
    *,
    order: EvidenceOrder,
    seed: int,
) -> Row:
    own = question.documents
    order_ids = arrange(
        len(own), len(world.entities), documents, seed, order=order, left_out=frozenset(own)
    )

    def context() -> Iterator[str]:
        places = (own[i] if i < len(own) else i - len(own) for i in order_ids)
        yield from blocks(map(world.document, places))

    at = {i: place for place, i in enumerate(order_ids) if i < len(own)}
    return Row(
        question.text,
        {
            "ground_truth": [question.answer],
            "places": [at[i] / documents for i in range(len(own))],
            "kind": question.kind,
            "order": order,
        },
        {
            "context": context,
            "part": f"{documents} documents",
            "length": TOKENS_A_DOCUMENT * documents,
        },
        id=f"{documents}/{question.kind}-{order}/{number}",
        where=f"generated item {number} of {documents} documents",
    )


def read_items(path: Path, name: str) -> list[Row]:
    """The items of a JSON file as MemAgent publishes them: `context`, `input`, `answers`.

    Args:
        path: A list of such objects.
        name: Of the part; names the items as well.

    Raises:
        ConfigError: naming file and item, what was found and what is expected.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no JSON ({error}); give a list of items") from None
    if not isinstance(found, list) or not found:
        raise ConfigError(f"{path}: expected a list of items, found {shown(found)}")
    return [_item(item, f"{path}: item {n}", f"{name}/{n}", name) for n, item in enumerate(found)]


def _item(item: Any, where: str, name: str, part: str) -> Row:
    if not isinstance(item, Mapping):
        raise ConfigError(f"{where}: expected an object, found {shown(item)}")
    texts = {}
    for key in ("input", "context"):
        text = item.get(key)
        if not isinstance(text, str) or not text.strip():
            hint = ""
            if key == "context" and isinstance(text, list):
                hint = (
                    "; contexts of document numbers need the corpus: write the text with :prepare"
                )
            raise ConfigError(f"{where}: {key}: expected a text, found {shown(text)}{hint}")
        check_text(text, where, key)
        texts[key] = text
    answers = item.get("answers", item.get("outputs"))
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
        raise ConfigError(f"{where}: answers: expected texts, found {shown(answers)}")
    return Row(
        texts["input"],
        {"ground_truth": answers},
        {"context": texts["context"], "part": part},
        id=name,
        where=where,
    )


def gold_answers(label: Any, where: str) -> Sequence[str]:
    """The answers of a row's label: a text, a list of texts, or either under `ground_truth`.

    Raises:
        ConfigError: naming `where`.
    """
    found = label.get("ground_truth") if isinstance(label, Mapping) else label
    found = [found] if isinstance(found, str | int) else found
    if not isinstance(found, list | tuple) or not found:
        raise ConfigError(f"{where}: the label has no answer, found {shown(label)}")
    return [str(one) for one in found]
