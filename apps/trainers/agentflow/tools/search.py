"""The tool that looks documents up: BM25 over a file of one's own, an example of a third tool.

The file is JSONL, one document a line with `text` and, if it has one, `title`. Scores are those of
Lucene's BM25 as `bm25s` computes it (Lù 2024, arXiv:2407.03618); the index is in memory.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from turnwise.config import ConfigError
from turnwise.episode import Boundary, crossing

from apps.trainers.agentflow.memory import cut_middle
from apps.trainers.agentflow.tools.tool import Tool, ToolArguments, ToolParts, ToolResult

HITS = 3
HIT_CHARACTERS = 1_200


@dataclass(frozen=True, slots=True)
class Document:
    """One document; the title may be ""."""

    title: str
    text: str


def read_documents(path: Path) -> list[Document]:
    """
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


def _document(line: str, where: str) -> Document:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"documents: {where}: no valid JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str) or not row["text"].strip():
        raise ConfigError(f"documents: {where}: a document is an object with text")
    title = row.get("title", "")
    if not isinstance(title, str):
        raise ConfigError(f"documents: {where}: title must be text, found {title!r}")
    return Document(title, row["text"])


class Search(Tool):
    """Ranks the documents by BM25."""

    name = "search"
    description = "Looks up passages of an encyclopedia-like collection of documents by keywords."

    class Arguments(ToolArguments):
        query: str = Field(min_length=1, max_length=400, description="Keywords to look for.")

    def __init__(self, documents: list[Document]) -> None:
        self._documents = documents
        # bm25s takes up jax where it is installed, which is slow and may not fit the node's NumPy:
        # who has no documents does without.
        import bm25s  # type: ignore[import-untyped]

        self._index = bm25s.BM25(method="lucene")
        self._index.index(
            _words([f"{document.title}\n{document.text}" for document in documents]),
            show_progress=False,
        )

    @classmethod
    def build(cls, parts: ToolParts) -> Search:
        if parts.documents is None:
            raise ConfigError(f"tools: {cls.name} needs the option documents, a JSONL file")
        return cls(read_documents(parts.documents))

    @property
    def limits(self) -> tuple[str, ...]:
        return (
            f"It knows {len(self._documents)} documents and nothing else.",
            f"At most {HITS} passages of {HIT_CHARACTERS} characters.",
        )

    async def run(self, arguments: Arguments, *, seed: int) -> ToolResult:
        async with crossing(Boundary.TOOL_SERVER):
            hits = await asyncio.to_thread(self._find, arguments.query)
        if not hits:
            return ToolResult("No document has any of these words.", failed="no_hit")
        return ToolResult("\n\n".join(hits))

    def _find(self, query: str) -> list[str]:
        tokens = _words([query])
        if not tokens or not tokens[0]:
            return []
        count = min(HITS, len(self._documents))
        places, scores = self._index.retrieve(tokens, k=count, show_progress=False)
        return [
            _passage(number, self._documents[int(place)])
            for number, (place, score) in enumerate(zip(places[0], scores[0], strict=True), start=1)
            if score > 0
        ]


def _words(texts: list[str]) -> Any:
    import bm25s

    return bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)


def _passage(number: int, document: Document) -> str:
    title = f" {document.title}" if document.title else ""
    return f"[{number}]{title}\n{cut_middle(document.text, HIT_CHARACTERS)}"
