"""What the policy can have done about a question: search, enhance_reasoning, answer.

Each asks one expert, with the question and all that was found so far:

| tool                | the expert writes        | what comes of it                     |
|---------------------|--------------------------|--------------------------------------|
| `search`            | `<query>` ... `</query>` | documents, found by that query alone |
| `enhance_reasoning` | a program, or words      | what it prints, or the words         |
| `answer`            | the answer               | the end: the answer is graded        |

What an expert fails to write (a query, a program) is a result that says so. That it does not answer
at all, that the search fails, or that the sandbox is broken, is a `BoundaryError`: it loses the
episode, and never stands in for a query, a result or an answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from turnwise.episode import Boundary, crossing
from turnwise.fences import read_code
from turnwise.models import without_scratchpad
from turnwise.printable import cut_middle
from turnwise.programs import Runs, run_program
from turnwise.retrieval import Document, Searcher

from apps.trainers.toolorchestra.account import Called
from apps.trainers.toolorchestra.experts import Experts
from apps.trainers.toolorchestra.options import ToolOrchestraOptions
from apps.trainers.toolorchestra.prompts import ask_expert
from apps.trainers.toolorchestra.tables import Expert
from apps.trainers.toolorchestra.task import Task

# A query that begins anew inside of another is the one that counts, and time stays linear.
_QUERY = re.compile(r"<query>((?:(?!<query>).)*?)</query>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Done:
    """What a tool did.

    Attributes:
        text: What it brought, for the policy and for later experts.
        said: All that the expert said, for the trace.
        called: What it cost.
        cut: Whether the expert's words ended at their limit.
    """

    text: str
    said: str
    called: Called
    cut: bool = False

    def row(self) -> dict[str, Any]:
        """JSON-able, for a replay; `read_done` makes it again."""
        return asdict(self)


def read_done(row: dict[str, Any]) -> Done:
    """What `Done.row` wrote."""
    return Done(row["text"], row["said"], Called(**row["called"]), row["cut"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Shared by all episodes.

    Attributes:
        experts: By the names that tables call them.
        searcher: Looks documents up; None where no row may search.
        sandbox: Runs programs; None where experts write words.
        options: The run's.
    """

    experts: Experts
    searcher: Searcher | None
    sandbox: Runs | None
    options: ToolOrchestraOptions

    async def run(self, expert: Expert, task: Task, found: Sequence[str], *, seed: int) -> Done:
        """Has an expert do what its tool does.

        Raises:
            BoundaryError: the expert, the search or the sandbox failed.
        """
        started = time.perf_counter()
        prompt = ask_expert(expert.tool, task, found, run_code=self.sandbox is not None)
        async with crossing(Boundary.ENGINE):
            answer, cached = await self.experts.ask(
                expert.model, [{"role": "user", "content": prompt}], seed=seed
            )
        said = without_scratchpad(answer.text)
        text, failed = await self._carry_out(expert.tool, said, task)
        usd = expert.price(answer.read_tokens, answer.written_tokens)
        if expert.tool == "search" and failed != "no_query":
            usd += self.options.retrieval.price
        called = Called(
            tool=expert.tool,
            role=expert.role,
            model=expert.model,
            read_tokens=answer.read_tokens,
            written_tokens=answer.written_tokens,
            usd=usd,
            seconds=time.perf_counter() - started,
            cached=cached,
            failed=failed,
        )
        return Done(text, answer.text, called, answer.finish == "length")

    async def _carry_out(self, tool: str, said: str, task: Task) -> tuple[str, str | None]:
        """What came of an expert's words, and in a word why nothing did."""
        if tool == "search":
            return await self._search(said, task.eid)
        if tool == "answer":
            return said, None if said.strip() else "empty"
        limit = self.options.result_characters
        if self.sandbox is None:
            return cut_middle(said, limit), None if said.strip() else "empty"
        code = read_code(said)
        if code is None:
            return "The expert wrote no program.", "no_program"
        text, failed = await run_program(self.sandbox, code)
        return cut_middle(text, limit), failed

    async def _search(self, said: str, eid: str | None) -> tuple[str, str | None]:
        queries = [query.strip() for query in _QUERY.findall(said) if query.strip()]
        if not queries:
            return "The expert wrote no query.", "no_query"
        assert self.searcher is not None, "open makes one where a row may search"
        options = self.options.retrieval
        async with crossing(Boundary.TOOL_SERVER):
            hits = await self.searcher.search(queries[-1], k=options.topk, eid=eid)
        if not hits:
            return "No document was found.", "no_hit"
        passages = "\n\n".join(_passage(hit, options.characters) for hit in hits)
        return cut_middle(passages, self.options.result_characters), None


def _passage(document: Document, limit: int) -> str:
    text = document.text.strip()[:limit]
    return f"{document.title}\n{text}" if document.title else text
