"""What the gateway takes SGLang to do, asked of a real server, which it starts and ends.

    python -m benchmarks.gateway.contract --out DIR
    python -m benchmarks.gateway.contract --out DIR --url http://host:port

The shipped tau policy, greedy. Through each dialect, streamed and not: an answer under a schema, a
stop string within the text, log-probs; then schemas that can't be compiled, a client that leaves,
an abort in mid-turn and one while a grammar is compiled. `results.json` has a row a check: whether
it held, what was seen, and the traceback where it did not; the exit code is then 4. Needs a GPU,
SGLang 0.5.15.post1 and xgrammar; the stand-in of the tests is held to the same checks.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from turnwise.arguments import parse_args
from turnwise.command import RunError, run_command
from turnwise.config import CommandConfig

from benchmarks.gateway.asking import CONTEXT, DIALECTS, LONG, SHIPPED, USER, WAYS, Bench
from benchmarks.sglang.server import sglang_server

CHECK_S = 30.0
SCHEMA = {
    "type": "object",
    "properties": {
        "at": {"enum": ["north", "south"]},
        "times": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["at", "times"],
    "additionalProperties": False,
}
BAD_SCHEMAS: dict[str, Any] = {
    "unknown type": {"type": "strin"},
    "reference to nothing": {"$ref": "#/definitions/nothing"},
    "properties that are none": {"type": "object", "properties": 5},
}
# Long enough to be compiled when it is aborted.
SLOW_SCHEMA = {
    "type": "object",
    "properties": {
        f"field_{i}": {"enum": [f"{i} {k} {'x' * 40}" for k in range(40)]} for i in range(400)
    },
    "required": [f"field_{i}" for i in range(400)],
}


class ContractConfig(CommandConfig):
    """Asks a real SGLang server what the gateway takes it to do."""

    out: Path
    """Folder for results.json and the server's log; made if it is missing."""
    url: str | None = None
    """A server of the shipped policy that runs already; without it one is started."""


async def check_schema(bench: Bench) -> dict[str, Any]:
    """An answer under a schema obeys it, its turn is not trained, the next goes on behind it."""
    rows = []
    for name, stream in WAYS:
        async with bench.rollout() as client:
            dialect = DIALECTS[name]
            status, text, _ = await client.ask(name, stream, **dialect.schema(SCHEMA))
            assert status == 200, text
            prompt, params, turn = client.engine.turns[0]
            row = {"way": name, "stream": stream, "text": text, "finish": turn.finish}
            rows.append({**row, "tokens": len(turn.ids)})
            assert turn.finish == "stop", rows
            found = json.loads(text)
            assert set(found) == {"at", "times"} and found["at"] in ("north", "south"), rows
            assert type(found["times"]) is int and 0 <= found["times"] <= 9, rows
            (drop,) = client.record.samples().dropped
            assert drop.reason == "constrained" and not client.record.samples().samples
            free = await client.scored(prompt, turn)
            rows[-1] |= {"mean_logprob": float(turn.logprobs.mean()), "free": float(free.mean())}
            said = {"role": "assistant", "content": text}
            status, _, _ = await client.ask("chat", history=[USER, said, USER])
            assert status == 200
            after = client.engine.turns[1][0]
            assert after[: len(prompt) + len(turn.ids)] == [*prompt, *turn.ids.tolist()], rows
            assert len(client.record.samples().samples) == 1
    return {"turns": rows}


async def check_stop(bench: Bench) -> dict[str, Any]:
    """The server ends at the token that completes a stop string; the text ends before it."""
    async with bench.rollout() as client:
        _, whole, _ = await client.ask("chat")
    middle = len(whole) // 2
    stop, rows = whole[middle : middle + 5], []
    for name, stream in WAYS:
        async with bench.rollout() as client:
            asked = {DIALECTS[name].stop: ["never said", stop]}
            status, text, answer = await client.ask(name, stream, **asked)
            assert status == 200, text
            _, params, turn = client.engine.turns[0]
            ids = turn.ids.tolist()
            row = {"way": name, "stream": stream, "stop": stop, "whole": whole, "text": text}
            rows.append({**row, "finish": turn.finish, "said": client.text(ids)})
            assert turn.finish == "stop" and stop in client.text(ids), rows
            assert stop not in client.text(ids[:-1]), f"it sampled on: {rows}"
            assert text == client.text(ids)[: client.text(ids).find(stop)], rows
            if name == "messages" and not stream:
                assert answer["stop_sequence"] == stop, answer
            (sample,) = client.record.samples().samples
            assert sample.ids[sample.prompt_length :][sample.loss_mask == 1].tolist() == ids
    return {"turns": rows}


async def check_logprobs(bench: Bench) -> dict[str, Any]:
    """The log-probs that a client gets are the server's, and those of the same ids read again."""
    rows = []
    for name, stream in (("chat", False), ("chat", True), ("responses", False)):
        async with bench.rollout() as client:
            asked = {"logprobs": True, "include": ["message.output_text.logprobs"]}
            status, text, answer = await client.ask(name, stream, **asked)
            assert status == 200, text
            if name == "responses":
                said = answer["output"][0]["content"][0]["logprobs"]
            elif stream:
                said = next(
                    one["choices"][0]["logprobs"]["content"]
                    for one in answer
                    if one["choices"][0]["logprobs"]
                )
            else:
                said = answer["choices"][0]["logprobs"]["content"]
            prompt, _, turn = client.engine.turns[0]
            given = np.array([one["logprob"] for one in said], np.float32)
            assert np.array_equal(given, turn.logprobs), (given, turn.logprobs)
            off = float(np.abs(await client.scored(prompt, turn) - given).max())
            rows.append({"way": name, "stream": stream, "tokens": len(said), "largest": off})
            assert off < 0.5, rows
    return {"turns": rows}


async def check_bad_schemas(bench: Bench) -> dict[str, Any]:
    """A schema that can't be compiled is the client's fault, and the rollout goes on."""
    rows = []
    for name in DIALECTS:
        async with bench.rollout() as client:
            for kind, schema in BAD_SCHEMAS.items():
                asked = DIALECTS[name].schema(schema)
                status, text, _ = await client.ask(name, **asked)
                rows.append({"way": name, "schema": kind, "status": status, "text": text[:400]})
                assert status == 400 and client.record.failure is None, rows
                assert bench.url not in text, rows
            status, text, _ = await client.ask(name)
            assert status == 200, (rows, text)
    return {"answers": rows}


async def check_empty_schema(bench: Bench) -> dict[str, Any]:
    """A schema that allows no text costs the rollout at most: the server goes on."""
    async with bench.rollout() as client:
        status, text, _ = await client.ask("chat", **DIALECTS["chat"].schema({"enum": []}))
        seen = {"status": status, "text": text[:400], "failure": str(client.record.failure)}
        seen["finishes"] = [(turn.finish, len(turn.ids)) for _, _, turn in client.engine.turns]
    async with bench.rollout() as client:
        status, text, _ = await client.ask("chat")
        assert status == 200, (seen, text)
    return seen


async def check_leaving(bench: Bench) -> dict[str, Any]:
    """A client that leaves in mid-stream: the server stops, the turn is listed, others follow."""
    rows = []
    for name, dialect in DIALECTS.items():
        async with bench.rollout(ignore_eos=True) as client:
            body = {dialect.history: [USER], "max_tokens": LONG, "stream": True}
            async with client.http.post(f"{client.url}/v1/{dialect.path}", json=body) as answer:
                sign = await answer.content.readline()
                running = await client.running()
                answer.close()
            seconds = await client.until(False)
            while client.record.busy:
                await asyncio.sleep(0.02)
            rows.append({"way": name, "sign": sign.decode(), "idle_after_s": seconds})
            assert running and not client.engine.turns, (rows, running)
            (drop,) = client.record.samples().dropped
            rows[-1]["dropped"] = drop.reason
            status, text, _ = await client.ask("chat", max_tokens=8)
            assert status == 200, text
    return {"turns": rows}


async def check_abort(bench: Bench) -> dict[str, Any]:
    """An abort of the server in mid-turn ends the rollout: 410, nothing scored."""
    rows = []
    for name, stream in WAYS:
        async with bench.rollout(ignore_eos=True) as client:
            asking = asyncio.create_task(client.ask(name, stream, max_tokens=LONG))
            await client.until(True)
            await asyncio.sleep(0.1)
            await client.engine.abort()
            status, text, answer = await asking
            turn = client.engine.turns[0][2] if client.engine.turns else None
            seen = {"finish": turn and turn.finish, "tokens": turn and len(turn.ids)}
            rows.append({"way": name, "stream": stream, "status": status, **seen})
            late = stream and "ended this rollout" in json.dumps(answer)
            assert client.record.aborted and (status == 410 or late), (rows, answer)
    return {"turns": rows}


async def check_abort_of_compiling(bench: Bench) -> dict[str, Any]:
    """An abort while the server compiles a grammar is an abort, not the client's fault."""
    async with bench.rollout() as client:
        asked = DIALECTS["chat"].schema(SLOW_SCHEMA)
        began = time.perf_counter()
        asking = asyncio.create_task(client.ask("chat", **asked))
        await asyncio.sleep(0.15)
        await client.engine.abort()
        status, text, _ = await asking
        seen = {"status": status, "text": text[:400], "took_s": time.perf_counter() - began}
        seen["finishes"] = [turn.finish for _, _, turn in client.engine.turns]
        assert status in (200, 410) and client.record.failure is None, seen
        return seen


CHECKS: dict[str, Callable[[Bench], Awaitable[dict[str, Any]]]] = {
    "schema": check_schema,
    "stop": check_stop,
    "logprobs": check_logprobs,
    "bad schemas": check_bad_schemas,
    "a client leaves": check_leaving,
    "abort": check_abort,
    "abort of compiling": check_abort_of_compiling,
    "a schema of nothing": check_empty_schema,
}


async def run_checks(url: str, out: Path) -> dict[str, Any]:
    """Every check's row; `results.json` is written anew after each."""
    bench, results = Bench(url), dict[str, Any]()
    for name, check in CHECKS.items():
        began = time.perf_counter()
        try:
            async with asyncio.timeout(CHECK_S):
                row = {"held": True, **await check(bench)}
        except Exception as error:
            row = {"held": False, "found": repr(error), "traceback": traceback.format_exc()}
        results[name] = {**row, "seconds": round(time.perf_counter() - began, 2)}
        (out / "results.json").write_text(json.dumps(results, indent=1), "utf-8")
        print(name, "held" if row["held"] else f"FAILED: {row['found'][:2000]}", flush=True)
    return results


def main(argv: Sequence[str]) -> None:
    """The command.

    Raises:
        RunError: a check did not hold.
    """
    told = ContractConfig.__doc__ or ""
    config = parse_args(ContractConfig, argv, prog="contract", description=told)
    config.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        url, began = config.url, time.perf_counter()
        if url is None:
            print("sglang", importlib.metadata.version("sglang"), flush=True)
            server = sglang_server(
                SHIPPED,
                dtype="bfloat16",
                context=CONTEXT,
                log=config.out / "server.log",
                grammar="xgrammar",
                running=16,
            )
            url = stack.enter_context(server)
            print(f"ready after {time.perf_counter() - began:.0f} s", flush=True)
        results = asyncio.run(run_checks(url, config.out))
    failed = [name for name, row in results.items() if not row["held"]]
    if failed:
        raise RunError(f"did not hold: {', '.join(failed)}; see {config.out / 'results.json'}")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
