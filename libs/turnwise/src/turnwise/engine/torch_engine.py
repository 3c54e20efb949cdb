"""The embedded engine: batched decoding in this process, with rows kept between turns.

    engine = TorchEngine(model, rows=64, context=1024)
    completion = await engine.generate(prompt_ids, params, session_id="rollout-7")
    await engine.update_weights(model)       # copies in place; cached rows become invalid
    await engine.close()

The loop, until nothing is left to do:
1. give coroutines that can run a fixed number of rounds of the event loop, until none sends another
   request or waits for a round of its own (`turnwise.rounds`): an episode that waits for its
   environment holds up nobody;
2. in the worker thread: admit requests in the order of their arrival, each to its session's row or
   the longest unused one, compute what neither the row nor any other already holds of the prompts,
   then decode all active rows until at least one ends (`batch`);
3. deliver.

No decision looks at a clock. Where the coroutines wait for this engine alone, the same requests
give the same batches, and with the same number of torch threads the same bits. `clear` brings the
engine into the state of a new one: call it before each training step, so that a resumed run meets
the state that the unbroken one had.

On a GPU steps are replayed as CUDA graphs (`replays`), and short prompts computed together
(`spans`).
An engine serves one event loop at a time and owns one worker thread.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from turnwise.config import ConfigError
from turnwise.engine import Completion, EngineStats, SamplingParams
from turnwise.engine.batch import Batch, Turn
from turnwise.engine.decoder import Decoder
from turnwise.episode import Boundary, BoundaryError
from turnwise.rounds import rounds_are_taken

SETTLE_ROUNDS = 16
"""Rounds of the event loop without a new request after which coroutines count as settled."""


@dataclass(slots=True, eq=False)
class _Request:
    turn: Turn
    future: asyncio.Future[Completion]


@dataclass(slots=True, eq=False)
class _Command:
    """Something the worker does between two bursts; returns the turns that it ended."""

    action: Callable[[], list[Turn]]
    future: asyncio.Future[None] | None
    error: BoundaryError | None = None


class TorchEngine:
    """Samples turns with a model of the Llama family; an `Engine`.

    Args:
        model: A transformers causal language model; its weights are copied.
        rows: Sequences computed at once, which is also how many sessions keep their cache.
        context: Tokens per sequence, prompt and samples together; None takes all the positions of
            the model. The cache takes rows * context * layers * 2 * kv_heads * head_dim numbers.
        verify: Compare the forward pass with the model's own at once.

    Raises:
        turnwise.config.ConfigError: if the model can't be computed or the comparison fails.
    """

    def __init__(
        self, model: nn.Module, *, rows: int = 64, context: int | None = None, verify: bool = True
    ) -> None:
        config: Any = model.config
        try:
            self._decoder = Decoder(
                model, rows=rows, context=context or config.max_position_embeddings
            )
            if verify:
                self._decoder.verify(model)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"the embedded engine can't compute this model with {rows} rows of"
                f" {context or config.max_position_embeddings} tokens: {error}"
            ) from error
        self._batch = Batch(self._decoder)
        self._requests: dict[str, _Request] = {}
        self._arrivals: list[_Request] = []
        self._commands: list[_Command] = []
        self._owners: dict[Turn, _Request] = {}
        self._task: asyncio.Task[None] | None = None
        self._busy_s = 0.0
        self._closed = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="turnwise-engine")

    @property
    def context(self) -> int:
        """Tokens per sequence."""
        return self._decoder.context

    @property
    def restarts(self) -> int:
        """Never: it ends with this process."""
        return 0

    @property
    def failure(self) -> str:
        """Why it samples no more: it always does."""
        return ""

    @property
    def weight_version(self) -> int:
        """How often the weights were updated."""
        return self._batch.weight_version

    @property
    def stats(self) -> EngineStats:
        """Totals for metrics."""
        batch = self._batch
        return EngineStats(
            batch.prompt_tokens, batch.cached_tokens, batch.sampled_tokens, self._busy_s
        )

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        """Samples one turn.

        Args:
            prompt_ids: int32[p], at least one.

        Raises:
            BoundaryError: at `Boundary.ENGINE`, if the computation fails or the engine is closed.
            ValueError: if the caller breaks the contract: no ids, ids outside the vocabulary, a
                session that has a turn under way.
        """
        self._check_open()
        prompt = self._checked(prompt_ids)
        if session_id in self._requests:
            raise ValueError(f"session {session_id!r} has a turn under way")
        budget = min(params.max_new_tokens, self.context - len(prompt))
        if budget < 1:
            nothing = np.empty(0, np.int32), np.empty(0, np.float32)
            return Completion(*nothing, "length", self.weight_version)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = _Request(Turn(session_id, prompt, params, seed, budget), future)
        self._requests[session_id] = request
        self._arrivals.append(request)
        self._wake()
        try:
            return await future
        finally:
            if self._requests.get(session_id) is request:
                del self._requests[session_id]

    async def release(self, session_id: str) -> None:
        """Says that no further turn of this session will come."""

        def action() -> list[Turn]:
            self._batch.release(session_id)
            return []

        self._commands.append(_Command(action, None))

    async def update_weights(self, model: nn.Module) -> None:
        """Copies the weights of `model`, of the same shape, and adds 1 to `weight_version`.

        Turns under way end with finish `abort`; rows of older weights become invalid.

        Raises:
            BoundaryError: at `Boundary.ENGINE`, if the engine is closed or the shapes differ.
        """

        def action() -> list[Turn]:
            ended = self._batch.clear()
            self._decoder.load(model)
            self._batch.weight_version += 1
            return ended

        await self._command(action)

    async def clear(self) -> None:
        """Forgets all rows: what was computed before has no trace in later results.

        Turns under way end with finish `abort`.
        """
        await self._command(self._batch.clear)

    async def open(self, logs: Path) -> None:
        """Nothing to start: the engine is in this process."""

    async def release_memory(self) -> None:
        """Nothing is given back: weights and cache stay where they are."""

    async def resume_memory(self) -> None:
        """Nothing was given back."""

    async def close(self) -> None:
        """Ends turns under way with finish `abort` and frees the worker thread."""
        if not self._closed:
            await self.clear()
            self._closed = True
            self._executor.shutdown()

    def _checked(self, prompt_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        prompt = np.ascontiguousarray(prompt_ids, dtype=np.int32)
        if prompt.ndim != 1 or len(prompt) == 0:
            raise ValueError(f"prompt_ids must be int32[p] with p >= 1, found shape {prompt.shape}")
        vocab = self._decoder.shape.vocab
        if prompt.min() < 0 or prompt.max() >= vocab:
            at = int(np.flatnonzero((prompt < 0) | (prompt >= vocab))[0])
            raise ValueError(f"prompt_ids[{at}] is {prompt[at]}; the vocabulary has {vocab} ids")
        return prompt

    def _check_open(self) -> None:
        if self._closed:
            raise BoundaryError(Boundary.ENGINE, "the engine is closed")

    async def _command(self, action: Callable[[], list[Turn]]) -> None:
        self._check_open()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commands.append(_Command(action, done))
        self._wake()
        await done

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._arrivals or self._batch.busy or any(c.future for c in self._commands):
            await self._settle()
            arrivals, self._arrivals = self._arrivals, []
            commands, self._commands = self._commands, []
            for request in arrivals:
                self._owners[request.turn] = request
            try:
                ended = await loop.run_in_executor(self._executor, self._work, arrivals, commands)
            except Exception as error:
                self._fail(error)
            else:
                self._deliver(ended)
            for command in commands:
                if command.future is None or command.future.done():
                    continue
                if command.error is None:
                    command.future.set_result(None)
                else:
                    command.future.set_exception(command.error)

    def _deliver(self, ended: list[Turn]) -> None:
        for turn in ended:
            future = self._owners.pop(turn).future
            if not future.done():
                assert turn.completion is not None
                future.set_result(turn.completion)

    async def _settle(self) -> None:
        quiet, seen = 0, len(self._arrivals)
        while quiet < SETTLE_ROUNDS:
            await asyncio.sleep(0)
            still = len(self._arrivals) == seen and not rounds_are_taken()
            quiet = quiet + 1 if still else 0
            seen = len(self._arrivals)

    def _work(self, arrivals: list[_Request], commands: list[_Command]) -> list[Turn]:
        """One round, in the worker thread."""
        begin = time.perf_counter()
        ended: list[Turn] = []
        for turn, request in list(self._owners.items()):
            if request.future.cancelled():
                self._batch.drop(turn)
                ended.append(turn)
        for command in commands:
            try:
                ended += command.action()
            except Exception as error:
                command.error = _engine_error(error)
        for request in arrivals:
            if not request.future.cancelled():
                self._batch.submit(request.turn)
        ended += self._batch.advance()
        self._busy_s += time.perf_counter() - begin
        return ended

    def _fail(self, error: Exception) -> None:
        """Every turn under way is lost; what the cache holds is not to be trusted."""
        self._batch.clear()
        for request in self._owners.values():
            if not request.future.done():
                request.future.set_exception(_engine_error(error))
        self._owners.clear()


def _engine_error(error: Exception) -> BoundaryError:
    failure = BoundaryError(Boundary.ENGINE, f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
