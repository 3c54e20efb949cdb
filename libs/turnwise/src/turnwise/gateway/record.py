"""The turns of one rollout whose program is not ours to change.

1. A request's whole history finds its place in the `tokendelta.Tree`: it extends, forks, begins
   anew, or gets an earlier answer again. Text that comes back is compared and never encoded again
   for a sampled turn.
2. Turn k is drawn with `derive_seed(rollout.seed, "turn", k)`, as in a `Conversation`.
3. Sampling is a task of its own: a client that leaves has `grace_s` to send the request again and
   join it; then it is cancelled.
4. Only turns whose answer was handed over whole, or that a later history holds, are trained.
5. A failure of the engine ends the record: its error is kept, and every later request is refused,
   since no reward can speak of what the policy would have said.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import tokendelta
import toolparse

from turnwise.conversation import Overflow, Turn
from turnwise.engine import Completion, GrammarRefused, takes_grammar
from turnwise.episode import Boundary, BoundaryError, Limit, crossing
from turnwise.gateway.bodies import Bodies
from turnwise.gateway.fields import not_exactly
from turnwise.gateway.handles import Handles
from turnwise.gateway.reading import cut_at_stop, read, tokens_of
from turnwise.gateway.requests import Answer, Head, Refusal, Request, Schema
from turnwise.gateway.turns import Bounds, Given, Sampling, Told, prepared, transcript_of
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed
from turnwise.rounds import own_round

RELEASE_DEADLINE_S = 10.0
MAX_IGNORED = 64
_FIELD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# What failed may name the engine's address, which is not for clients.
_LOST = "the engine failed, and the rollout is lost"
COUNTS = (
    "requests", "turns", "prompt_tokens", "sampled_tokens", "cached_tokens", "cut_turns",
    "tool_calls", "parse_errors", "replays", "forks", "refused", "unmet_tool_choice",
    "constrained_turns", "forged_handles",
)  # fmt: skip


class Record:
    """Samples the turns of a rollout and keeps them.

    Attributes:
        tree: The tokens.
        bodies: Reads what its program sends.
        counts: By the names in `COUNTS`, `parse_errors/KIND`, `refused/CODE`, `overridden/FIELD`
            and `ignored/FIELD`.
        failure: Why the rollout is lost; None while it is not.
        failed: Is set with it.
        limit: The bound that the policy last ran into; None after a whole turn.
        aborted: The engine gave a turn back unfinished.
        engine_s: Seconds of sampling.
        release_error: Why the engine did not release a session.
    """

    def __init__(self, policy: Policy, rollout: Rollout[Any], bounds: Bounds, key: bytes) -> None:
        """`key` signs what a client sends back."""
        self.policy, self.rollout, self.bounds = policy, rollout, bounds
        self.tree = tokendelta.Tree(
            policy.profile, max_tokens=policy.max_context_tokens, on_rewrite=policy.on_rewrite
        )
        self.bodies = Bodies(self.tree)
        self.counts: Counter[str] = Counter()
        self.failure: BoundaryError | None = None
        self.failed = asyncio.Event()
        self.limit: Limit | None = None
        self._needed = 0
        self.aborted = False
        self.engine_s = 0.0
        self.release_error: str | None = None
        self.weight_versions: set[int] = set()
        self._handles = Handles(key)
        self._open = 0
        self._tokens = asyncio.Lock()
        self._sampling: dict[int, Sampling] = {}
        self._told: dict[int, Told] = {}
        self._sessions: set[str] = set()
        self._closed = False
        self._samples: tokendelta.SampleSet | None = None

    async def ask(
        self,
        request: Request,
        *,
        retry: bool = False,
        begun: Callable[[Head], None] = lambda head: None,
    ) -> Given:
        """The turn that a request asks for.

        Args:
            request: As its dialect reads it.
            retry: The client marks it as sent again.
            begun: Is told how the answer begins, if it is waited for.

        Raises:
            Refusal: there is none.
            asyncio.CancelledError: the client left.
        """
        self._check_open()
        self._samples = None
        self.counts["requests"] += 1
        for name in request.overridden:
            self.counts[f"overridden/{name}"] += 1
        for name in request.ignored:
            self.counts[self._ignored(name)] += 1
        self._open += 1
        try:
            ticket = await self._place(request, retry)
            answer = await self._wait(ticket, begun)
            if request.logprobs:
                answer = replace(answer, tokens=tokens_of(self.policy, answer.completion))
            return Given(self, ticket, answer)
        finally:
            self._open -= 1

    def refuse(self, error: Refusal) -> None:
        """Counts a refusal."""
        self.counts["refused"] += 1
        self.counts[f"refused/{error.code}"] += 1

    async def prompt_tokens(self, request: Request) -> int:
        """Tokens of a request's history, rendered as a first one.

        Raises:
            Refusal: it can't be rendered.
        """
        try:
            found = await prepared(tokendelta.Tree(self.policy.profile), request)
        except (tokendelta.TokenDeltaError, RecursionError) as error:
            raise Refusal(400, str(error)) from error
        assert isinstance(found, tokendelta.Ticket), "there is no bound"
        return len(found.prompt)

    @property
    def busy(self) -> bool:
        """Whether a turn is being sampled."""
        return bool(self._sampling)

    async def close(self) -> None:
        """Ends what is under way and releases the engine's sessions."""
        self._closed = True
        async with self._tokens:
            pass
        tasks = [one.task for one in self._sampling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            async with crossing(Boundary.ENGINE, deadline_s=RELEASE_DEADLINE_S):
                for session in sorted(self._sessions):
                    await self.policy.engine.release(session)
        except BoundaryError as error:
            self.release_error = str(error)

    def _check_open(self) -> None:
        if self.failure is not None:
            raise Refusal(503, _LOST, code="engine_failed")
        if self._closed or self.aborted:
            raise Refusal(410, "the rollout is over", code="rollout_over")
        if self._open >= self.bounds.max_open:
            raise Refusal(
                429,
                f"{self._open} requests of this rollout are under way, at most"
                f" {self.bounds.max_open}",
                code="too_many_requests",
                retry_after_s=1,
            )

    async def _place(self, request: Request, retry: bool) -> tokendelta.Ticket:
        """The request's turn; a new one is being sampled then."""
        if request.schema is not None:
            self._check_grammar(request, request.schema)
        try:
            toolset = self.bodies.toolset(request.tools) if request.parse else None
            async with self._tokens:
                found = await prepared(self.tree, request, retry)
        except (tokendelta.TokenDeltaError, RecursionError) as error:
            raise Refusal(400, str(error)) from error
        if isinstance(found, tokendelta.Overflow):
            raise self._overflow(found.limit - found.available + found.needed)
        for message in request.messages[found.agreed :]:
            self.counts["forged_handles"] += self._handles.forged(message)
        if found.decision == "replay":
            self.counts["replays"] += 1
            return found
        refused: Refusal | None = None
        if self._closed:
            refused = Refusal(410, "the rollout is over", code="rollout_over")
        elif len(found.prompt) >= self.policy.max_context_tokens:
            refused = self._overflow(len(found.prompt) + 1)
        elif self.counts["turns"] + len(self._sampling) >= self.bounds.max_turns:
            self.limit = Limit.TURNS
            refused = Refusal(
                400,
                f"this rollout has had its {self.bounds.max_turns} turns",
                code="turn_limit_reached",
            )
        if refused is not None:
            self.tree.abandon(found, str(refused))
            raise refused
        self.counts["forks"] += found.decision == "fork"
        task = asyncio.create_task(self._sample(found, request, toolset))
        head = Head(id=self._handles.make(f"{found.turn:x}"), created=int(time.time()))
        self._sampling[found.turn] = Sampling(task, head)
        task.add_done_callback(lambda done: self._ended(found.turn, done))
        return found

    def _check_grammar(self, request: Request, schema: Schema) -> None:
        if not takes_grammar(self.policy.engine):
            raise not_exactly(schema.where, schema.text, "this engine takes no grammar")
        if request.tools and request.parse:
            why = "under a grammar no tool can be called; send tool_choice none"
            raise not_exactly(schema.where, schema.text, why)

    def _ended(self, turn: int, task: asyncio.Task[Answer]) -> None:
        sampling = self._sampling.pop(turn)
        if sampling.leaving is not None:
            sampling.leaving.cancel()
        if not task.cancelled():
            task.exception()

    async def _wait(self, ticket: tokendelta.Ticket, begun: Callable[[Head], None]) -> Answer:
        sampling = self._sampling.get(ticket.turn)
        if sampling is None:
            return self._told[ticket.turn].answer
        begun(sampling.head)
        sampling.waiting += 1
        if sampling.leaving is not None:
            sampling.leaving.cancel()
            sampling.leaving = None
        try:
            return await asyncio.shield(sampling.task)
        except asyncio.CancelledError:
            if sampling.task.cancelled():
                raise Refusal(410, "the rollout is over", code="rollout_over") from None
            if ticket.status != "abandoned":
                self.tree.undelivered(ticket, "the client left")
            raise
        finally:
            sampling.waiting -= 1
            if not sampling.waiting and not sampling.task.done():
                loop = asyncio.get_running_loop()
                sampling.leaving = loop.call_later(self.bounds.grace_s, sampling.task.cancel)

    async def _sample(
        self, ticket: tokendelta.Ticket, request: Request, toolset: toolparse.ToolSet | None
    ) -> Answer:
        prompt, policy = ticket.prompt, self.policy
        session = f"{self.rollout.rollout_id}/{ticket.slot.segment.number}"
        self._sessions.add(session)
        room = policy.max_context_tokens - len(prompt)
        params = replace(
            policy.sampling,
            seed=derive_seed(self.rollout.seed, "turn", ticket.turn),
            max_new_tokens=min(policy.sampling.max_new_tokens, room, request.max_tokens or room),
            stop=request.stops,
            json_schema=None if request.schema is None else request.schema.text,
        )
        started = time.perf_counter()
        try:
            async with crossing(Boundary.ENGINE, deadline_s=self.bounds.turn_deadline_s):
                completion = await policy.engine.generate(prompt, params, session_id=session)
            await own_round()
            async with self._tokens, crossing(Boundary.ENGINE):
                found = self._commit(ticket, request, toolset, completion)
        except GrammarRefused as error:
            assert request.schema is not None, "a grammar was asked for"
            self.tree.abandon(ticket, str(error))
            raise Refusal(400, f"{request.schema.where}: {error}", code="invalid_json_schema",
                          field=request.schema.where) from error  # fmt: skip
        except BoundaryError as error:
            self._lose(ticket, error)
            raise Refusal(503, _LOST, code="engine_failed") from error
        except asyncio.CancelledError:
            self.tree.abandon(ticket, "cancelled: its client left, or the rollout ended")
            raise
        finally:
            self.engine_s += time.perf_counter() - started
        if self.aborted:
            raise Refusal(410, "the trainer ended this rollout", code="rollout_over")
        return found

    def _commit(
        self,
        ticket: tokendelta.Ticket,
        request: Request,
        toolset: toolparse.ToolSet | None,
        completion: Completion,
    ) -> Answer:
        if not len(completion.ids) and completion.finish != "abort":
            raise ValueError(f"no token sampled, and the finish is {completion.finish}")
        cut = cut_at_stop(self.policy, completion, request.stops)
        turn, own, message = read(
            self.policy,
            toolset,
            cut,
            number=ticket.turn,
            prompt_tokens=len(ticket.prompt),
            call_id=lambda k: f"call_{self._handles.make(f'{ticket.turn:x}_{k:x}')}",
        )
        completion, head = cut.completion, self._sampling[ticket.turn].head
        overflow = self.tree.commit(
            ticket,
            completion.ids,
            completion.logprobs,
            completion.finish,
            message={**message, "handle": head.id},
            own=own if own.get("tool_calls") else None,
            stops=() if cut.stop is None else (cut.stop,),
            constrained=request.schema is not None,
        )
        if overflow is not None:
            raise ValueError(f"{turn.tokens} tokens sampled where {overflow.available} fit")
        found = Answer(
            id=head.id,
            created=head.created,
            turn=turn,
            message=message,
            stop=cut.stop,
            completion=completion,
        )
        self._told[ticket.turn] = Told(request.messages[ticket.agreed :], found)
        self._count(turn, request, completion)
        self.limit, self.aborted = turn.limit, completion.finish == "abort"
        return found

    def _ignored(self, name: str) -> str:
        """A field's place in the counts: a client's words name a bounded number of them."""
        key = f"ignored/{name}"
        if key in self.counts:
            return key
        known = sum(one.startswith("ignored/") for one in self.counts)
        return key if known < MAX_IGNORED and _FIELD.fullmatch(name) else "ignored/other"

    def _count(self, turn: Turn, request: Request, completion: Completion) -> None:
        counts = self.counts
        counts["turns"] += 1
        counts["prompt_tokens"] += turn.prompt_tokens
        counts["sampled_tokens"] += turn.tokens
        counts["cached_tokens"] += completion.cached_tokens
        counts["cut_turns"] += turn.finish == "length"
        counts["constrained_turns"] += request.schema is not None
        if turn.tokens:
            # A request that was aborted while it waited says none.
            self.weight_versions.add(completion.weight_version)
        if turn.finish != "stop":
            return
        counts["tool_calls"] += len(turn.calls)
        counts["unmet_tool_choice"] += request.demands_call and not turn.calls
        for error in turn.errors:
            counts["parse_errors"] += 1
            counts[f"parse_errors/{error.kind}"] += 1

    def _lose(self, ticket: tokendelta.Ticket, error: BoundaryError) -> None:
        if ticket.status == "open":
            self.tree.abandon(ticket, str(error))
        self.failure = self.failure or error
        self.failed.set()

    def _overflow(self, needed: int) -> Refusal:
        self.limit = Limit.CONTEXT
        self._needed = needed
        return Refusal(
            400,
            f"the history takes {needed} tokens, and the context length is"
            f" {self.policy.max_context_tokens}",
            code="context_length_exceeded",
            field="messages",
        )

    def samples(self) -> tokendelta.SampleSet:
        """What can be trained, and what can't with its reason."""
        if self._samples is None:
            self._samples = self.tree.samples(constrained=self.bounds.constrained)
        return self._samples

    def transcript(self) -> list[dict[str, Any]]:
        """Messages in the order of turns, as in `Conversation.transcript`."""
        return transcript_of(self._told, self.samples().samples)

    def metrics(self) -> dict[str, float]:
        """`counts`, `segments`, `dropped_tokens`, `rewrites` and `engine_s` in seconds."""
        found = self.samples()
        return {
            **dict.fromkeys(COUNTS, 0.0),
            **{name: float(count) for name, count in self.counts.items()},
            "segments": float(len(found.samples)),
            "dropped_tokens": float(sum(drop.tokens for drop in found.dropped)),
            "rewrites": float(len(self.tree.rewrites)),
            "engine_s": self.engine_s,
        }

    def info(self) -> dict[str, Any]:
        """JSON-able facts for the trace, as of `Conversation.info`."""
        return {
            "seed": self.rollout.seed,
            "weight_versions": sorted(self.weight_versions),
            "release_error": self.release_error,
            "dropped": [asdict(drop) for drop in self.samples().dropped],
            "rewrites": [asdict(rewrite) for rewrite in self.tree.rewrites],
            **self._first_prompt(),
        }

    def _first_prompt(self) -> dict[str, Any]:
        if self.counts["turns"] or self.limit is not Limit.CONTEXT:
            return {}
        limit = self.policy.max_context_tokens
        return {"first_prompt": asdict(Overflow(self._needed, limit))}
