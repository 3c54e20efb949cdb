"""An SGLang server as an `Engine`: ids in, ids and log-probs out, over `/generate`.

1. The prompt goes out as `input_ids`; the answer is read from `output_token_logprobs`, entries of
   [log-prob, id, ...], and kept as it is. Text is neither sent nor read.
2. What does not fit the request is refused as a failure of the engine: another prompt length than
   was sent, counts that disagree or are missing, ids, log-probs or numbers that can't be, a turn
   that ended with `length` before it had the tokens that were asked for.
3. Turns of a session carry its id in `X-SMG-Routing-Key`, by which the router finds the worker
   that holds the prefix.
4. A request that brought no answer is repeated (`turnwise.engine.http`), an answer never is. The
   deadline spans the repeats.

Log-probs are those of the distribution with temperature and before top-p and top-k, as SGLang
0.5.15 gives them by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.engine import Completion, Finish, GrammarRefused, SamplingParams
from turnwise.engine.http import HttpError, HttpPool
from turnwise.episode import Boundary, BoundaryError, crossing

TRIED = "0.5.15.post1"
"""The version of SGLang that this was tried with: docs/sglang.md."""
ROUTING_HEADER = "X-SMG-Routing-Key"
SEED_BITS = 31
"""SGLang keeps seeds as signed integers; the low bits of a seed of ours are sent."""
MAX_ROUNDING = 1e-3
"""A log-prob may exceed 0 by this much, as float32 sums do; it then counts as 0."""
MIN_LOGPROB = -1e4
"""No token that was drawn has a smaller one; a ratio of it still is a number."""
MAX_NUMBER = 2**53
"""Of the numbers beside the tokens: the largest that every reader of JSON keeps."""
ABORTED = "Aborted by AbortReq"
"""A request that is aborted while its grammar is compiled is refused with this."""
GRAMMAR = "grammar"
"""Holds what is refused because of its grammar."""
RESERVED_TOKENS = 2
"""SGLang ends a turn this many tokens before its context is full."""

_BULKY = ("output_token_logprobs", "input_token_logprobs", "output_ids")
_FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}


@dataclass(frozen=True, slots=True)
class SGLangCompletion(Completion):
    """A turn with what else the server said.

    Attributes:
        meta: `meta_info` of the answer without nulls and its token lists: `weight_version`,
            `prompt_tokens`, `cached_tokens`, `spec_*`, and what was asked for beyond that
            (`routed_experts`, top-p token ids and offsets), as it came.
    """

    meta: Mapping[str, Any] = field(default_factory=dict)


class SGLangEngine:
    """Samples turns on a server or router. Used from one event loop; see the module."""

    takes_grammar = True

    def __init__(
        self,
        url: str,
        *,
        pool: HttpPool | None = None,
        deadline_s: float = 600.0,
        sampling: Mapping[str, Any] | None = None,
        return_routed_experts: bool = False,
        send_seed: bool = False,
        max_context_tokens: int | None = None,
    ) -> None:
        """
        Args:
            url: Of the server or router, without a path: `http://host:port`.
            pool: Connections to share; without it the engine has its own, closed by `close`.
            deadline_s: For each turn, repeats included.
            sampling: Further entries of the request's `sampling_params` (`stop`, `custom_params`,
                `repetition_penalty`, ...). What `SamplingParams` holds goes before them.
            return_routed_experts: Ask for the experts of each token (routing replay).
            send_seed: Send the seed of each turn; it counts only on a server with deterministic
                inference.
            max_context_tokens: A prompt that reaches it gives an empty turn with finish `length`
                and turns end there; without it the server's own limit is an error.
        """
        self._url = url.rstrip("/")
        self._pool = pool if pool is not None else HttpPool()
        self._owns_pool = pool is None
        self._deadline_s = deadline_s
        self._sampling = dict(sampling or {})
        self._routed_experts = return_routed_experts
        self._send_seed = send_seed
        self._max_context_tokens = max_context_tokens
        self._requests: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> SGLangCompletion:
        """Samples one turn; see `Engine`.

        Raises:
            BoundaryError: at `Boundary.ENGINE`: no answer, or one that can't be right.
            GrammarRefused: the server refuses a request with a schema as wrong.
            DeadlineExceeded: no answer in time; the server gives the request up when it looks at
                the closed connection, every 4 s by default.
        """
        if self._closed:
            raise BoundaryError(Boundary.ENGINE, "the engine is closed")
        room = params.max_new_tokens
        if self._max_context_tokens is not None:
            room = min(room, self._max_context_tokens - len(prompt_ids))
            if room < 1:
                return _empty("length")
        payload = self._payload(prompt_ids, params, room)
        async with crossing(Boundary.ENGINE, deadline_s=self._deadline_s):
            request = asyncio.create_task(
                self._pool.post(
                    f"{self._url}/generate", payload, headers={ROUTING_HEADER: session_id}
                )
            )
            self._requests.add(request)
            try:
                answer = await request
            except HttpError as error:
                if error.status != 400 or params.json_schema is None:
                    raise
                if ABORTED in error.said:
                    return _empty("abort")
                if GRAMMAR not in error.said.lower():
                    raise
                # A client is told, who is not to know the server's address.
                raise GrammarRefused(error.said) from error
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                if self._closed and caller is not None and not caller.cancelling():
                    return _empty("abort")
                raise
            finally:
                self._requests.discard(request)
            full = self._max_context_tokens == len(prompt_ids) + room
            return read_answer(
                answer, len(prompt_ids), room, reserved=RESERVED_TOKENS if full else 0
            )

    async def abort(self) -> None:
        """Makes the server end every request it has; their turns come back with `abort`.

        A request that is on its way meanwhile may be missed and goes on.

        Raises:
            BoundaryError: the server can't be reached.
        """
        async with crossing(Boundary.ENGINE, deadline_s=self._deadline_s):
            await self._pool.tell(f"{self._url}/abort_request", {"abort_all": True})

    async def release(self, session_id: str) -> None:
        """Nothing to free: the server evicts prefixes by itself."""

    async def close(self) -> None:
        """Ends requests under way with finish `abort`; closes the pool if the engine made it."""
        self._closed = True
        requests = list(self._requests)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        if self._owns_pool:
            await self._pool.close()

    def _payload(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, room: int
    ) -> dict[str, Any]:
        sampling = {
            **self._sampling,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "max_new_tokens": room,
            "stop_token_ids": list(params.stop_token_ids),
        }
        if params.stop:
            own = sampling.get("stop") or []
            more = [own] if isinstance(own, str) else own
            sampling.update(stop=[*more, *params.stop], no_stop_trim=True)
        if params.json_schema is not None:
            sampling["json_schema"] = params.json_schema
        if self._send_seed and params.seed is not None:
            sampling["sampling_seed"] = params.seed & ((1 << SEED_BITS) - 1)
        payload: dict[str, Any] = {
            "input_ids": prompt_ids.tolist(),
            "sampling_params": sampling,
            "return_logprob": True,
        }
        if self._routed_experts:
            payload["return_routed_experts"] = True
        return payload


def read_answer(
    answer: Any, prompt_tokens: int, max_new_tokens: int, *, reserved: int = 0
) -> SGLangCompletion:
    """One turn from a decoded answer of `/generate`.

    Args:
        answer: The JSON value.
        prompt_tokens: Length of the prompt that was sent.
        max_new_tokens: As asked for.
        reserved: A turn that ends with `length` may lack this many of them.

    Raises:
        BoundaryError: at `Boundary.ENGINE`, naming the field, what was found and expected.
    """
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict):
        raise _wrong("no meta_info", answer)
    finish = _finish(meta.get("finish_reason"))
    # A request that was aborted while it waited has no counts.
    counted = finish != "abort" or meta.get("prompt_tokens") is not None
    if counted:
        _check_count(meta, "prompt_tokens", prompt_tokens)
    ids, logprobs = _tokens(meta.get("output_token_logprobs"), finish)
    if len(ids) > max_new_tokens:
        raise _wrong(f"{len(ids)} tokens where {max_new_tokens} were asked for", None)
    if finish == "length" and len(ids) < max(1, max_new_tokens - reserved):
        raise _wrong(
            f"the turn ended with length after {len(ids)} of {max_new_tokens} tokens: does the"
            " server have a smaller context?",
            None,
        )
    if counted or meta.get("completion_tokens") is not None:
        _check_count(meta, "completion_tokens", len(ids))
    kept = {key: value for key, value in meta.items() if key not in _BULKY and value is not None}
    for name, value in kept.items():
        _check_number(name, value)
    cached = kept.get("cached_tokens", 0)
    if type(cached) is not int or cached < 0:
        raise _wrong("cached_tokens is no count", cached)
    return SGLangCompletion(
        ids=ids,
        logprobs=logprobs,
        finish=finish,
        weight_version=_version(kept.get("weight_version")),
        cached_tokens=min(cached, prompt_tokens),
        meta=kept,
    )


def _finish(reason: object) -> Finish:
    kind = reason.get("type") if isinstance(reason, dict) else None
    if not isinstance(kind, str) or kind not in _FINISHES:
        raise _wrong("finish_reason is none of stop, length, abort", reason)
    assert isinstance(reason, dict)
    # SGLang ends a request that it failed to compute as an abort with a status.
    if reason.get("status_code"):
        raise _wrong("the request failed", reason)
    return _FINISHES[kind]


def _check_count(meta: Mapping[str, Any], name: str, expected: int) -> None:
    found = meta.get(name)
    if type(found) is not int or found != expected:
        raise _wrong(f"{name} is {str(found):.40}, expected {expected}", None)


def _check_number(name: str, value: object) -> None:
    """Refuses what a counter or a float32 can't hold; tokens and experts are not looked at."""
    if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise _wrong(f"{name} is a number that can't be", value)


def _version(found: object) -> int:
    """The version of the weights where it is a number, as slime's are; else 0."""
    text = str(found)
    if not (text.isascii() and text.isdecimal()):
        return 0
    if len(text) > len(str(MAX_NUMBER)):
        raise _wrong("weight_version is a number that can't be", text)
    return int(text)


def _tokens(entries: object, finish: Finish) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    if entries is None and finish == "abort":
        entries = []
    if not isinstance(entries, list):
        raise _wrong("output_token_logprobs is no list", entries)
    if not entries and finish == "stop":
        raise _wrong("output_token_logprobs is empty though the turn was ended", entries)
    ids, logprobs = [], []
    for place, entry in enumerate(entries):
        if not isinstance(entry, list) or len(entry) < 2:
            raise _wrong(f"output_token_logprobs[{place}] is no [log-prob, id]", entry)
        logprob, token = entry[0], entry[1]
        if type(token) is not int or not 0 <= token < 2**31:
            raise _wrong(f"output_token_logprobs[{place}] has no token id", entry)
        number = type(logprob) in (int, float)
        if not number or not MIN_LOGPROB <= logprob <= MAX_ROUNDING:
            raise _wrong(f"output_token_logprobs[{place}] has no log-prob", entry)
        ids.append(token)
        logprobs.append(min(logprob, 0.0))
    return np.array(ids, dtype=np.int32), np.array(logprobs, dtype=np.float32)


def _empty(finish: Finish) -> SGLangCompletion:
    return SGLangCompletion(np.empty(0, np.int32), np.empty(0, np.float32), finish)


def _wrong(what: str, found: object) -> BoundaryError:
    shown = "" if found is None else f": {str(found)[:200]}"
    return BoundaryError(Boundary.ENGINE, f"answer of /generate: {what}{shown}")
