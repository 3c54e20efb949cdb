"""What a chat client is made of: its key, which is shown nowhere, and its config."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import pytest
from aiohttp import web
from turnwise.config import ConfigError
from turnwise.episode import BoundaryError
from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig
from turnwise.testing.servers import FakeChat, Honest, Misbehaviour, disconnect

from .misbehaving import HELLO, KEY, always, endpoint


async def test_the_key_is_sent_as_a_bearer_and_connections_are_kept() -> None:
    seen: list[tuple[str, object]] = []

    async def look(request: web.Request, honest: Honest) -> web.StreamResponse:
        seen.append((request.headers["Authorization"], request.transport))
        return web.json_response(await honest())

    async with endpoint(look, look, look) as (client, _):
        for _ in range(3):
            await client.complete(HELLO)
    assert [header for header, _ in seen] == [f"Bearer {KEY}"] * 3
    assert len({id(transport) for _, transport in seen}) == 1


def echo_key(code: int) -> Misbehaviour:
    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        key = request.headers["Authorization"].removeprefix("Bearer ")
        # Once at the beginning, and once where a cut at a fixed length would split it.
        text = f"{key} {'x' * 260} wrong key {key}"
        if code != 200:
            return web.Response(status=code, text=text)
        answer = await honest()
        answer["choices"][0]["message"]["content"] = text
        return web.json_response(answer)

    return send


@pytest.mark.parametrize("bad", [echo_key(401), echo_key(503), echo_key(200), disconnect()])
async def test_the_key_is_in_no_error_reply_log_or_config(
    bad: Misbehaviour, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    async with endpoint(*always(bad), deadline_s=0.3) as (client, _):
        try:
            seen = (await client.complete(HELLO)).text
        except BoundaryError as error:
            seen = "".join(traceback.format_exception(error))
        held = f"{client.config!r} {client.config.model_dump_json()} {vars(client)!r}"
        with_parts = [repr(vars(part)) for part in (client.limiter,)] + [repr(client.spend)]
    out = capfd.readouterr()
    everything = " ".join([seen, held, *with_parts, caplog.text, out.out, out.err])
    # The test's own mapping stands for the environment, which is where the key belongs.
    everything = everything.replace(repr({"TEST_KEY": KEY}), "")
    assert KEY not in everything
    assert KEY[:8] not in everything
    assert "TEST_KEY" in held


@pytest.mark.parametrize("value", [None, "", "  \n"])
def test_a_key_that_is_not_set_is_said_at_once(value: str | None) -> None:
    environ = {} if value is None else {"NO_KEY": value}
    config = ChatConfig(base_url="http://h/v1", model="m", key_env="NO_KEY")
    with pytest.raises(ConfigError, match="NO_KEY is not set"):
        ChatClient(config, environ=environ)


@pytest.mark.parametrize("value", ["abc\ndefghijk", "schlüssel-123", "abc\x00defghijk"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(value: str) -> None:
    config = ChatConfig(base_url="http://h/v1", model="m", key_env="BAD_KEY")
    with pytest.raises(ConfigError, match="BAD_KEY") as caught:
        ChatClient(config, environ={"BAD_KEY": value})
    assert value not in str(caught.value)


async def test_a_newline_around_the_key_is_not_sent() -> None:
    async with FakeChat(lambda messages: "x") as server:
        config = ChatConfig(base_url=f"{server.url}/v1/", model="m", key_env="K")
        client = ChatClient(config, environ={"K": f"{KEY}\n"})
        assert (await client.complete(HELLO)).text == "x"
        await client.close()


async def test_a_placeholder_for_a_key_does_not_blank_words() -> None:
    async with FakeChat(lambda messages: "The tank is EMPTY.") as server:
        config = ChatConfig(base_url=f"{server.url}/v1", model="m", key_env="K")
        client = ChatClient(config, environ={"K": "EMPTY"})
        assert (await client.complete(HELLO)).text == "The tank is EMPTY."
        await client.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"base_url": "localhost:30000"}, "base-url: must be a URL"),
        ({"base_url": "ftp://h/v1"}, "base-url: must be a URL"),
        ({"base_url": "http://[::1"}, "base-url"),
        ({"base_url": "http://me:secret@h/v1"}, "no user, query or fragment"),
        ({"base_url": "http://h/v1?key=abc"}, "no user, query or fragment"),
        ({"key_env": "sk-4f9c-2d7e"}, "key-env: must be the name of a variable"),
        ({"model": ""}, "model"),
        ({"deadline_s": 0}, "deadline-s"),
        ({"deadline_s": float("inf")}, "deadline-s: .*finite"),
        ({"patience_s": float("nan")}, "patience-s: .*finite"),
        ({"read_price": float("inf")}, "read-price: .*finite"),
        ({"write_price": 1e300}, "write-price"),
        ({"requests_per_minute": float("inf")}, "requests-per-minute: .*finite"),
        ({"tokens_per_minute": 1e300}, "tokens-per-minute"),
        ({"concurrency": 10**400}, "concurrency"),
        ({"max_tokens": 10**400}, "max-tokens"),
        ({"spend_cap_usd": 1.0}, "needs read-price and write-price"),
        ({"temprature": 1.0}, "temprature"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        ChatConfig(**{"base_url": "http://h/v1", "model": "m", **options})
    assert "secret" not in str(caught.value) and "sk-4f9c" not in str(caught.value)
