"""The tool that looks documents up: BM25 over a file of one's own, an example of a third tool.

The file is JSONL, one document a line with `text` and, if it has one, `title`
(`turnwise.retrieval`); the index is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from turnwise.config import ConfigError
from turnwise.printable import cut_middle
from turnwise.retrieval import Document, WordIndex, read_documents

from apps.trainers.agentflow.tools.tool import Tool, ToolArguments, ToolParts, ToolResult

HITS = 3
HIT_CHARACTERS = 1_200


class Search(Tool):
    """Ranks the documents by BM25."""

    name = "search"
    description = "Looks up passages of an encyclopedia-like collection of documents by keywords."

    class Arguments(ToolArguments):
        query: str = Field(min_length=1, max_length=400, description="Keywords to look for.")

    def __init__(self, documents: Sequence[Document]) -> None:
        self._index = WordIndex(documents)

    @classmethod
    def build(cls, parts: ToolParts) -> Search:
        if parts.documents is None:
            raise ConfigError(f"tools: {cls.name} needs the option documents, a JSONL file")
        return cls(read_documents(parts.documents))

    @property
    def limits(self) -> tuple[str, ...]:
        return (
            f"It knows {len(self._index)} documents and nothing else.",
            f"At most {HITS} passages of {HIT_CHARACTERS} characters.",
        )

    async def run(self, arguments: Arguments, *, seed: int) -> ToolResult:
        hits = await self._index.search(arguments.query, k=HITS)
        if not hits:
            return ToolResult("No document has any of these words.", failed="no_hit")
        passages = [_passage(number, hit) for number, hit in enumerate(hits, start=1)]
        return ToolResult("\n\n".join(passages))


def _passage(number: int, document: Document) -> str:
    title = f" {document.title}" if document.title else ""
    return f"[{number}]{title}\n{cut_middle(document.text, HIT_CHARACTERS)}"
