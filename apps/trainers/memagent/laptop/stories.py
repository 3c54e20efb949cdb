"""The generated stories as the rows of a run, and what a result on them shows."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.config import ConfigError, nearest
from turnwise.rows import Row

from apps.trainers.memagent.laptop.world import SPLITS, EvidenceOrder, Kind, Split, make_stories

STORY_SEED = 20_261_201
"""Of the stories of every split, whatever the run's seed: all runs have the same ones."""
SENTENCES = 50
"""Of a text to train on."""
TOKENS_A_SENTENCE = 5
LENGTHS = (1, 2, 4, 8)
"""The split `lengths` has texts that many times as long."""
MIX: tuple[tuple[Kind, EvidenceOrder, int], ...] = (
    ("both", "random", 2),
    ("bridge", "forward", 2),
    ("bridge", "random", 1),
)
"""Kinds and orders with their weights. Most evidence comes in an order that can be read."""
TRAIN_PER_WEIGHT = 80

CLAIM = (
    "Texts, names and facts are generated for each question, so nothing can be known before it is"
    " read; training and held-out texts share no fact graph, but words and phrasing.",
    "The score says nothing about language models and is not comparable with published ones.",
)
SHIPPED_CLAIM = (
    "The policy was warmed up on readers that overlook, forget and keep what does not count, each"
    " by chance. A rise shows that it learnt from the answer's reward alone what is worth keeping."
)
TUNED_CLAIM = "Settings were chosen on the tune texts, so the result flatters."


ORDERS: tuple[tuple[Kind, EvidenceOrder], ...] = (
    ("both", "random"),
    ("bridge", "forward"),
    ("bridge", "random"),
    ("bridge", "reverse"),
)
"""What the split `orders` has as many of each of."""


def splits() -> tuple[str, ...]:
    """The names of all splits."""
    return (*SPLITS, "lengths", "orders")


def rows(split: str, *, per_cell: int) -> list[Row]:
    """The stories of a split as rows; what is evaluated has `per_cell` of each weight of `MIX`.

    `lengths` and `orders` are held-out texts as well, and are counted by length and by order.

    Raises:
        ConfigError: there is no such split.
    """
    if split == "lengths":
        return [
            row
            for times in LENGTHS
            for row in _rows("held-out", _mix(per_cell), times=times, part=f"{times}x")
        ]
    if split == "orders":
        return [
            row
            for kind, order in ORDERS
            for row in _rows("held-out", [(kind, order, 3 * per_cell)], part=f"{kind} {order}")
        ]
    for known in SPLITS:
        if known == split:
            return _rows(known, _mix(TRAIN_PER_WEIGHT if known == "train" else per_cell))
    raise ConfigError(f"no generated texts of split {split!r}; {nearest(split, splits())}")


def _mix(count: int) -> list[tuple[Kind, EvidenceOrder, int]]:
    return [(kind, order, weight * count) for kind, order, weight in MIX]


def _rows(
    split: Split,
    cells: Sequence[tuple[Kind, EvidenceOrder, int]],
    *,
    times: int = 1,
    part: str = "",
) -> list[Row]:
    stories = make_stories(split, cells, seed=STORY_SEED, sentences=SENTENCES * times)
    prefix = f"{times}x/" if times > 1 else ""
    return [
        Row(
            story.question,
            story.answer,
            metadata={
                "context": story.text,
                "part": part,
                "length": TOKENS_A_SENTENCE * len(story.facts),
                "facts": [story.facts[place].text for place in story.gold],
            },
            id=f"{prefix}{story.id}",
            where=f"{split} {prefix}{story.id}",
        )
        for story in stories
    ]


def claim(split: str, *, shipped: bool) -> tuple[str, ...]:
    """What a result on a split shows and what it does not."""
    said = [*CLAIM, TUNED_CLAIM if split == "tune" else "", SHIPPED_CLAIM if shipped else ""]
    return tuple(sentence for sentence in said if sentence)
