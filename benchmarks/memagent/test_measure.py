"""The measured pattern, small: every section is a turn, and the text is read to its end."""

from argparse import Namespace

from aiohttp import web
from turnwise.testing.servers import Call, FakeSGLang, Turn

from apps.trainers.memagent.method import MemAgentMethod
from benchmarks.memagent.measure import measure
from benchmarks.memagent.orders import measure as measure_orders


async def test_a_text_is_read_in_sections_and_answered_once() -> None:
    found = await measure(episodes=2, tokens=9_000, memory=20, chunk=500)
    assert found["turns"] == 2 * (found["sections"] + 1)
    assert found["sections"] > 10


async def test_both_orders_ask_for_the_same_turns_and_the_servers_counts_are_added_up() -> None:
    flushed: list[str] = []

    async def flush(request: web.Request) -> web.Response:
        flushed.append(request.path)
        return web.Response()

    class Server(FakeSGLang):
        def add_routes(self, router: web.UrlDispatcher) -> None:
            super().add_routes(router)
            router.add_post("/flush_cache", flush)

    async def answer(call: Call) -> Turn:
        room = call.body["sampling_params"]["max_new_tokens"]
        assert call.body["sampling_params"]["ignore_eos"] is True
        return Turn([300 + call.number % 7] * room, [-1.0] * room, "length")

    given = Namespace(
        policy=MemAgentMethod.shipped, texts=2, samples=2, sections=3, chunk=60, memory=5
    )
    async with Server(answer) as server:
        first, second = await measure_orders(server.url, given)
    assert len(flushed) == 3
    assert first["turns"] == second["turns"] == 4 * 4
    assert (first["order"], second["order"]) == ("problem-first", "section-first")
    # The fake finds what a session's prompt has in common with the one before it.
    assert first["prompt_tokens"] == second["prompt_tokens"]
    assert 0 < second["cached_share"] < first["cached_share"] < 1
    # Before them stand the four turns that warm the server up.
    asked = [len(call.body["input_ids"]) for call in server.calls[4:20]]
    assert first["prompt_tokens"] == sum(asked)
