"""Contexts of any length from documents: so many of them, or so many tokens exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from turnwise.config import ConfigError
from turnwise.rollout import derive_seed
from turnwise.rows.contexts import arrange, blocks

from apps.trainers.memagent.data.sources import Item

PADS = ("1", " a", " x", ".", "\n-")
"""What may add one token to a document and no more, whatever stands before it."""
MEND = 8
"""How often a context is put right whose tokens are not the sum of its blocks'."""

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Built:
    """A context.

    Attributes:
        text: The whole.
        documents: How many.
        places: Of the supporting ones, from 0.
    """

    text: str
    documents: int
    places: tuple[int, ...]


class Builder:
    """Puts contexts together; every item's places are drawn anew from its own seed."""

    def __init__(self, pool: Sequence[str], *, seed: int) -> None:
        """
        Args:
            pool: All documents that others may be taken from, each once.
            seed: Of the data set.
        """
        self.pool = list(pool)
        self._at: Mapping[str, int] = {text: place for place, text in enumerate(self.pool)}
        self._seed = seed

    def of_documents(self, item: Item, count: int) -> Built:
        """A context of `count` documents.

        Raises:
            ConfigError: there are not so many, or the item has more of its own.
        """
        own = list(item.documents)
        left_out = {self._at[text] for text in own if text in self._at}
        try:
            order = arrange(
                len(own),
                len(self.pool),
                count,
                derive_seed(self._seed, item.id, count),
                left_out=left_out,
            )
        except ValueError as error:
            raise ConfigError(f"{item.where}: {error}; give another number of documents") from None
        texts = [own[i] if i < len(own) else self.pool[i - len(own)] for i in order]
        places = tuple(order.index(i) for i in item.supporting)
        return Built("".join(blocks(texts)).rstrip(), count, places)

    def of_tokens(self, item: Item, tokens: int, count_tokens: CountTokens) -> Built:
        """A context of exactly `tokens` tokens: as many documents as fit, and one that is padded.

        Raises:
            ConfigError: the item's own documents do not fit, or no padding fills the rest.
        """
        low, high = len(item.documents), len(self.pool)
        built = self.of_documents(item, low)
        if count_tokens(built.text) > tokens:
            raise ConfigError(
                f"{item.where}: its own {low} documents take {count_tokens(built.text)} tokens,"
                f" more than {tokens}; give a longer context"
            )
        while low < high:
            middle = (low + high + 1) // 2
            try:
                tried = self.of_documents(item, middle)
            except ConfigError:
                high = middle - 1
                continue
            if count_tokens(tried.text) <= tokens:
                low, built = middle, tried
            else:
                high = middle - 1
        return Built(self._padded(built.text, tokens, count_tokens, item), low, built.places)

    @staticmethod
    def _padded(text: str, tokens: int, count_tokens: CountTokens, item: Item) -> str:
        for pad in PADS:
            count = tokens - count_tokens(text)
            for _ in range(MEND):
                padded = text + pad * max(count, 0)
                missing = tokens - count_tokens(padded)
                if missing == 0:
                    return padded
                count += missing
        raise ConfigError(
            f"{item.where}: no padding brings its context to {tokens} tokens; give --documents"
        )
