"""The result of a parse."""

from __future__ import annotations

from collections import Counter
from typing import Any

from toolparse import _canonical
from toolparse._kinds import KINDS
from toolparse._model import Call, Error
from toolparse._run import Run


class Parsed:
    """calls: what may be executed; attempts: those and the refused ones, in text order;
    errors: why calls were refused.

    content: the text outside of blocks, reasoning, markup and stop tokens, byte for byte.
    reasoning: the text of the think blocks, or None. Nothing here is computed twice, and
    only calls and errors are computed before they are asked for.
    """

    __slots__ = ("_content", "_flags", "_run", "attempts", "calls", "errors", "source")

    def __init__(
        self, run: Run, content: str | None = None, calls: list[Call] | None = None
    ) -> None:
        self._run = run
        self._content = content
        self._flags: list[Error] | None = None
        self.source = run.source
        self.attempts: list[Call] = run.attempts
        self.errors: list[Error] = run.errors
        if calls is not None:
            self.calls = calls
        elif run.errors:
            self.calls = [call for call in run.attempts if call.error is None]
        else:
            self.calls = run.attempts

    @property
    def content_byte_spans(self) -> list[tuple[int, int]]:
        """Where the content lies, as half-open byte spans in text order."""
        run = self._run
        n = len(self.source.data)
        taken = [call.byte_span for call in self.attempts] + run.reasoning + run.markup
        if run.cut >= 0:
            taken.append((run.cut, n))
        spans, pos = [], 0
        for start, end in sorted(taken):
            if start > pos:
                spans.append((pos, start))
            pos = max(pos, end)
        if pos < n:
            spans.append((pos, n))
        return spans

    @property
    def content_spans(self) -> list[tuple[int, int]]:
        """The same in characters."""
        return [self.source.span(span) for span in self.content_byte_spans]

    @property
    def content(self) -> str:
        if self._content is None:
            self._content = "".join(self.source.slice(*span) for span in self.content_byte_spans)
        return self._content

    @property
    def reasoning(self) -> str | None:
        spans = self._run.reasoning
        return "".join(self.source.slice(*span) for span in spans) if spans else None

    @property
    def reasoning_byte_spans(self) -> list[tuple[int, int]]:
        return list(self._run.reasoning)

    @property
    def reasoning_spans(self) -> list[tuple[int, int]]:
        return [self.source.span(span) for span in self._run.reasoning]

    @property
    def stop_byte_span(self) -> tuple[int, int] | None:
        """The stop tokens at the end, or None."""
        return (self._run.cut, len(self.source.data)) if self._run.cut >= 0 else None

    @property
    def stop_span(self) -> tuple[int, int] | None:
        span = self.stop_byte_span
        return None if span is None else self.source.span(span)

    @property
    def flags(self) -> list[Error]:
        """What does not hinder a call but a trainer may want to know: trailing text, code
        fences, stop tokens, spellings that the template would not write."""
        if self._flags is None:
            self._flags = _canonical.flags(self._run, self.content_byte_spans)
        return self._flags

    @property
    def is_canonical(self) -> bool:
        """Whether the template would write the calls as the model did."""
        return not self.errors and not any(
            flag.group == "non_canonical" and flag.kind != "stop_token" for flag in self.flags
        )

    @property
    def canonical_text(self) -> str | None:
        """What the template writes for the executable calls, or None without any."""
        calls = [(call.name or "", call.arguments or {}) for call in self.calls]
        return self._run.grammar.write(calls) if calls else None

    @property
    def counts(self) -> dict[str, int]:
        """Errors and flags per kind, every kind named, for metrics."""
        found = Counter(error.kind for error in (*self.errors, *self.flags))
        return {kind: found[kind] for kind in KINDS}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a trace: content, reasoning, attempts, errors, flags."""
        return {
            "content": self.content,
            "reasoning": self.reasoning,
            "attempts": [
                {
                    "name": call.name,
                    "arguments": call.arguments,
                    "status": call.status,
                    "id": call.id,
                    "repairs": list(call.repairs),
                    "span": list(call.span),
                }
                for call in self.attempts
            ],
            "errors": [error.to_dict() for error in self.errors],
            "flags": [flag.to_dict() for flag in self.flags],
        }

    def __repr__(self) -> str:
        return f"Parsed(calls={self.calls!r}, errors={self.errors!r}, content={self.content!r})"
