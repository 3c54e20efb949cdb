"""Sections that were read, found again by the words of a problem and a memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from turnwise.config import ConfigError
from turnwise.retrieval import Document, WordIndex

PartT = TypeVar("PartT")


class Earlier(Generic[PartT]):
    """Holds the sections of an episode: with it memory grows with the text's length."""

    def __init__(self, text: Callable[[PartT], str]) -> None:
        """
        Args:
            text: Of a section. It is searched and never shown.
        """
        self._text = text
        self._sections: list[PartT] = []
        self._index: WordIndex | None = None
        self._given: set[str] = set()

    def add(self, section: PartT) -> None:
        """Remembers a section; before the first `find`."""
        self._sections.append(section)

    async def find(self, query: str) -> PartT | None:
        """The section that BM25 ranks first for the query and that was not given before; None where
        no other has a word of it."""
        if self._index is None:
            self._index = await asyncio.to_thread(self._made)
        if self._index is None:
            return None
        found = await self._index.search(query, k=len(self._given) + 1)
        for document in found:
            if document.id not in self._given:
                self._given.add(document.id)
                return self._sections[int(document.id)]
        return None

    def _made(self) -> WordIndex | None:
        texts = map(self._text, self._sections)
        try:
            return WordIndex([Document("", text, f"{place}") for place, text in enumerate(texts)])
        except ConfigError:
            # No section has a word.
            return None
