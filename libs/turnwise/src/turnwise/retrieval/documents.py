"""What is looked up, and the contract of whoever looks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from turnwise.config import ConfigError


@dataclass(frozen=True, slots=True)
class Document:
    """One document; title and id may be ""."""

    title: str
    text: str
    id: str = ""


class Searcher(Protocol):
    """Looks documents up."""

    async def search(self, query: str, *, k: int, eid: str | None = None) -> list[Document]:
        """At most `k` documents, best first; none where nothing fits.

        Args:
            query: Words; blank ones find nothing.
            k: At least 1.
            eid: The documents that may be seen, by their name at the server; None for all.

        Raises:
            BoundaryError: at `Boundary.TOOL_SERVER`, it could not be looked.
        """
        ...

    async def check(self) -> None:
        """Looks something up.

        Raises:
            BoundaryError: see `search`.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """`retrieval/...`: totals since the start."""
        ...

    async def close(self) -> None:
        """Closes the connections of this event loop."""
        ...


def read_documents(path: Path) -> list[Document]:
    """The documents of a JSONL file: `text` (or `content`), and `title` and `id` if they have one.

    Raises:
        ConfigError: naming the file and line, it can't be read or holds no documents.
    """
    documents = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    documents.append(_document(line, f"{path}:{number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"documents: {path}: {error}") from None
    if not documents:
        raise ConfigError(f"documents: {path} holds none")
    return documents


def to_document(row: Any) -> Document | None:
    """A document as JSON has it; None where it is none."""
    if not isinstance(row, dict):
        return None
    text = row.get("text", row.get("content"))
    title, key = row.get("title") or "", row.get("id")
    if not isinstance(text, str) or not text.strip() or not isinstance(title, str):
        return None
    return Document(title, text, "" if key is None else str(key))


def _document(line: str, where: str) -> Document:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"documents: {where}: no valid JSON: {error}") from None
    found = to_document(row)
    if found is None:
        title = row.get("title") if isinstance(row, dict) else None
        if title is not None and not isinstance(title, str):
            raise ConfigError(f"documents: {where}: title must be text, found {title!r:.60}")
        raise ConfigError(f"documents: {where}: a document is an object with text")
    return found
