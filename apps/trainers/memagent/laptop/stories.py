"""The generated stories as the rows of a run, and what a result on them shows."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.config import ConfigError, nearest
from turnwise.rows import Row

from apps.trainers.memagent.laptop.world import SPLITS, EvidenceOrder, Kind, Split, make_stories

STORY_SEED = 20_261_130
"""Of the stories of every split, whatever the run's seed: all runs have the same ones."""
SENTENCES = 20
"""Of a text to train on."""
LONGER = (2, 4, 8)
"""Texts that many times longer are read after training: the split `held-out-8x`."""
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


def splits() -> tuple[str, ...]:
    """The names of all splits."""
    return (*SPLITS, *(f"held-out-{times}x" for times in LONGER))


def rows(split: str, *, per_cell: int) -> list[Row]:
    """The stories of a split as rows; what is evaluated has `per_cell` of each weight of `MIX`.

    Raises:
        ConfigError: there is no such split.
    """
    if split not in splits():
        raise ConfigError(f"no generated texts of split {split!r}; {nearest(split, splits())}")
    name, _, times = split.rpartition("-") if split.endswith("x") else (split, "", "1x")
    count = TRAIN_PER_WEIGHT if split == "train" else per_cell
    return story_rows(
        next(known for known in SPLITS if known == name),
        [(kind, order, weight * count) for kind, order, weight in MIX],
        sentences=SENTENCES * int(times.removesuffix("x")),
    )


def story_rows(
    split: Split, cells: Sequence[tuple[Kind, EvidenceOrder, int]], *, sentences: int
) -> list[Row]:
    """The stories of these cells as rows."""
    return [
        Row(
            story.question,
            story.answer,
            metadata={"context": story.text},
            id=story.id,
            where=f"{split} {story.id}",
        )
        for story in make_stories(split, cells, seed=STORY_SEED, sentences=sentences)
    ]


def claim(split: str, *, shipped: bool) -> tuple[str, ...]:
    """What a result on a split shows and what it does not."""
    said = [*CLAIM, TUNED_CLAIM if split == "tune" else "", SHIPPED_CLAIM if shipped else ""]
    return tuple(sentence for sentence in said if sentence)
