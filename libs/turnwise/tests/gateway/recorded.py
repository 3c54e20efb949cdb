"""Agents of other libraries: what they are played, what they sent, and what must be trained.

A play is a script of the policy and an agent that follows it. Its exchanges are recorded in
`corpus/NAME.jsonl`, a line a request: path, whether it is marked as a retry, body, status and what
was answered. What differs from run to run is written alike (`alike`), and long texts that libraries
tell the policy are replaced by their numbers.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from turnwise.engine.scripted import Reply, reply
from turnwise.gateway import Record
from turnwise.testing import ScriptedEngine, byte_tokenizer, call, encode

CORPUS = Path(__file__).parent / "corpus"
LONG, LONG_TOLD = 100, 40
_SIGNED = re.compile(r"(?<![0-9a-z])((?:[0-9a-f]+_){1,2})([0-9a-f]{16})\b")
# Counts of a prompt are of the texts before they were shortened.
_VARIES = ("created", "created_at", "prompt_tokens", "input_tokens", "total_tokens")
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def _look(at: str, times: int = 2) -> str:
    return call("look", at=at, times=times)


THINKS = "<think>\nWhere first?\n</think>\n\n"
SAYS = (
    THINKS + "I look around. " + _look('the "café"'),
    "Both sides. " + _look("north") + "\n" + _look("south", 10),
    _look("the pond"),
    "Grass.",
)
CODES = (
    THINKS + """I look around.\n<code>\nprint(look('the "café"', 2))\n</code>""",
    """Both sides.\n<code>\nprint(look("north", 2))\nprint(look("south", 10))\n</code>""",
    """<code>\nprint(look("the pond", 2))\n</code>""",
    """<code>\nfinal_answer("Grass.")\n</code>""",
)
ENDS_BY_CALL = (*SAYS[:-1], call("final_answer", answer="Grass."))
SENDS_A_SCOUT = (
    call("look", input="Look north."),
    "I go. " + _look("north"),
    "Grass in the north.",
    "Grass.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One agent on one script.

    Attributes:
        client: The function of `tests/gateway_clients/drive.py`, or the name of a command.
        stream: Whether it asks for events.
        lose: The number of a request whose answer never arrives; None for none.
        says: What the policy says, turn by turn.
        stops: Whether a turn ends with a stop string, in place of the policy's own end.
        segments: The turns of each segment that must come of it.
    """

    client: str
    stream: bool = False
    lose: int | None = None
    says: tuple[str, ...] = SAYS
    stops: bool = False
    segments: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3),)

    @property
    def name(self) -> str:
        """Of its file."""
        return self.client + ("-stream" if self.stream else "-lost" * (self.lose is not None))

    def replies(self) -> list[Reply]:
        """The script with log-probs that tell every token apart."""
        made = []
        for turn, text in enumerate(self.says):
            ids = [*encode(text), *([] if self.stops else [byte_tokenizer().eos_token_id])]
            made.append(reply(ids, logprobs=[-(turn + 1) / (k + 2) for k in range(len(ids))]))
        return made


def _runs(name: str, **arguments: str) -> tuple[str, ...]:
    """A script for an agent whose tool runs commands."""
    grass, hay, sun = (
        call(name, **{key: value.format(what) for key, value in arguments.items()})
        for what in ("grass", "hay", "sun")
    )
    return (f"{THINKS}I look. {grass}", f"Both sides. {hay}\n{sun}", "Grass.")


def _plays() -> Iterable[Play]:
    apart: dict[str, Any] = {
        "smolagents": {"says": ENDS_BY_CALL},
        "smolagents_code": {"says": CODES, "stops": True},
        "agents_scout": {"says": SENDS_A_SCOUT, "segments": ((0, 3), (1, 2))},
    }
    for client in (
        "openai_chat", "openai_responses", "anthropic_messages", "agents_chat", "agents_responses",
        "agents_scout", "langgraph", "pydantic_ai_chat", "pydantic_ai_messages", "smolagents",
        "smolagents_code",
    ):  # fmt: skip
        yield Play(client=client, lose=1, **apart.get(client, {}))
        yield Play(client=client, stream=True, **apart.get(client, {}))


PLAYS = tuple(_plays())
COMMANDS = (
    Play(
        client="codex",
        stream=True,
        says=(
            *_runs("exec_command", cmd="echo {}")[:2],
            call("multi_agent_v1__close_agent", target="nobody"),
            "Grass.",
        ),
        segments=((0, 1, 2, 3),),
    ),
    Play(
        client="opencode",
        stream=True,
        says=_runs("bash", command="echo {}", description="Says it."),
        segments=((0, 1, 2),),
    ),
    Play(
        client="claude",
        stream=True,
        # It fills in what the schema of Edit has a default for.
        says=(
            *_runs("Bash", command="echo {}", description="Says it.")[:2],
            call("Edit", file_path="none", old_string="grass", new_string="hay"),
            "Grass.",
        ),
    ),
    Play(
        client="mini",
        says=(
            *_runs("bash", command="echo {}")[:2],
            "No call: this turn is left out of the history.",
            call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo Grass."),
        ),
        segments=((0, 1, 2), (3,)),
    ),
)


def check(play: Play, record: Record, engine: ScriptedEngine) -> None:
    """Each turn was sampled once, in its segment, behind what came before, and is trained so."""
    replies = play.replies()
    assert len(engine.calls) == len(replies)
    assert record.counts["replays"] == (play.lose is not None)
    found = record.samples()
    assert found.dropped == () and len(found.samples) == len(play.segments)
    assert math.isclose(sum(sample.weight for sample in found.samples), 1)
    for sample, turns in zip(found.samples, play.segments, strict=True):
        trained = sample.loss_mask == 1
        ids = [token for turn in turns for token in replies[turn].ids]
        scores = [score for turn in turns for score in replies[turn].logprobs]
        assert sample.ids[sample.prompt_length :][trained].tolist() == ids
        assert np.array_equal(sample.logprobs[trained], np.array(scores, np.float32))
        for before, after in zip(turns, turns[1:], strict=False):
            seen = [*engine.calls[before].prompt_ids, *replies[before].ids]
            assert engine.calls[after].prompt_ids[: len(seen)].tolist() == seen


async def drive(
    python: Path | str, script: Path, urls: Mapping[str, tuple[Play, str]], home: Path
) -> dict[str, dict[str, Any]]:
    """What became of agents that asked at these URLs, by the same names; they share a process.

    Args:
        python: An interpreter that has their libraries.
        script: `tests/gateway_clients/drive.py`.
        urls: Without `/v1`.
        home: A folder to be at home in.

    Raises:
        RuntimeError: the process failed, with what it said.
    """
    jobs = [
        {"name": name, "client": play.client, "stream": play.stream, "url": url, "deadline_s": 120}
        for name, (play, url) in urls.items()
    ]
    process = await asyncio.create_subprocess_exec(
        python,
        script,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"HOME": str(home), "PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1"},
    )
    out, err = await process.communicate(json.dumps(jobs).encode())
    if process.returncode:
        raise RuntimeError(err.decode())
    return {row["name"]: row for row in map(json.loads, out.splitlines())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and what it was answered.

    Attributes:
        path: Behind the rollout's address.
        retry: Whether the client marked it as sent again.
        body: JSON.
        status: Of HTTP.
        answer: JSON, or a list of the events' data.
    """

    path: str
    retry: bool
    body: Any
    status: int
    answer: Any


class Tap:
    """A proxy in front of a server that keeps what passes.

    Attributes:
        url: Of the proxy.
        exchanges: In the order of requests.
    """

    def __init__(self, upstream: str, *, lose: int | None = None, key: str | None = None) -> None:
        """
        Args:
            upstream: The server's address.
            lose: The number of a request whose answer is kept back, its connection cut.
            key: What is sent as the client's key in place of its own.
        """
        self._key = key
        self.url = ""
        self.exchanges: list[Exchange] = []
        self._upstream, self._lose, self._asked = upstream, lose, 0
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Tap:
        self._http = aiohttp.ClientSession()
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _pass(self, request: web.Request) -> web.Response:
        number, self._asked = self._asked, self._asked + 1
        data = await request.read()
        kept = {
            name: value
            for name, value in request.headers.items()
            if name.lower() in ("authorization", "x-api-key", "content-type", "accept")
            or name.lower().startswith("x-stainless")
        }
        if self._key is not None:
            kept |= {"Authorization": f"Bearer {self._key}", "x-api-key": self._key}
        url = f"{self._upstream}/{request.match_info['path']}"
        async with self._http.request(request.method, url, data=data, headers=kept) as answer:
            body, status, kind = await answer.read(), answer.status, answer.content_type
            sent = {
                name: answer.headers[name]
                for name in ("x-should-retry", "Retry-After")
                if name in answer.headers
            }
        retry = request.headers.get("x-stainless-retry-count", "0") != "0"
        self.exchanges.append(
            Exchange(
                path=request.match_info["path"],
                retry=retry,
                body=json.loads(data) if data else None,
                status=status,
                answer=read_answer(body, kind),
            )
        )
        if number == self._lose and request.transport is not None:
            request.transport.close()
        return web.Response(body=body, status=status, content_type=kind, headers=sent)


def read_answer(body: bytes, kind: str) -> Any:
    """JSON, text, or what the events hold."""
    if kind == "application/json":
        return json.loads(body)
    if kind != "text/event-stream":
        return body.decode()
    lines = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def alike(value: Any) -> Any:
    """JSON without what differs from run to run: signatures, times, counts."""
    if isinstance(value, dict):
        return {
            key: 0 if key in _VARIES and isinstance(one, int) else alike(one)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [alike(one) for one in value]
    if isinstance(value, str):
        return _UUID.sub("0" * 8, _SIGNED.sub(rf"\g<1>{'0' * 16}", value))
    return value


def signatures(value: Any) -> dict[str, str]:
    """Signed names in JSON, by the name that `alike` gives them."""
    return {match[1] + "0" * 16: match[0] for match in _SIGNED.finditer(json.dumps(value))}


def signed(value: Any, known: dict[str, str]) -> Any:
    """JSON that `alike` made, with signatures that are known."""
    text = _SIGNED.sub(lambda match: known.get(match[0], match[0]), json.dumps(value))
    return json.loads(text)


def _short(value: Any, texts: dict[str, str], long: int = LONG) -> Any:
    if isinstance(value, dict):
        if value.get("role") == "assistant":
            return value
        return {
            key: _short(one, texts, LONG_TOLD if key in ("description", "system") else long)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_short(one, texts, long) for one in value]
    if isinstance(value, str) and len(value) > long:
        return texts.setdefault(value, f"(text {len(texts)} of {len(value)} characters)")
    return value


def write(path: Path, exchanges: Iterable[Exchange]) -> None:
    """Records them."""
    texts: dict[str, str] = {}
    rows = [json.dumps(_short(alike(asdict(one)), texts)) for one in exchanges]
    path.write_text("".join(row + "\n" for row in rows))


def read(path: Path) -> list[Exchange]:
    """What was recorded."""
    return [Exchange(**json.loads(row)) for row in path.read_text().splitlines()]
