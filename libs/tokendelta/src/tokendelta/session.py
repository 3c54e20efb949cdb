"""The record of one episode: prompt ids out, sampled ids in, environment messages in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tokendelta._core import Tokens
from tokendelta.continuation import environment_kind
from tokendelta.errors import (
    LengthError,
    LogprobError,
    RewriteError,
    SpecialTextError,
    StateError,
    TokenIdError,
)
from tokendelta.finalize import finalize
from tokendelta.probes import TurnKind
from tokendelta.profile import Profile
from tokendelta.rendering import ENVIRONMENT_ROLES, Message, Tool, check_messages
from tokendelta.sample import IntArray, Overflow, SampleSet
from tokendelta.segment import Block, Segment

Finish = Literal["stop", "length", "abort"]
OnRewrite = Literal["keep", "fork", "error"]
Specials = Literal["parity", "escape", "reject"]


class Session:
    """Exact token accounting of one episode.

    The order of calls is `start`, then `append_sampled` and `append_env` in turn, then `samples`.
    What was sampled is kept verbatim, and the prompt of turn k is a prefix of the record, bit for
    bit. A session is light: it holds the ids as int32, the log-probs of sampled tokens as float32
    and references to the messages. Any number of sessions may share one profile. A session is not
    thread-safe.
    """

    __slots__ = (
        "_history",
        "_profile",
        "_segments",
        "_state",
        "_tools",
        "_turn",
        "max_tokens",
        "on_rewrite",
        "rewrites",
        "specials",
    )

    def __init__(
        self,
        profile: Profile,
        *,
        tools: Sequence[Tool] | None = None,
        max_tokens: int | None = None,
        on_rewrite: OnRewrite = "keep",
        specials: Specials = "parity",
    ) -> None:
        """
        tools       given to the template; the profile's own tools if None, no tools if empty.
        max_tokens  the context of the engine: no segment grows beyond it.
        on_rewrite  where the template rewrites history: `keep` goes on with what the model saw,
                    `fork` starts a segment with the rewritten prompt, `error` raises RewriteError.
        specials    text from the environment that spells a special token: `parity` does what the
                    template would do, `escape` encodes it as ordinary text, `reject` raises
                    SpecialTextError.
        """
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}, it must be at least 1")
        if on_rewrite not in ("keep", "fork", "error"):
            raise ValueError(f"on_rewrite is {on_rewrite!r}; expected keep, fork or error")
        if specials not in ("parity", "escape", "reject"):
            raise ValueError(f"specials is {specials!r}; expected parity, escape or reject")
        self._profile = profile
        self._tools = profile.tools if tools is None else (list(tools) or None)
        self.max_tokens = max_tokens
        self.on_rewrite = on_rewrite
        self.specials = specials
        self._history: list[dict[str, Any]] = []
        self._segments: list[Segment] = []
        self._state = "new"
        self._turn = 0
        self.rewrites: list[int] = []

    def start(self, messages: Sequence[Message]) -> IntArray | Overflow:
        """Render the first messages with the generation prompt.

        Returns the prompt, a read-only int32[n] view, or Overflow if it has more than max_tokens.
        Raises StateError if the session has started, MessageError for messages that cannot stand
        first, TemplateError if the template raises.
        """
        if self._state != "new":
            raise StateError("start: the session has started; make a new session for each episode")
        checked = check_messages(messages, where="start")
        text = self._profile.prompt_text(checked, self._tools)
        ids = self._profile.encoder.encode(text)
        if self.max_tokens is not None and len(ids) > self.max_tokens:
            return Overflow(len(ids), self.max_tokens, self.max_tokens)
        segment = Segment(Tokens(len(ids) + len(ids) // 4 + 512))
        segment.append_context(ids, "prompt", 0)
        self._segments.append(segment)
        self._history = checked
        self._state = "prompted"
        return self.prompt

    @property
    def prompt(self) -> IntArray:
        """All ids of the current segment so far: read-only int32[n], not copied."""
        tokens = self._segments[-1].tokens
        return tokens.view(0, tokens.size)

    @property
    def remaining(self) -> int | None:
        """Tokens until max_tokens, or None without a limit."""
        if self.max_tokens is None:
            return None
        used = self._segments[-1].tokens.size if self._segments else 0
        return self.max_tokens - used

    @property
    def turns(self) -> int:
        """Turns that were sampled."""
        return self._turn

    def append_sampled(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        finish: Finish = "stop",
        *,
        message: Message | None = None,
    ) -> Overflow | None:
        """Append what the engine sampled, verbatim.

        ids       the engine's ids, with the stop token if the engine gives it.
        logprobs  float for each id, natural logarithm, at most 0.
        finish    "stop", "length" or "abort"; after the last two the turn may be continued by
                  another call.
        message   the turn as a message, parsed: needed only where the template looks at tool calls
                  or rewrites history. Without it the decoded ids are the content.

        Returns None, or Overflow with nothing appended. Raises StateError without a prompt,
        LengthError, TokenIdError and LogprobError with the turn and the index.
        """
        turn = self._turn
        if self._state not in ("prompted", "open"):
            raise StateError(
                f"append_sampled: turn {turn} has no prompt; call start or append_env first"
            )
        if finish not in ("stop", "length", "abort"):
            raise StateError(f"finish is {finish!r}; expected stop, length or abort")
        count = len(ids)
        if len(logprobs) != count:
            raise LengthError(
                f"turn {turn}: {count} ids but {len(logprobs)} log-probs; give one for each id"
            )
        segment = self._segments[-1]
        tokens = segment.tokens
        if self.max_tokens is not None and tokens.size + count > self.max_tokens:
            return Overflow(count, self.max_tokens - tokens.size, self.max_tokens)
        refused = tokens.append_sampled(ids, logprobs, self._profile.vocab_size)
        if refused is not None:
            self._raise_refused(turn, refused, ids, logprobs)
        segment.add_sampled(turn, count, finish)
        if message is not None:
            segment.message = check_messages([message], where=f"turn {turn}")[0]
        self._state = "sampled" if finish == "stop" else "open"
        if finish == "stop":
            self._turn += 1
        return None

    def append_env(self, messages: Sequence[Message]) -> IntArray | Overflow:
        """Append the environment's answer and the next generation prompt, all with mask 0.

        Give all messages between two sampled turns in one call: templates wrap a group of tool
        results as one. Returns the next prompt, a read-only int32[n] view, or Overflow with
        nothing appended. Raises StateError without a sampled turn, MessageError, TemplateError,
        SpecialTextError and RewriteError with the session unchanged.
        """
        if self._state not in ("sampled", "open"):
            raise StateError("append_env: no turn was sampled since the last prompt")
        turn = self._turn if self._state == "sampled" else self._turn + 1
        checked = check_messages(messages, where=f"turn {turn}", roles=ENVIRONMENT_ROLES)
        self._check_specials(checked, turn)
        profile = self._profile
        segment = self._segments[-1]
        last = segment.blocks[-1]
        assistant = self._assistant_message(segment, last)
        history = [*self._history, assistant]
        kind = self._turn_kind(assistant, environment_kind(checked))
        rule = profile.continuations.rule(kind, environment_kind(checked))
        rewritten = rule.append_only is False
        if rewritten and self.on_rewrite == "error":
            raise RewriteError(
                f"turn {turn}: the template rewrites history where {kind} is followed by"
                f" {environment_kind(checked)}"
            )
        if rewritten and self.on_rewrite == "fork":
            prompt = self._fork([*history, *checked], turn)
            if isinstance(prompt, Overflow):
                return prompt
        else:
            continuation = profile.continuations.text(kind, history, checked, self._tools)
            ids = profile.encoder.encode(continuation.text)
            skip = 0
            if ids and segment.tokens[-1] in profile.stop_ids and ids[0] in profile.stop_ids:
                skip = 1
            needed = len(ids) - skip
            size = segment.tokens.size
            if self.max_tokens is not None and size + needed > self.max_tokens:
                return Overflow(needed, self.max_tokens - size, self.max_tokens)
            segment.append_context(ids[skip:] if skip else ids, "environment", turn)
        if rewritten:
            self.rewrites.append(turn)
        self._history = [*history, *checked]
        self._turn = turn
        self._state = "prompted"
        return self.prompt

    def samples(self, max_len: int | None = None) -> SampleSet:
        """Everything that can be trained, one sample a segment.

        max_len cuts a sample at the end of the last span that fits. Every sampled token is in
        exactly one sample with mask 1, or in `.dropped` with its reason.
        """
        if max_len is not None and max_len < 1:
            raise ValueError(f"max_len is {max_len}, it must be at least 1")
        return finalize(self._segments, max_len)

    def _fork(self, history: list[dict[str, Any]], turn: int) -> Overflow | None:
        ids = self._profile.encoder.encode(self._profile.prompt_text(history, self._tools))
        if self.max_tokens is not None and len(ids) > self.max_tokens:
            return Overflow(len(ids), self.max_tokens, self.max_tokens)
        segment = Segment(Tokens(len(ids) + len(ids) // 4 + 512))
        segment.append_context(ids, "prompt", turn)
        self._segments.append(segment)
        return None

    def _assistant_message(self, segment: Segment, last: Block) -> dict[str, Any]:
        if segment.message is not None:
            return segment.message
        tokens = segment.tokens
        stop = last.stop
        if stop > last.start and tokens[stop - 1] in self._profile.stop_ids:
            stop -= 1
        text = self._profile.tokenizer.decode(
            tokens.view(last.start, stop).tolist(), skip_special_tokens=False
        )
        return {"role": "assistant", "content": text}

    def _turn_kind(self, assistant: dict[str, Any], env: str) -> TurnKind:
        content = assistant.get("content")
        text = content if isinstance(content, str) else ""
        thinks = bool(assistant.get("reasoning_content")) or "</think>" in text
        calls = bool(assistant.get("tool_calls")) or env == "tool"
        if calls:
            return "think_call" if thinks else "call"
        return "think" if thinks else "text"

    def _check_specials(self, messages: list[dict[str, Any]], turn: int) -> None:
        if self.specials == "parity":
            return
        for index, message in enumerate(messages):
            content = message.get("content")
            match = self._profile.specials.find(content) if isinstance(content, str) else None
            if match is not None:
                raise SpecialTextError(
                    f"turn {turn}: message {index} spells the special token {match.group()!r} at"
                    f" character {match.start()}"
                )

    def _raise_refused(
        self,
        turn: int,
        refused: tuple[str, int],
        ids: Sequence[int],
        logprobs: Sequence[float],
    ) -> None:
        stream, index = refused
        if stream == "id":
            limit = self._profile.vocab_size or int(np.iinfo(np.int32).max)
            raise TokenIdError(
                f"turn {turn}: id {ids[index]!r} at index {index} is not in 0..{limit - 1}; if the"
                " model's output layer is larger than the tokenizer, give Profile its vocab_size"
            )
        raise LogprobError(
            f"turn {turn}: log-prob {logprobs[index]!r} at index {index} is not a finite number of"
            " at most 0"
        )
