"""The record of one episode: prompt ids out, sampled ids in, environment messages in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from numpy.typing import ArrayLike

from tokendelta import answering, branching, ingesting
from tokendelta._core import CHECKED
from tokendelta.errors import StateError, TokenDeltaError
from tokendelta.inputs import (
    check_choice,
    check_prompt,
    check_text,
    checked_scores,
    raise_refused,
    side_streams,
)
from tokendelta.invariants import check_record
from tokendelta.profile import Profile
from tokendelta.rendering import ENVIRONMENT_ROLES, Message, Tool, check_messages
from tokendelta.sample import Drift, Ingest, IntArray, Overflow, Rewrite, SampleSet
from tokendelta.sample_set import make_samples
from tokendelta.segment import Finish
from tokendelta.special_text import by_policy
from tokendelta.state import OnRewrite, Record, SessionState, Specials
from tokendelta.verification import drift_of

Verify = Literal["always", "sampled", "never"]

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

    __slots__ = ("_answers", "_record", "_state", "drifts", "verify")

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
        listed = profile.tools if tools is None else (list(tools) or None)
        self._record = Record(profile, max_tokens, on_rewrite, specials)
        self._state = SessionState(self._record, listed)
        self._answers = 0
        self.verify = verify
        self.drifts: list[Drift] = []

    @property
    def max_tokens(self) -> int | None:
        """The context of the engine, or None without a limit."""
        return self._record.max_tokens

    @property
    def on_rewrite(self) -> OnRewrite:
        """What is done where the template rewrites history."""
        return self._record.on_rewrite

    @property
    def specials(self) -> Specials:
        """What is done with text that spells a special token."""
        return self._record.specials

    @property
    def rewrites(self) -> list[Rewrite]:
        """Where the template shows history otherwise than it was sampled or sent."""
        return self._record.rewrites

    @property
    def prompt(self) -> IntArray:
        """All ids of the current segment so far: read-only int32[n], not copied.

        Raises StateError before `start`.
        """
        return self._state.prompt()

    @property
    def remaining(self) -> int | None:
        """Tokens until max_tokens, or None without a limit."""
        if self.max_tokens is None:
            return None
        segment = self._state.segment
        return self.max_tokens - (segment.tokens.size if segment else 0)

    @property
    def turns(self) -> int:
        """Turns that were sampled, over all segments."""
        return self._record.turns

    @property
    def segments(self) -> int:
        """Token sequences that the session holds: 1, and 1 more for each fork."""
        return len(self._record.segments)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the token and log-prob buffers."""
        return sum(segment.tokens.nbytes for segment in self._record.segments)

    def start(self, messages: Sequence[Message]) -> IntArray | Overflow:
        """Render the first messages with the generation prompt.

        Returns the prompt, a read-only int32[n] view, or Overflow if it has more than max_tokens.
        Raises StateError if the session has started, MessageError for messages that cannot stand
        first, TemplateError if the template raises, SpecialTextError by policy.
        """
        if self._state.phase != "new":
            raise StateError("start: the session has started; make a new session for each episode")
        checked = check_messages(messages, "start, before turn")
        prompt = self._state.start(by_policy(self._record, checked, 0))
        if CHECKED:
            check_record(self._record)
        return prompt

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
        state, record = self._state, self._record
        if state.phase not in ("prompted", "open"):
            raise StateError(
                f"append_sampled: turn {record.turns} has no prompt; call start or append_env first"
            )
        turn = state.turn if state.phase == "open" else None
        number = record.turns if turn is None else turn.number
        check_choice("finish", finish, ("stop", "length", "abort"))
        sampled, scores = checked_scores(ids, logprobs, number)
        count = len(sampled)
        segment = state.current("append_sampled")
        tokens = segment.tokens
        if prompt_tokens is not None:
            check_prompt(prompt_tokens, segment.marks[-1].tokens, number)
        if text is not None:
            check_text(record.profile, text, sampled, number)
        offset = turn.sampled if turn is not None else 0
        rows = side_streams(side, count, number, offset)
        checked = check_messages([message], "turn", number)[0] if message else None
        overflow = record.overflow(count, tokens.size)
        if overflow is not None:
            return overflow
        refused = tokens.append_sampled(sampled, scores, record.profile.vocab_size)
        if refused is not None:
            raise_refused(number, refused, sampled, scores, record.profile.vocab_size)
        turn = state.sampled(count, finish)
        if checked is not None:
            turn.message = checked
        if rows is not None:
            turn.side = [*(turn.side or ()), *rows]
        if CHECKED:
            check_record(record)
        return None

    def append_env(self, messages: Sequence[Message]) -> IntArray | Overflow:
        """Append the environment's answer and the next generation prompt, all with mask 0.

        Give all messages between two sampled turns in one call: templates wrap a group of tool
        results as one. Returns the next prompt, a read-only int32[n] view, or Overflow with
        nothing appended. Raises StateError without a sampled turn, MessageError, TemplateError,
        SpecialTextError and RewriteError with the session unchanged.
        """
        state = self._state
        if state.phase not in ("sampled", "open"):
            raise StateError("append_env: no turn was sampled since the last prompt")
        turns = self._record.turns
        checked = check_messages(messages, "before turn", turns, ENVIRONMENT_ROLES)
        prompt = answering.answer(state, by_policy(self._record, checked, turns))
        self._answered(prompt)
        return prompt

    def sync(self, messages: Sequence[Message]) -> IntArray | Overflow:
        """Bring the record in line with a whole history, as an OpenAI-style client sends it.

        The longest recorded history that the messages agree with is extended; where they leave it
        earlier, the session rolls back to that prompt in a new segment; where they agree with
        nothing, a new segment starts. A message agrees with a sampled turn if it is an echo (see
        `echo`) of the `message` that was given with it, or of its decoded text. Sampled turns stay
        as they were sampled, however the client writes them down. Returns the prompt, read-only
        int32[n], or Overflow with nothing changed.

        A session follows one request at a time. For requests in flight side by side, retries and
        deliveries there is `Tree`.
        """
        checked = check_messages(messages, "sync, before turn", self._record.turns)
        checked = by_policy(self._record, checked, self._record.turns)
        saved = self._state.checkpoint()
        try:
            prompt = branching.sync(self._state, checked)
        except TokenDeltaError:
            self._state.restore(saved)
            raise
        if isinstance(prompt, Overflow):
            self._state.restore(saved)
        self._answered(prompt)
        return prompt

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
        state, record = self._state, self._record
        prompt = ingesting.checked_prompt(prompt_ids, record)
        output, scores = checked_scores(output_ids, logprobs, record.turns)
        overflow = record.overflow(len(prompt) + len(output), 0)
        if overflow is not None:
            return overflow
        saved, blind = state.checkpoint(), record.blind
        kind, agreed = ingesting.place(state, prompt)
        record.blind = True
        try:
            self.append_sampled(output, scores, finish, message=message)
        except Exception:
            state.restore(saved)
            record.blind = blind
            raise
        return Ingest(kind, agreed, state.current("ingest").number, record.turns - 1)

    def samples(self, max_len: int | None = None) -> SampleSet:
        """Everything that can be trained, one sample a segment.

        max_len cuts a sample at the end of the last span that fits. Every sampled token is in
        exactly one sample with mask 1, or in `.dropped` with its reason.
        """
        if max_len is not None and max_len < 1:
            raise ValueError(f"max_len is {max_len}, it must be at least 1")
        return make_samples(self._record, max_len)

    def _answered(self, prompt: IntArray | Overflow) -> None:
        """Look at a new prompt as far as the session was asked to."""
        if isinstance(prompt, Overflow):
            return
        if self.verify != "never":
            self._answers += 1
            if self.verify == "always" or self._answers % VERIFY_ONE_IN == 1:
                drift = drift_of(self._state)
                if drift is not None:
                    self.drifts.append(drift)
        if CHECKED:
            check_record(self._record)
