"""The record of one episode: prompt ids out, sampled ids in, environment messages in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from tokendelta import answering, branching
from tokendelta._core import CHECKED, Tokens
from tokendelta.errors import (
    LengthError,
    SpecialTextError,
    StateError,
    TokenIdError,
)
from tokendelta.finalize import finalize
from tokendelta.inputs import as_list, check_choice, raise_refused, side_rows
from tokendelta.invariants import check_session
from tokendelta.probes import Messages
from tokendelta.profile import Profile, Reasoning
from tokendelta.rendering import ENVIRONMENT_ROLES, Message, Tool, check_messages
from tokendelta.sample import Drift, Drop, Ingest, IntArray, Overflow, Rewrite, SampleSet
from tokendelta.segment import Block, Finish, Segment, Turn

OnRewrite = Literal["keep", "fork", "error"]
Specials = Literal["parity", "escape", "reject"]
Verify = Literal["always", "sampled", "never"]
State = Literal["new", "prompted", "open", "sampled"]

# verify="sampled" looks at one answer in so many.
VERIFY_ONE_IN = 16


class Session:
    """Exact token accounting of one episode.

    The order of calls is `start`, then `append_sampled` and `append_env` in turn, then `samples`.
    What was sampled is kept verbatim, and the prompt of turn k is a prefix of the record, bit for
    bit. A session is light: it holds the ids as int32, the log-probs of sampled tokens as float32
    and references to the messages. Any number of sessions may share one profile. A session is not
    thread-safe.
    """

    __slots__ = (
        "_blind",
        "_dropped",
        "_env_count",
        "_profile",
        "_reasoned",
        "_segment",
        "_segments",
        "_state",
        "_tools",
        "_turn",
        "_turns",
        "drifts",
        "max_tokens",
        "on_rewrite",
        "rewrites",
        "specials",
        "verify",
    )

    def __init__(
        self,
        profile: Profile,
        *,
        tools: Sequence[Tool] | None = None,
        max_tokens: int | None = None,
        on_rewrite: OnRewrite = "keep",
        specials: Specials = "parity",
        verify: Verify = "never",
    ) -> None:
        """
        tools       given to the template; the profile's own tools if None, no tools if empty.
        max_tokens  the context of the engine: no segment grows beyond it.
        on_rewrite  where the template rewrites history: `keep` goes on with what the model saw,
                    `fork` starts a segment with the rewritten prompt, `error` raises RewriteError.
        specials    text of user and tool messages that spells a special token: `parity` does what
                    the template would do, `escape` encodes it as ordinary text, `reject` raises
                    SpecialTextError.
        verify      compare each prompt, or one in 16, with a full render and note differences in
                    `drifts`. Costs a render and an encoding of the whole conversation.
        """
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}, it must be at least 1")
        check_choice("on_rewrite", on_rewrite, ("keep", "fork", "error"))
        check_choice("specials", specials, ("parity", "escape", "reject"))
        check_choice("verify", verify, ("always", "sampled", "never"))
        self._profile = profile
        self._tools = profile.tools if tools is None else (list(tools) or None)
        self.max_tokens = max_tokens
        self.on_rewrite = on_rewrite
        self.specials = specials
        self.verify = verify
        self._segments: list[Segment] = []
        self._segment: Segment | None = None
        self._state: State = "new"
        self._turn: Turn | None = None
        self._turns = 0
        self._reasoned: Reasoning = "none"
        self._env_count = 0
        self._blind = False
        self._dropped: list[Drop] = []
        self.rewrites: list[Rewrite] = []
        self.drifts: list[Drift] = []

    @property
    def prompt(self) -> IntArray:
        """All ids of the current segment so far: read-only int32[n], not copied.

        Raises StateError before `start`.
        """
        tokens = self._current("prompt").tokens
        return tokens.view(0, tokens.size)

    @property
    def remaining(self) -> int | None:
        """Tokens until max_tokens, or None without a limit."""
        if self.max_tokens is None:
            return None
        return self.max_tokens - (self._segment.tokens.size if self._segment else 0)

    @property
    def turns(self) -> int:
        """Turns that were sampled, over all segments."""
        return self._turns

    @property
    def segments(self) -> int:
        """Token sequences that the session holds: 1, and 1 more for each fork."""
        return len(self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the token and log-prob buffers."""
        return sum(segment.tokens.nbytes for segment in self._segments)

    def start(self, messages: Sequence[Message]) -> IntArray | Overflow:
        """Render the first messages with the generation prompt.

        Returns the prompt, a read-only int32[n] view, or Overflow if it has more than max_tokens.
        Raises StateError if the session has started, MessageError for messages that cannot stand
        first, TemplateError if the template raises, SpecialTextError by policy.
        """
        if self._state != "new":
            raise StateError("start: the session has started; make a new session for each episode")
        checked = self._apply_specials(check_messages(messages, "start, before turn"), 0)
        return self._open_segment(checked)

    def append_sampled(
        self,
        ids: Sequence[int] | ArrayLike,
        logprobs: Sequence[float] | ArrayLike,
        finish: Finish = "stop",
        *,
        message: Message | None = None,
        side: Mapping[str, ArrayLike] | None = None,
        text: str | None = None,
        prompt_tokens: int | None = None,
    ) -> Overflow | None:
        """Append what the engine sampled, verbatim.

        ids       the engine's ids, with the stop token if the engine gives it.
        logprobs  float for each id, natural logarithm, at most 0.
        finish    "stop", "length" or "abort"; after the last two the turn may be continued by
                  another call.
        message   the turn as a message, parsed: needed where the template looks at tool calls or
                  rewrites history. Without it the decoded ids are the content.
        side      further streams: a scalar for all ids, or one row for each id.
        text      the engine's own text of the ids: compared with theirs, for engines that return
                  other ids than they sampled.
        prompt_tokens  the engine's count of the prompt: compared with the session's, for engines
                  that encode the prompt again.

        Returns None, or Overflow with nothing appended. Raises StateError without a prompt,
        LengthError, TokenIdError and LogprobError with the turn and the index.
        """
        if self._state not in ("prompted", "open"):
            raise StateError(
                f"append_sampled: turn {self._turns} has no prompt; call start or append_env first"
            )
        if finish not in ("stop", "length", "abort"):
            raise StateError(f"finish is {finish!r}; expected stop, length or abort")
        turn = self._turn if self._state == "open" else None
        number = self._turns if turn is None else turn.number
        sampled = ids if isinstance(ids, list) else as_list(ids)
        scores = logprobs if isinstance(logprobs, list) else as_list(logprobs)
        count = len(sampled)
        if len(scores) != count:
            raise LengthError(
                f"turn {number}: {count} ids but {len(scores)} log-probs; give one for each id"
            )
        if prompt_tokens is not None:
            self._check_prompt(prompt_tokens, number)
        if text is not None:
            self._check_text(text, sampled, number)
        rows = side_rows(side, count, number) if side else None
        checked = check_messages([message], "turn", number)[0] if message else None
        segment = self._current("append_sampled")
        tokens = segment.tokens
        if self.max_tokens is not None and tokens.size + count > self.max_tokens:
            return Overflow(count, self.max_tokens - tokens.size, self.max_tokens)
        refused = tokens.append_sampled(sampled, scores, self._profile.vocab_size)
        if refused is not None:
            raise_refused(number, refused, sampled, scores, self._profile.vocab_size)
        if turn is None:
            turn = Turn(number, finish)
            self._turn = turn
            self._turns += 1
        turn.finish = finish
        segment.add_sampled(turn, count)
        if checked is not None:
            turn.message = checked
        if rows is not None:
            offset = tokens.size - count - segment.blocks[-1].start
            added = [(name, offset, values) for name, values in rows.items()]
            turn.side = [*(turn.side or ()), *added]
        self._state = "sampled" if finish == "stop" else "open"
        if CHECKED:
            check_session(self)
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
        checked = check_messages(messages, "before turn", self._turns, ENVIRONMENT_ROLES)
        if self.specials != "parity":
            checked = self._apply_specials(checked, self._turns)
        return self._answer(self._current("append_env"), checked)

    def _answer(self, segment: Segment, checked: Messages) -> IntArray | Overflow:
        prompt = answering.answer(self, segment, checked)
        if isinstance(prompt, Overflow):
            return prompt
        self._turn = None
        self._state = "prompted"
        if self.verify != "never":
            self._env_count += 1
            if self.verify == "always" or self._env_count % VERIFY_ONE_IN == 1:
                self._compare(self._current("verify"))
        if CHECKED:
            check_session(self)
        return prompt

    def sync(self, messages: Sequence[Message]) -> IntArray | Overflow:
        """Bring the record in line with a whole history, as an OpenAI-style client sends it.

        The longest recorded history that the messages agree with is extended; where they leave it
        earlier, the session rolls back to that prompt in a new segment; where they agree with
        nothing, a new segment starts. Sampled turns stay as they were sampled, however the client
        writes them down. Returns the prompt, read-only int32[n], or Overflow with nothing changed.
        """
        return branching.sync(self, messages)

    def ingest(
        self,
        prompt_ids: Sequence[int] | ArrayLike,
        output_ids: Sequence[int] | ArrayLike,
        logprobs: Sequence[float] | ArrayLike,
        finish: Finish = "stop",
        *,
        message: Message | None = None,
    ) -> Ingest | Overflow:
        """Record one call of an engine from its own ids.

        The prompt is compared with all segments, and the one that agrees longest is taken:
        `clean` extends it; `overlap` is a prompt that was recorded before; `drift` differs inside
        of a sampled turn, `fork` elsewhere. All but `clean` start a segment that shares the turns
        which agree, so nothing that was sampled is lost or trained twice.
        """
        return branching.ingest(self, prompt_ids, output_ids, logprobs, finish, message)

    def samples(self, max_len: int | None = None) -> SampleSet:
        """Everything that can be trained, one sample a segment.

        max_len cuts a sample at the end of the last span that fits. Every sampled token is in
        exactly one sample with mask 1, or in `.dropped` with its reason.
        """
        if max_len is not None and max_len < 1:
            raise ValueError(f"max_len is {max_len}, it must be at least 1")
        return finalize(self._profile, self._segments, self._dropped, max_len)

    def _current(self, what: str) -> Segment:
        if self._segment is None:
            raise StateError(f"{what}: call start first")
        return self._segment

    def _open_segment(self, messages: Messages) -> IntArray | Overflow:
        """A new segment whose context is the render of the messages."""
        ids = self._profile.encode_prompt(messages, self._tools, self.specials == "escape")
        if self.max_tokens is not None and len(ids) > self.max_tokens:
            return Overflow(len(ids), self.max_tokens, self.max_tokens)
        segment = Segment(Tokens(len(ids) + len(ids) // 4 + 256), len(self._segments))
        segment.append_context(ids, "prompt", self._turns)
        segment.messages.extend(messages)
        self._segments.append(segment)
        self._enter(segment)
        return segment.tokens.view(0, segment.tokens.size)

    def _enter(self, segment: Segment) -> None:
        """Make a segment that ends in a prompt the current one."""
        if not segment.marks or segment.marks[-1].tokens != segment.tokens.size:
            segment.mark()
        self._segment = segment
        self._turn = None
        self._reasoned = "none"
        self._state = "prompted"
        if CHECKED:
            check_session(self)

    def _compare(self, segment: Segment) -> None:
        """Note where the record leaves a full render of the same conversation."""
        messages = self._messages(segment)
        ids = np.array(
            self._profile.encode_prompt(messages, self._tools, self.specials == "escape"),
            dtype=np.int32,
        )
        drift = branching.first_drift(segment, ids)
        if drift is not None:
            self.drifts.append(drift)

    def _check_prompt(self, prompt_tokens: int, turn: int) -> None:
        segment = self._current("append_sampled")
        size = segment.marks[-1].tokens if segment.marks else segment.tokens.size
        if prompt_tokens != size:
            raise LengthError(
                f"turn {turn}: the engine counted {prompt_tokens} prompt tokens, the session sent"
                f" {size}; send ids, not text, and see whether the engine encodes them again"
            )

    def _check_text(self, text: str, ids: list[Any], turn: int) -> None:
        stops = self._profile.stop_ids
        tokenizer = self._profile.tokenizer
        whole = str(tokenizer.decode(ids, skip_special_tokens=False))
        bare = ids[:-1] if ids and ids[-1] in stops else ids
        plain = str(tokenizer.decode(bare, skip_special_tokens=True))
        cut = str(tokenizer.decode(bare, skip_special_tokens=False))
        if text not in (whole, plain, cut):
            raise TokenIdError(
                f"turn {turn}: the ids decode to {whole[:80]!r}, the engine's text is"
                f" {text[:80]!r}; its ids are not what it sampled"
            )

    def _messages(self, segment: Segment) -> Messages:
        """The conversation of a segment, sampled turns as their message or their decoded text."""
        if self._blind:
            raise StateError(
                "the template needs the messages of this conversation, but its prompts came as ids"
                " through ingest; go on with ingest"
            )
        return [
            self._decoded(segment, entry) if isinstance(entry, Block) else entry
            for entry in segment.messages
        ]

    def _decoded(self, segment: Segment, block: Block) -> dict[str, Any]:
        if block.turn is not None and block.turn.message is not None:
            return block.turn.message
        text = self._profile.decode(segment.tokens, block.start, block.stop)
        return {"role": "assistant", "content": text}

    def _apply_specials(self, messages: Messages, turn: int) -> Messages:
        """The messages by the policy for text that spells a special token."""
        if self.specials == "parity":
            return messages
        result = []
        for index, message in enumerate(messages):
            content = message.get("content")
            if message["role"] in ("user", "tool") and content:
                where = f"turn {turn}: message {index}"
                if isinstance(content, str):
                    message = {**message, "content": self._apply_to_text(content, where)}
                else:
                    parts = [
                        {**part, "text": self._apply_to_text(part["text"], where)}
                        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
                        else part
                        for part in content
                    ]
                    message = {**message, "content": parts}
            result.append(message)
        return result

    def _apply_to_text(self, text: str, where: str) -> str:
        match = self._profile.specials.find(text)
        if match is None:
            return text
        if self.specials == "reject":
            raise SpecialTextError(
                f"{where} spells the special token {match.group()!r} at character"
                f' {match.start()}; change the text, or take specials="escape"'
            )
        return self._profile.specials.broken(text)
