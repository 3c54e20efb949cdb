"""The library's client of a search and the service of this repository keep one contract."""

from __future__ import annotations

from pathlib import Path

from turnwise.retrieval import SearchClient, WordIndex, read_documents

from apps.services.retrieval.fakes import DOCUMENTS, build, served, write_rows
from apps.services.retrieval.options import ServeOptions


async def test_the_client_finds_what_the_service_has(tmp_path: Path) -> None:
    corpus = write_rows(tmp_path / "corpus.jsonl", DOCUMENTS)
    await build(corpus)
    async with served(ServeOptions(corpus=corpus), {"x": [0, 2]}) as service:
        client = SearchClient(str(service.make_url("/")))
        await client.check()
        found = await client.search("river otter", k=3)
        assert [one.id for one in found] == ["a", "d", "c"]
        allowed = await client.search("river otter", k=3, eid="x")
        assert [one.id for one in allowed] == ["a", "c"]
        await client.close()


async def test_words_in_this_process_rank_as_the_service_does(tmp_path: Path) -> None:
    corpus = write_rows(tmp_path / "corpus.jsonl", DOCUMENTS)
    await build(corpus)
    index = WordIndex(read_documents(corpus))
    async with served(ServeOptions(corpus=corpus)) as service:
        client = SearchClient(str(service.make_url("/")))
        for query in ("river otter", "bread and salt", "night", "nothing of it"):
            asked = await client.search(query, k=4)
            assert await index.search(query, k=4) == asked
        await client.close()
