"""Continuous batching without asyncio: turns go in, ended turns come out.

`Batch.advance` admits what waits, computes the new prompt tokens of all admitted rows in few
passes, and decodes the active rows until at least one ends, on a GPU an eighth of them. Between
two calls the active rows are rows 0..n-1 of the cache, so a step reads the cache in place.

Shapes: B rows, T context, n active rows, s steps of one burst.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.engine import Completion, Finish, SamplingParams
from turnwise.engine.decoder import Decoder
from turnwise.engine.replays import Replays, cuda_capture
from turnwise.engine.rows import Claim, RowTable
from turnwise.engine.sampling import sample, uniforms

BURST_STEPS = 32
"""Decoding steps after which `advance` returns even if no row has ended."""


@dataclass(slots=True, eq=False)
class Turn:
    """A request and what became of it.

    Attributes:
        prompt: int32[p].
        seed: Of the draws.
        budget: At most this many tokens; prompt and budget fit the context.
        row: Where it is computed, -1 before it is admitted.
        cached: Prompt tokens that were not computed.
        produced: Tokens sampled so far.
        completion: Set when it has ended.
    """

    session: str
    prompt: NDArray[np.int32]
    params: SamplingParams
    seed: int
    budget: int
    row: int = -1
    cached: int = 0
    produced: int = 0
    completion: Completion | None = None


class Batch:
    """Turns that share a decoder.

    Attributes:
        weight_version: Stamped on completions; the owner counts.
        sampled_tokens, prompt_tokens, cached_tokens: Totals, for metrics.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        rows, context = decoder.rows, decoder.context
        self._table = RowTable(rows, context)
        self._turn: list[Turn | None] = [None] * rows
        self._logprobs = np.zeros((rows, context), dtype=np.float32)
        self._uniforms = np.zeros((rows, context))
        self._temperature = np.ones(rows, dtype=np.float32)
        self._top_k = np.zeros(rows, dtype=np.int64)
        self._top_p = np.ones(rows, dtype=np.float32)
        self._left = np.zeros(rows, dtype=np.int64)
        self._stops = np.full((rows, 1), -1, dtype=np.int64)
        self._waiting: deque[Turn] = deque()
        # A GPU loses more by a synchronisation per step, and by a prefill for each row that has
        # ended, than by a few steps of rows that have.
        gpu = decoder.device.type != "cpu"
        self._check_every, self._patience = (8, 1 / 8) if gpu else (1, 0.0)
        self._stepper = Replays(decoder, cuda_capture()) if gpu else decoder
        self.weight_version = 0
        self.sampled_tokens = self.prompt_tokens = self.cached_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether `advance` has something to do."""
        return bool(self._waiting) or bool(self._table.active.any())

    def submit(self, turn: Turn) -> None:
        """Queues a turn; its session must have no other under way."""
        self._waiting.append(turn)

    def drop(self, turn: Turn) -> None:
        """Forgets a turn that nobody waits for; its row keeps what it has computed."""
        if turn.row >= 0 and self._turn[turn.row] is turn:
            self._end(turn.row, "abort")
        elif turn in self._waiting:
            self._waiting.remove(turn)

    def release(self, session: str) -> None:
        """Forgets a session."""
        self._table.release(session)

    def clear(self) -> list[Turn]:
        """Ends all turns with `abort` and forgets the cache; returns those turns."""
        ended = [self._end(row, "abort") for row in np.flatnonzero(self._table.active).tolist()]
        for turn in self._waiting:
            turn.completion = _empty("abort", self.weight_version)
            ended.append(turn)
        self._waiting.clear()
        self._table.clear()
        return ended

    @torch.inference_mode()
    def advance(self) -> list[Turn]:
        """Computes until at least one turn has ended or `BURST_STEPS` steps are done."""
        ended = self._admit()
        if not ended and self._table.active.any():
            ended = self._decode()
        return ended

    def _admit(self) -> list[Turn]:
        waves: dict[int, list[Claim]] = {}
        while self._waiting:
            turn = self._waiting[0]
            claim = self._table.claim(turn.session, turn.prompt)
            if claim is None:
                break
            self._waiting.popleft()
            self._place(turn, claim)
            if claim.wave == 0 and claim.source is not None:
                self._copy(claim)  # before another claim overwrites the source
            waves.setdefault(claim.wave, []).append(claim)
        ended: list[Turn] = []
        for wave in sorted(waves):
            ended += self._fill(waves[wave], copy=wave > 0)
        return ended

    def _place(self, turn: Turn, claim: Claim) -> None:
        row, params, begin = claim.row, turn.params, len(turn.prompt)
        turn.row, turn.cached = row, claim.start
        self._turn[row] = turn
        self._uniforms[row, begin : begin + turn.budget] = uniforms(turn.seed, begin, turn.budget)
        self._temperature[row] = params.temperature
        self._top_k[row], self._top_p[row] = params.top_k, params.top_p
        self._left[row] = turn.budget
        missing = len(params.stop_token_ids) - self._stops.shape[1]
        if missing > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[row] = -1
        self._stops[row, : len(params.stop_token_ids)] = params.stop_token_ids
        self.prompt_tokens += begin
        self.cached_tokens += claim.start

    def _copy(self, claim: Claim) -> None:
        assert claim.source is not None
        self._decoder.copy_prefix(claim.source, claim.row, claim.kept, claim.start)
        self._table.computed(claim.row, claim.start)

    def _fill(self, claims: list[Claim], *, copy: bool) -> list[Turn]:
        """Computes the prompts of one wave and samples the first token of each."""
        rows = np.array([claim.row for claim in claims])
        for claim in claims:
            if copy:
                self._copy(claim)
        turns = [self._turn[row] for row in rows.tolist()]
        parts = [
            torch.from_numpy(turn.prompt[claim.start :].astype(np.int64))
            for turn, claim in zip(turns, claims, strict=True)
            if turn is not None
        ]
        logits = self._decoder.prefill(rows.tolist(), parts, [claim.start for claim in claims])
        lengths = np.array([len(turn.prompt) for turn in turns if turn is not None])
        ids, logprobs = self._sampler(rows)(logits, self._device(self._uniforms[rows, lengths]))
        for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            self._table.computed(row, length)
        return self._record(rows, ids.cpu().numpy()[:, None], logprobs.cpu().numpy()[:, None])

    def _decode(self) -> list[Turn]:
        """One burst over all active rows."""
        for row, other, length in self._table.moves():
            self._decoder.swap_rows(row, other, length)
            self._swap(row, other)
        count = int(self._table.active.sum())
        rows = np.arange(count)
        begin = self._table.length[:count].copy()
        steps = int(min(BURST_STEPS, self._left[:count].max()))
        longest, last = int(begin.max()), self._table.ids.shape[1] - 1
        shared = self._table.shared_prefix(count)
        columns = np.minimum(begin[:, None] + 1 + np.arange(steps), last)
        uniform = self._device(np.take_along_axis(self._uniforms[:count], columns, axis=1))
        draw = self._sampler(rows)
        stops, left = self._device(self._stops[:count]), self._device(self._left[:count])
        tokens = self._device(self._table.ids[rows, begin].astype(np.int64))
        positions = self._device(begin)
        ended = torch.zeros(count, dtype=torch.bool, device=tokens.device)
        enough = max(1, int(count * self._patience))
        sampled: list[tuple[Tensor, Tensor]] = []
        for step in range(steps):
            logits = self._stepper.step(
                tokens, positions, used=min(longest + step, last) + 1, shared=shared
            )
            tokens, logprobs = draw(logits, uniform[:, step])
            sampled.append((tokens, logprobs))
            positions = (positions + 1).clamp_(max=last)
            ended |= (tokens[:, None] == stops).any(-1) | (left <= step + 1)
            if (step + 1) % self._check_every == 0 and int(ended.sum()) >= enough:
                break
        ids = torch.stack([ids for ids, _ in sampled], 1).cpu().numpy()
        logs = torch.stack([logs for _, logs in sampled], 1).cpu().numpy()
        return self._record(rows, ids, logs, begin + 1)

    def _record(
        self,
        rows: NDArray[np.int64],
        ids: NDArray[np.int64],
        logprobs: NDArray[np.float32],
        columns: NDArray[np.int64] | None = None,
    ) -> list[Turn]:
        """Keeps the sampled tokens [n, s] of each row up to its end, and ends those turns.

        `columns` is where the first of them belongs; None means a prompt's first token.
        """
        if columns is None:
            columns = self._table.length[rows]
        stopped = (ids[:, :, None] == self._stops[rows][:, None]).any(-1)
        steps = np.arange(ids.shape[1])
        stop = np.where(stopped.any(1), stopped.argmax(1) + 1, ids.shape[1] + 1)
        kept = np.minimum(np.minimum(stop, self._left[rows]), ids.shape[1])
        which, step = np.nonzero(steps < kept[:, None])
        self._table.ids[rows[which], columns[which] + step] = ids[which, step]
        self._logprobs[rows[which], columns[which] + step] = logprobs[which, step]
        self._table.length[rows] = columns + kept - 1
        self._left[rows] -= kept
        self.sampled_tokens += int(kept.sum())
        over = (stop <= kept) | (self._left[rows] == 0)
        return [
            self._end(int(rows[i]), "stop" if stop[i] <= kept[i] else "length")
            for i in np.flatnonzero(over)
        ]

    def _end(self, row: int, finish: Finish) -> Turn:
        turn = self._turn[row]
        assert turn is not None
        begin = len(turn.prompt)
        end = begin + turn.budget - int(self._left[row])
        turn.completion = Completion(
            ids=self._table.ids[row, begin:end].copy(),
            logprobs=self._logprobs[row, begin:end].copy(),
            finish=finish,
            weight_version=self.weight_version,
            cached_tokens=turn.cached,
        )
        self._turn[row] = None
        self._table.idle(row)
        return turn

    def _swap(self, one: int, other: int) -> None:
        for array in (
            self._logprobs,
            self._uniforms,
            self._temperature,
            self._top_k,
            self._top_p,
            self._left,
            self._stops,
        ):
            array[[one, other]] = array[[other, one]]
        self._turn[one], self._turn[other] = self._turn[other], self._turn[one]
        for row in (one, other):
            turn = self._turn[row]
            if turn is not None:
                turn.row = row

    def _sampler(self, rows: NDArray[np.int64]) -> _Sampler:
        top_k, top_p = self._top_k[rows], self._top_p[rows]
        limited = bool((top_k > 0).any() or (top_p < 1).any())
        return _Sampler(
            self._device(self._temperature[rows]),
            (self._device(top_k), self._device(top_p)) if limited else None,
        )

    def _device(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._decoder.device)


@dataclass(frozen=True, slots=True)
class _Sampler:
    temperature: Tensor
    limits: tuple[Tensor, Tensor] | None

    def __call__(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        return sample(logits, uniform, self.temperature, self.limits)


def _empty(finish: Finish, version: int) -> Completion:
    return Completion(np.empty(0, np.int32), np.empty(0, np.float32), finish, version)
