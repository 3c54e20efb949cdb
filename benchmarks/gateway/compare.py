"""Turnwise's gateway beside others: what is trained of what was sampled, and what a turn costs.

python -m benchmarks.gateway.compare [--clients PYTHON] [--slime CHECKOUT] [--verifiers PYTHON]

Every server runs in a process of its own, with the same tokenizer (Qwen's vocabulary and the
template of Qwen3-Instruct-2507), the same policy that says a script at once, and no engine behind a
network. Costs are CPU seconds of that process, so that they do not depend on the machine's load.

- exactness (`--clients`, an interpreter with third_party/python/clients.lock): the agents whose
  requests are the recorded corpus play their script live, since a recorded request would hold words
  that another server never said. A turn counts as exact if one sample holds its prompt and its ids
  as they were sampled, with a loss mask of ones.
- cost: a rollout of 60 tool turns with 16 tools over Chat Completions; its client sends back what
  it was sent. The script's own CPU is taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from gateway.recorded import PLAYS, Play, Tap, drive

from benchmarks.gateway.contender import ROOT, Contender
from benchmarks.gateway.measure import RESULT, SAYS, TOOLS, TURNS
from benchmarks.tokendelta.workload import qwen_tokenizer, template

DRIVE = ROOT / "tests/gateway_clients/drive.py"
# An agent within an agent says other turns than a script by turns can tell apart.
PLAYED = [play for play in PLAYS if play.client != "agents_scout"]
ROLLOUTS = 5
HEADER = "<|im_start|>assistant"


@dataclass(frozen=True)
class Exactness:
    """What became of one agent's turns.

    Attributes:
        served: Whether it was answered at all.
        ended: Whether the agent came to the script's end, whatever stands behind its last words.
        sampled: Tokens of turns that the policy said, repeated ones included.
        exact: Tokens of them that are trained as they were sampled, each once.
        turns, inexact: Turns that were said; those of which no sample trains what was sampled.
        forks: Samples beyond those that the history needs.
        repeated: Turns that were sampled for a retry.
    """

    served: bool
    ended: bool
    sampled: int
    exact: int
    turns: int
    inexact: int
    forks: int
    repeated: int


def exactness(play: Play, outcome: dict[str, Any], closed: dict[str, Any]) -> Exactness:
    """Compares what was sampled with what would be trained."""
    calls = [(prompt, ids) for prompt, ids in closed["calls"]]
    samples = [(ids, mask) for ids, mask in closed["samples"] if any(mask)]
    exact = inexact = 0
    for prompt, ids in calls:
        start, end = len(prompt), len(prompt) + len(ids)
        whole = any(held[:end] == prompt + ids and all(mask[start:end]) for held, mask in samples)
        exact += len(ids) * whole
        inexact += not whole
    return Exactness(
        served=bool(calls),
        ended=outcome.get("said", "").startswith("Grass."),
        sampled=sum(len(ids) for _, ids in calls),
        exact=exact,
        turns=len(calls),
        inexact=inexact,
        forks=max(0, len(samples) - len(play.segments)) if calls else 0,
        repeated=len(calls) - len({json.dumps(one) for one in calls}),
    )


async def play_all(contender: Contender, clients: str, says: dict[str, Any]) -> list[Exactness]:
    """Every agent against one server."""
    urls: dict[str, tuple[Play, str]] = {}
    async with AsyncExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        for play in PLAYED:
            opened = contender.ask("open", name=play.name, **says[play.client])
            tap = Tap(opened["url"], lose=play.lose, key=opened["key"])
            await stack.enter_async_context(tap)
            urls[play.name] = play, tap.url
        outcomes = await drive(clients, DRIVE, urls, Path(home))
    return [
        exactness(play, outcomes[play.name], contender.ask("close", name=play.name))
        for play in PLAYED
    ]


async def converse(contender: Contender, name: str, says: dict[str, Any]) -> list[float]:
    """CPU seconds of the server for each turn of one rollout, which stays open."""
    opened = contender.ask("open", name=name, **says)
    history: list[Any] = [
        {"role": "system", "content": "You help the customers of a shop. " * 100},
        {"role": "user", "content": "Where is my order?"},
    ]
    spent = []
    headers = {"Authorization": f"Bearer {opened['key']}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for _ in range(TURNS):
            before = contender.cpu_s()
            body = {"model": "policy", "messages": history, "tools": TOOLS}
            url = f"{opened['url']}/v1/chat/completions"
            async with http.post(url, json=body) as answer:
                assert answer.status == 200, await answer.text()
                message = (await answer.json())["choices"][0]["message"]
            spent.append(contender.cpu_s() - before)
            called = message["tool_calls"][0]["id"]
            history += [message, {"role": "tool", "tool_call_id": called, "content": RESULT}]
    scripted = contender.ask("spent", name=name)["s"]
    return [whole - own for whole, own in zip(spent, scripted, strict=True)]


@dataclass(frozen=True)
class Cost:
    """Milliseconds of CPU at turns 5 and 60, turns a second of CPU, kB of a rollout of 60 turns."""

    turn_5: float
    turn_60: float
    rate: float
    kb: float


def costs(servers: Sequence[Contender], says: dict[str, Any]) -> list[Cost]:
    """Of each; they take turns, and of each turn the cheapest rollout counts."""
    rows: list[list[list[float]]] = [[] for _ in servers]
    for number in range(ROLLOUTS):
        for server, row in zip(servers, rows, strict=True):
            row.append(asyncio.run(converse(server, f"cost-{number}", says)))
            server.ask("close", name=f"cost-{number}")
    return [_cost(server, row, says) for server, row in zip(servers, rows, strict=True)]


def _cost(server: Contender, rows: list[list[float]], says: dict[str, Any]) -> Cost:
    best = [min(row[turn] for row in rows) * 1e3 for turn in range(TURNS)]
    before = server.ask("memory")["bytes"]
    asyncio.run(converse(server, "memory", says))
    held = server.ask("memory")["bytes"] - before
    return Cost(
        turn_5=statistics.median(best[2:7]),
        turn_60=statistics.median(best[-5:]),
        rate=TURNS / sum(best) * 1e3,
        kb=held / 1e3,
    )


def show(name: str, found: Sequence[Exactness], paid: Cost) -> None:
    """A contender's lines of the report."""
    print(f"\n{name}")
    for play, one in zip(PLAYED, found, strict=False):
        told = "not served" if not one.served else (
            f"{one.exact} of {one.sampled} tokens exact, {one.inexact} of {one.turns} turns not,"
            f" {one.forks} forks too many, {one.repeated} sampled again"
            + ("" if one.ended else "; the agent did not come to its end")
        )  # fmt: skip
        print(f"  {play.name:32} {told}")
    served = [one for one in found if one.served]
    if served:
        print(f"  served {len(served)} of {len(found)} agents, {sum(o.ended for o in served)} to"
              f" their end: {sum(o.exact for o in served)} of {sum(o.sampled for o in served)}"
              f" tokens exact, {sum(o.inexact for o in served)} of"
              f" {sum(o.turns for o in served)} turns not, {sum(o.forks for o in served)} forks too"
              f" many, {sum(o.repeated for o in served)} sampled again")  # fmt: skip
    print(f"  CPU a turn: {paid.turn_5:.2f} ms at turn 5, {paid.turn_60:.2f} ms at turn 60;"
          f" {paid.rate:.0f} turns a second of CPU; {paid.kb:.0f} kB a rollout")  # fmt: skip
    sys.stdout.flush()


def contenders(tokenizer: str, asked: argparse.Namespace) -> list[Contender]:
    """Ours and those that were asked for."""
    path = [str(Path(entry).resolve()) for entry in sys.path if entry]
    module = "benchmarks.gateway."
    made = [Contender("turnwise.gateway", [sys.executable, "-m", f"{module}ours", tokenizer], path)]
    if asked.slime:
        command = [sys.executable, "-m", f"{module}slime_agent", tokenizer]
        made.append(Contender("slime.agent", command, [*path, str(Path(asked.slime).resolve())]))
    if asked.verifiers:
        command = [asked.verifiers, "-m", f"{module}verifiers_interception", tokenizer]
        made.append(Contender("verifiers", command, [str(ROOT)]))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--clients", help="an interpreter with the agents' libraries")
    parser.add_argument("--slime", help="a checkout of slime")
    parser.add_argument("--verifiers", help="an interpreter with verifiers")
    asked = parser.parse_args()
    tokenizer = qwen_tokenizer(template())

    def script(*texts: str, end: str = "<|im_end|>") -> dict[str, Any]:
        ids = [tokenizer.encode(one + end, add_special_tokens=False) for one in texts]
        header = tokenizer.encode(HEADER, add_special_tokens=False)
        return {"says": ids, "header": header}

    # An engine that is told of a stop string ends there.
    says = {one.client: script(*one.says, end="" if one.stops else "<|im_end|>") for one in PLAYED}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        servers = contenders(folder, asked)
        paid = costs(servers, script(SAYS))
        for server, one in zip(servers, paid, strict=True):
            found = asyncio.run(play_all(server, asked.clients, says)) if asked.clients else []
            show(server.name, found, one)
            server.end()


if __name__ == "__main__":
    main()
