"""A server of documents: `apps/services/retrieval`, or whatever keeps its `POST /retrieve`.

A request that brought no answer is sent again after a pause (`turnwise.retry`) while there is time:
the only layer that repeats it. What the server says is never a document; every failure is a
`BoundaryError` at `Boundary.TOOL_SERVER`, also an answer that is no list of hits.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from turnwise.episode import Boundary, BoundaryError, DeadlineExceeded, crossing
from turnwise.limiter import Limiter
from turnwise.models.answer import NoAnswer, Unusable
from turnwise.models.connections import Connections
from turnwise.printable import one_line
from turnwise.retrieval.documents import Document, to_document
from turnwise.retry import Backoff, is_transient, retry_after_s

PROBE = "hello"
CHECK_DEADLINE_S = 20.0
_EXCERPT = 300


class SearchClient:
    """Asks one server. A `Searcher`; one pool of connections per event loop.

    Attributes:
        url: Of the server, without the path.
        retries: Requests sent again.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = 30.0,
        concurrency: int = 64,
        backoff: Backoff | None = None,
    ) -> None:
        """
        Args:
            url: Of the server, without the path.
            deadline_s: Seconds for a search, repeats and waits included.
            concurrency: Requests under way at most.
            backoff: Pauses between requests that failed.
        """
        self.url = url.rstrip("/")
        self.retries = 0
        self._searches = self._failures = 0
        self._deadline_s = deadline_s
        self._backoff = backoff or Backoff()
        self._limiter = Limiter(concurrency=concurrency)
        self._connections = Connections(f"{self.url}/retrieve", attempt_s=deadline_s, hide=str)

    async def search(self, query: str, *, k: int, eid: str | None = None) -> list[Document]:
        """See `Searcher`."""
        if not query.strip():
            return []
        self._searches += 1
        try:
            return await self._search(query, k, eid, self._deadline_s)
        except BoundaryError:
            self._failures += 1
            raise

    async def check(self) -> None:
        """See `Searcher`."""
        await self._search(PROBE, 1, None, min(self._deadline_s, CHECK_DEADLINE_S))

    def metrics(self) -> dict[str, float]:
        """See `Searcher`."""
        return {
            "retrieval/searches": float(self._searches),
            "retrieval/failures": float(self._failures),
            "retrieval/retries": float(self.retries),
            "retrieval/rejections": float(self._limiter.rejections),
        }

    async def close(self) -> None:
        """See `Searcher`."""
        await self._connections.close()

    async def _search(
        self, query: str, k: int, eid: str | None, deadline_s: float
    ) -> list[Document]:
        # Scores are asked for and not read: upstream's server fails where they are not wanted.
        body: dict[str, Any] = {"queries": [query], "topk": k, "return_scores": True}
        if eid is not None:
            body["eid"] = eid
        payload, last, failures = msgspec.json.encode(body), "", 0
        try:
            async with asyncio.timeout(deadline_s) as clock, crossing(Boundary.TOOL_SERVER):
                while True:
                    try:
                        return await self._once(payload)
                    except NoAnswer as error:
                        last, failures, wait_s = str(error), failures + 1, error.wait_s
                    self.retries += 1
                    pause_s = self._backoff.pause_s(failures) if wait_s is None else wait_s
                    when = clock.when()
                    assert when is not None
                    if asyncio.get_running_loop().time() + pause_s >= when:
                        raise self._late(deadline_s, last)
                    await asyncio.sleep(pause_s)
        except TimeoutError:
            raise self._late(deadline_s, last) from None

    async def _once(self, payload: bytes) -> list[Document]:
        async with self._limiter.slot() as slot:
            try:
                answered = await self._connections.post(
                    payload, {"Content-Type": "application/json"}
                )
            except Unusable as error:
                raise self._failed(str(error)) from None
            said = f"HTTP {answered.status} {one_line(answered.text, _EXCERPT)}"
            if is_transient(answered.status):
                wait_s = retry_after_s(answered.headers, answered.text)
                if answered.status == 429:
                    slot.rejected(wait_s)
                raise NoAnswer(said, wait_s)
            if answered.status != 200:
                raise self._failed(said)
            slot.succeeded(0)
            return self._hits(answered.text)

    def _hits(self, text: str) -> list[Document]:
        try:
            lists = json.loads(text)
        except (ValueError, RecursionError):
            raise self._failed(f"no JSON: {one_line(text, _EXCERPT)}") from None
        hits = lists[0] if isinstance(lists, list) and len(lists) == 1 else None
        if not isinstance(hits, list):
            raise self._failed(f"expected the hits of one query: {one_line(text, _EXCERPT)}")
        found = []
        for hit in hits:
            document = to_document(hit.get("document") if isinstance(hit, dict) else None)
            if document is None:
                raise self._failed(f"a hit without a document: {one_line(str(hit), _EXCERPT)}")
            found.append(document)
        return found

    def _failed(self, what: str) -> BoundaryError:
        return BoundaryError(Boundary.TOOL_SERVER, f"{self.url}: {what}")

    def _late(self, deadline_s: float, last: str) -> DeadlineExceeded:
        said = f", the last answer: {last}" if last else ""
        return DeadlineExceeded(
            Boundary.TOOL_SERVER, f"{self.url}: no answer within {deadline_s:g} s{said}"
        )
