"""An SGLang server of a run as a trained engine: started, given new weights, ended with it.

    engine = ServedEngine(launch, model=model, weights=weights_for_engine, policy=..., device=...)
    await engine.open(folder.logs)
    completion = await engine.generate(...)          # as of turnwise.engine.sglang
    await engine.update_weights(model)
    await engine.close()

1. Weights go through shared memory (`turnwise.engine.weights`); the first time that this fails they
   go by disk, and do so from then on. The server's cache is flushed with them.
2. Every answer names the version of the weights that sampled it. One of another version than was
   sent is refused as a failure of the engine.
3. A server that dies loses the turns under way to the engine: one of them may be what it died of.
   It is started again once, with the weights sent last; turns that are asked for meanwhile wait.
   When it dies again, or can't take the weights, `failure` says why, and every further turn is
   lost.

`open` raises where the run can't begin. After it nothing here raises but `clear`, with `StopRun`:
what was trained is recorded and saved before.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from turnwise.command import PreflightError, StopRun
from turnwise.engine import Completion, EngineStats, SamplingParams
from turnwise.engine.http import HttpError, HttpPool
from turnwise.engine.server import Server
from turnwise.engine.sglang import TRIED, SGLangEngine
from turnwise.engine.weights import Bucket, NamedTensors, buckets, on_host, write_folder
from turnwise.episode import Boundary, BoundaryError
from turnwise.printable import one_line

MAX_RESTARTS = 1
CONTROL_S = 300.0
"""For an answer of the server that samples nothing: weights, flush, memory."""
IDLE_S = 30
"""A flush waits so long for turns that were given up; SGLang looks after them every 4 s."""
LOG = "engine.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server is started.

    Attributes:
        words: Its command, for a folder of the policy and a port.
        port: Where it answers; called anew for each start.
        start_s: Until it is healthy.
        environment: Beside this process's.
    """

    words: Callable[[Path, int], Sequence[str]]
    port: Callable[[], int]
    start_s: float
    environment: Mapping[str, str] = field(default_factory=dict)


class ServedEngine:
    """Samples on a server; see the module. Used from one event loop.

    Args:
        launch: How it is started; None where `url` names one that runs already.
        url: Of a server that takes new weights, on a machine that sees this one's disk.
        weights: A model's weights by transformers' names.
        model: What the first weights are; a server that was not started here is given them.
        policy: Gives a folder with weights, configuration and tokenizer of the policy, for a folder
            that it may be written into.
        device: GPU of the server, as this process counts them, or the CPU.
        dtype: What the server computes in.
        max_context_tokens, turn_deadline_s: As of `SGLangEngine`.
        keep: Keep what was sent, on the host: for a model that is trained on while turns are
            sampled.
    """

    takes_grammar = True

    def __init__(
        self,
        launch: Launch | None,
        *,
        url: str | None = None,
        weights: Callable[[Any], NamedTensors],
        model: Any,
        policy: Callable[[Path], Path],
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
        max_context_tokens: int | None = None,
        turn_deadline_s: float = 600.0,
        keep: bool = False,
    ) -> None:
        assert (launch is None) != (url is None), "a server is started, or it runs already"
        self._launch, self._url = launch, url
        self._weights, self._model = weights, model
        self._policy, self._device, self._dtype = policy, device, dtype
        self._keep, self._kept = keep, list[tuple[str, torch.Tensor]]()
        self._max_context_tokens = max_context_tokens
        self._turn_deadline_s = turn_deadline_s
        self._pool = HttpPool()
        self._server: Server | None = None
        self._client: SGLangEngine | None = None
        self._log = self._folder = Path(LOG)
        self._address = ""
        self._through_memory = True
        self.restarts = 0
        self._restart: asyncio.Task[None] | None = None
        self._counts = [0, 0, 0]
        self._under_way, self._busy_s, self._since = 0, 0.0, 0.0
        self._closed = False
        self.weight_version = 0
        self.failure = ""

    @property
    def stats(self) -> EngineStats:
        """Totals; `busy_s` are the seconds in which at least one turn was under way."""
        prompt, cached, sampled = self._counts
        return EngineStats(prompt, cached, sampled, self._busy_s)

    async def open(self, logs: Path) -> None:
        """Starts the server, which writes into `logs`, or asks the one that runs.

        Raises:
            PreflightError: it does not start, or takes no weights.
        """
        self._log = (logs / LOG).absolute()
        self._folder = await asyncio.to_thread(self._policy, self._log.parent)
        try:
            await self._start()
            if self._launch is None:
                await self._send()
            await self._look_at_version()
        except (HttpError, TimeoutError, BoundaryError) as error:
            raise PreflightError(f"--engine-url {self._url}: {_said(error)}") from error

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        """Samples one turn; see `Engine`.

        Raises:
            BoundaryError: at `Boundary.ENGINE`, also where the answer's weights are others than
                were sent.
        """
        await self._ready()
        if self.failure or self._client is None or self._closed:
            raise BoundaryError(Boundary.ENGINE, self.failure or "the engine is closed")
        asked_at = self.weight_version
        self._begin()
        try:
            turn = await self._client.generate(prompt_ids, params, session_id=session_id)
        except BoundaryError:
            # Not only the next turn shall start it again: there may be none.
            self._start_if_ended()
            raise
        finally:
            self._end()
        if len(turn.ids) and not asked_at <= turn.weight_version <= self.weight_version:
            raise BoundaryError(
                Boundary.ENGINE,
                f"the server sampled with weights {turn.weight_version}, it was sent"
                f" {self.weight_version}",
            )
        counts = len(prompt_ids), turn.cached_tokens, len(turn.ids)
        self._counts = [a + b for a, b in zip(self._counts, counts, strict=True)]
        return turn

    async def release(self, session_id: str) -> None:
        """Nothing to free: the server evicts prefixes by itself."""

    async def clear(self) -> None:
        """Makes the server forget its prefixes.

        Raises:
            StopRun: there is no server any more.
        """
        await self._ready()
        await self._control("clear its cache", self._flush)
        if self.failure:
            raise StopRun(self.failure)

    async def update_weights(self, model: Any) -> None:
        """Sends the weights of `model` and adds 1 to `weight_version`; turns under way are cut."""
        self._model = model
        if self._keep:
            self._kept = await asyncio.to_thread(on_host, self._weights(model), self._dtype)
        self.weight_version += 1
        await self._ready()
        await self._control("take new weights", self._send)

    async def release_memory(self) -> None:
        """Makes the server give back the memory of its weights and its cache."""
        await self._ready()
        await self._control("give memory back", self._release)

    async def resume_memory(self) -> None:
        """Makes it take the memory again; weights must be sent before the next turn."""
        await self._ready()
        await self._control("take memory again", self._resume)

    async def close(self) -> None:
        """Ends turns under way with finish `abort`, and the server."""
        self._closed = True
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
        if self._server is not None:
            await self._server.close()
        await self._pool.close()

    async def _start(self) -> None:
        url = self._url
        if self._launch is not None:
            port = self._launch.port()
            url = f"http://127.0.0.1:{port}"
            self._server = Server(
                self._launch.words(self._folder, port),
                url,
                log=self._log,
                environment=self._launch.environment,
            )
            await self._server.start(self._launch.start_s)
        assert url is not None
        self._client = SGLangEngine(
            url,
            pool=self._pool,
            deadline_s=self._turn_deadline_s,
            send_seed=True,
            max_context_tokens=self._max_context_tokens,
        )
        self._address = url

    async def _ready(self) -> None:
        """Waits for a start that is under way; starts a server that has ended again."""
        self._start_if_ended()
        if self._restart is not None:
            await asyncio.shield(self._restart)

    def _start_if_ended(self) -> None:
        if self._restart is not None or self._server is None or not self._server.ended:
            return
        if self._closed or self.failure:
            return
        said = self._server.said()
        if self.restarts == MAX_RESTARTS:
            self.failure = f"the engine's server ended for the second time: {said}"
            return
        self.restarts += 1
        _note(f"the engine's server ended and is started again: {said}")
        self._restart = asyncio.create_task(self._start_again())

    async def _start_again(self) -> None:
        try:
            assert self._server is not None
            await self._server.close()
            await self._start()
            if self.weight_version:
                await self._send()
        except (PreflightError, HttpError, TimeoutError, BoundaryError) as error:
            self.failure = f"the engine's server could not be started again: {_said(error)}"
        finally:
            self._restart = None

    async def _control(self, what: str, action: Callable[[], Any]) -> None:
        """Does it; where the server dies of it once more after its restart."""
        for _ in range(2):
            if self.failure:
                return
            try:
                async with asyncio.timeout(CONTROL_S):
                    await action()
                return
            except (HttpError, TimeoutError, OSError) as error:
                if not await self._has_ended():
                    self.failure = f"the engine's server did not {what}: {_said(error)}"
                    return
                await self._ready()

    async def _has_ended(self) -> bool:
        """Whether the server is gone; the news of it may come after the broken connection."""
        for _ in range(20):
            if self._server is None or self._server.ended:
                break
            await asyncio.sleep(0.1)
        return self._server is not None and self._server.ended

    async def _flush(self) -> None:
        await self._pool.tell(f"{self._address}/flush_cache?timeout={IDLE_S}", {})

    async def _release(self) -> None:
        await self._flush()
        await self._pool.tell(f"{self._address}/release_memory_occupation", {})

    async def _resume(self) -> None:
        await self._pool.tell(f"{self._address}/resume_memory_occupation", {})

    async def _send(self) -> None:
        if self._through_memory:
            try:
                await self._send_memory()
                return
            except (HttpError, RuntimeError) as error:
                self._through_memory = False
                _note(f"weights go by disk from now on: {_said(error)}")
                if self._server is not None and await self._has_ended():
                    raise
        await self._send_folder()

    def _named(self) -> NamedTensors:
        return self._kept or self._weights(self._model)

    async def _send_memory(self) -> None:
        packed = buckets(self._named(), dtype=self._dtype, device=self._device)
        loop = asyncio.get_running_loop()
        # One thread for all of them: a generator may switch what torch keeps for each thread.
        with ThreadPoolExecutor(1, thread_name_prefix="turnwise-weights") as thread:
            while (bucket := await loop.run_in_executor(thread, next, packed, None)) is not None:
                await self._send_bucket(bucket)
                del bucket
                if self._device.type == "cuda":
                    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]

    async def _send_bucket(self, bucket: Bucket) -> None:
        request: dict[str, Any] = {
            "serialized_named_tensors": [bucket.handle],
            "load_format": "flattened_bucket",
            "flush_cache": bucket.last,
            "abort_all_requests": True,
        }
        if bucket.last:
            request["weight_version"] = str(self.weight_version)
        await self._update("update_weights_from_tensor", request)

    async def _send_folder(self) -> None:
        with tempfile.TemporaryDirectory(prefix=".weights", dir=self._log.parent) as name:
            folder = Path(name)
            await asyncio.to_thread(
                write_folder,
                folder,
                self._named(),
                dtype=self._dtype,
                like=self._folder,
            )
            request = {
                "model_path": str(folder),
                "weight_version": str(self.weight_version),
                "abort_all_requests": True,
            }
            await self._update("update_weights_from_disk", request)

    async def _update(self, path: str, request: Mapping[str, Any]) -> None:
        answer = await self._pool.post(f"{self._address}/{path}", request)
        if not (isinstance(answer, dict) and answer.get("success") is True):
            raise HttpError(f"{path}: {one_line(str(answer), 300)}")

    async def _look_at_version(self) -> None:
        info = await self._pool.get(f"{self._address}/server_info")
        found = info.get("version") if isinstance(info, dict) else None
        if found != TRIED:
            _note(f"the server is SGLang {found}; this was tried with {TRIED}")

    def _begin(self) -> None:
        if self._under_way == 0:
            self._since = time.perf_counter()
        self._under_way += 1

    def _end(self) -> None:
        self._under_way -= 1
        if self._under_way == 0:
            self._busy_s += time.perf_counter() - self._since


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
