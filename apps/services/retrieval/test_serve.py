"""The command as a process: it serves at once, stops without losing a request, and refuses."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from turnwise.command import run_command
from turnwise.testing.servers import Honest

from apps.services.retrieval.fakes import (
    FakeEmbeddings,
    build,
    corpus_with_vectors,
    write_rows,
)
from apps.services.retrieval.serve import serve


@contextmanager
def process(corpus: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "apps.services.retrieval.serve"]
    with subprocess.Popen(
        [*command, "--corpus", str(corpus), "--port", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def address(server: subprocess.Popen[str]) -> str:
    """Where it serves, once it does."""
    assert server.stdout is not None
    return server.stdout.readline().split(" ")[0]


def ask(url: str, query: str) -> list[str]:
    body = json.dumps({"query": query}).encode()
    with urllib.request.urlopen(f"{url}/search", body, timeout=60) as answer:
        return [hit["document"]["id"] for hit in json.load(answer)["hits"]]


@pytest.mark.parametrize(("by", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_corpus_alone_is_served_until_a_signal(
    tmp_path: Path, by: signal.Signals, code: int
) -> None:
    corpus, _ = corpus_with_vectors(tmp_path)
    with process(corpus) as server:
        assert ask(address(server), "otter") == ["d", "a"]
        server.send_signal(by)
        _, errors = server.communicate(timeout=60)
        assert server.returncode == code
        assert errors == ("interrupted\n" if code else "")
    assert (tmp_path / "corpus.jsonl.index" / "manifest.json").exists()


async def test_a_request_under_way_is_answered_before_the_server_stops(tmp_path: Path) -> None:
    corpus, vectors = corpus_with_vectors(tmp_path)
    await build(corpus, vectors)
    let_go = asyncio.Event()

    async def held(request: web.Request, honest: Honest) -> web.StreamResponse:
        await let_go.wait()
        return web.json_response(await honest())

    async with FakeEmbeddings(0) as endpoint:
        endpoint.misbehave = lambda call: held if call.number else None
        words = ["--embeddings.model", "subjects", "--embeddings.base-url", f"{endpoint.url}/v1"]
        with process(corpus, "--mode", "dense", *words) as server:
            url = await asyncio.to_thread(address, server)
            answer = asyncio.create_task(asyncio.to_thread(ask, url, "otter"))
            while len(endpoint.calls) < 2:
                await asyncio.sleep(0.005)
            server.send_signal(signal.SIGTERM)
            while await asyncio.to_thread(listens, url):
                pass
            let_go.set()
            assert (await answer)[:2] == ["d", "a"]
            await asyncio.to_thread(server.communicate, timeout=60)
            assert server.returncode == 0


def listens(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=60).close()
    except ConnectionError:
        return False
    return True


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--mode", "dense"], 2, "--mode dense: needs --embeddings.model"),
        (["--embeddings.model", "m"], 2, "--embeddings.base-url: is needed"),
        (["--embeddings.model", "m", "--embeddings.base-url", "http://h/v1"], 2, "is not there"),
        (["--index", "."], 2, "manifest.json: can't be read"),
        (["--allow", "none.jsonl"], 2, "none.jsonl: No such file"),
        (["--port", "70000"], 2, "--port: "),
    ],
)
def test_what_can_not_be_served_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    corpus, _ = corpus_with_vectors(tmp_path)
    assert run_command(serve, ["--corpus", str(corpus), *words]) == code
    errors = capsys.readouterr().err
    assert said in errors and errors.count("\n") == 1


def test_a_taken_port_is_a_failed_preflight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, _ = corpus_with_vectors(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run_command(serve, ["--corpus", str(corpus), "--port", port]) == 3
    assert f"--port {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "url", "code", "said"),
    [
        ("other", "http://127.0.0.1:9/v1", 2, "has vectors of subjects; name that model"),
        ("subjects", "http://127.0.0.1:9/v1", 3, "no answer in 1 attempts"),
    ],
)
def test_the_model_of_the_vectors_must_be_the_one_that_answers(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    url: str,
    code: int,
    said: str,
) -> None:
    corpus, vectors = corpus_with_vectors(tmp_path)
    asyncio.run(build(corpus, vectors))
    embeddings = {"model": model, "base-url": url, "attempts": "1"}
    words = [word for key, value in embeddings.items() for word in (f"--embeddings.{key}", value)]
    assert run_command(serve, ["--corpus", str(corpus), *words]) == code
    assert said in capsys.readouterr().err


def test_a_corpus_that_changed_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, _ = corpus_with_vectors(tmp_path)
    asyncio.run(build(corpus))
    write_rows(corpus, [{"id": 1, "content": "another"}])
    assert run_command(serve, ["--corpus", str(corpus)]) == 2
    assert "remove" in capsys.readouterr().err
