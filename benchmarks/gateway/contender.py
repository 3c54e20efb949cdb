"""A server under measurement: a process of its own, told what to do by lines of JSON on its pipes.

It needs the standard library alone, so that it runs in any contender's own environment. A rollout
is opened with what its policy says, and closed with the samples to train and what was sampled.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Script:
    """What a policy says: by the number of its turns that a prompt holds, or always the same.

    Attributes:
        calls: Prompt and sampled ids of every call, where it says more than one thing.
        spent: CPU seconds of each call, which are not the server's.
    """

    def __init__(self, says: Sequence[Sequence[int]], header: Sequence[int]) -> None:
        """`header` are the ids that a turn of the policy begins with in the prompt."""
        self._says, self._header = says, list(header)
        self.calls: list[tuple[list[int], list[int]]] = []
        self.spent: list[float] = []

    def next(self, prompt: Any) -> list[int]:
        """The ids behind a prompt, a list or an array."""
        started = time.thread_time()
        said = list(self._says[0])
        if len(self._says) > 1:
            prompt = prompt if isinstance(prompt, list) else prompt.tolist()
            said = list(self._says[min(self._turns(prompt), len(self._says)) - 1])
            self.calls.append((list(prompt), said))
        self.spent.append(time.thread_time() - started)
        return said

    def _turns(self, prompt: list[int]) -> int:
        first, size = self._header[0], len(self._header)
        starts = (i for i, token in enumerate(prompt) if token == first)
        return sum(prompt[i : i + size] == self._header for i in starts)


class Server:
    """What a contender does; its module ends with `asyncio.run(answer(Mine(...)))`."""

    async def start(self) -> None:
        """Listens."""

    async def open(self, name: str, script: Script) -> dict[str, str]:
        """`url`, without `/v1`, and `key`, which a client sends."""
        raise NotImplementedError

    async def close(self, name: str) -> list[tuple[list[int], list[int]]]:
        """Ids and loss mask of each sample; forgets the rollout."""
        raise NotImplementedError


async def answer(server: Server) -> None:
    """Does what the lines on the standard input say, until it ends."""
    out, sys.stdout = sys.stdout, sys.stderr
    scripts: dict[str, Script] = {}
    await server.start()
    loop = asyncio.get_running_loop()
    print("{}", file=out, flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        said: dict[str, Any] = {}
        if asked["do"] == "open":
            scripts[asked["name"]] = Script(asked["says"], asked["header"])
            said = dict(await server.open(asked["name"], scripts[asked["name"]]))
        elif asked["do"] == "spent":
            said["s"] = scripts[asked["name"]].spent
        elif asked["do"] == "close":
            said["samples"] = await server.close(asked["name"])
            said["calls"] = scripts.pop(asked["name"]).calls
        else:
            if not tracemalloc.is_tracing():
                tracemalloc.start()
            gc.collect()
            said["bytes"] = tracemalloc.get_traced_memory()[0]
        print(json.dumps(said), file=out, flush=True)


class Contender:
    """The other end of the pipes."""

    def __init__(self, name: str, command: Sequence[str], path: Sequence[str]) -> None:
        self.name = name
        kept = {key: os.environ[key] for key in ("HOME", "PATH") if key in os.environ}
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **kept,
                "PYTHONPATH": os.pathsep.join(path),
                "OMP_NUM_THREADS": "1",
                "TOKENIZERS_PARALLELISM": "false",
                "HF_HUB_OFFLINE": "1",
            },
        )
        self._answer()

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        """What it says to `what`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **fields}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def cpu_s(self) -> float:
        """CPU seconds of all its threads, read from outside."""
        threads = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9

    def end(self) -> None:
        """Ends it."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self._process.wait()}; see above")
        found: dict[str, Any] = json.loads(line)
        return found
