"""parse, Stream, parse_tools."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from toolparse._formats import grammar_of
from toolparse._model import Call, Error, Source
from toolparse._run import Run
from toolparse._tools import ToolSet, compiled

MODES = ("strict", "lenient")
_SURROGATES = re.compile("[\ud800-\udfff]")
Tools = ToolSet | Iterable[Mapping[str, Any]]


class Parsed:
    """The result of a parse.

    calls: what may be executed; attempts: those and the refused ones, in text order;
    errors: why calls were refused; content: the text outside of blocks, reasoning,
    markup and stop tokens, byte for byte; reasoning: the text of the think blocks, or
    None.
    """

    __slots__ = ("_content", "_run", "attempts", "calls", "errors", "source")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._content: str | None = None
        self.source = run.source
        self.attempts: list[Call] = run.attempts
        self.errors: list[Error] = run.errors
        self.calls: list[Call] = (
            run.attempts if not run.errors else [c for c in run.attempts if c.error is None]
        )

    @property
    def content_byte_spans(self) -> list[tuple[int, int]]:
        """Where the content lies, as half-open byte spans."""
        run = self._run
        taken = [call.byte_span for call in self.attempts] + run.reasoning + run.markup
        n = len(self.source.data)
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
    def stop_byte_span(self) -> tuple[int, int] | None:
        """The stop tokens at the end."""
        return (self._run.cut, len(self.source.data)) if self._run.cut >= 0 else None

    @property
    def counts(self) -> dict[str, int]:
        """Errors per kind."""
        return dict(Counter(error.kind for error in self.errors))

    def __repr__(self) -> str:
        return f"Parsed(calls={self.calls!r}, errors={self.errors!r}, content={self.content!r})"


def encoded(text: str) -> bytes:
    """UTF-8; half surrogates become U+FFFD, which keeps both lengths."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text).encode()


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}: want one of {', '.join(MODES)}")


def parse(
    text: str | bytes,
    format: str = "qwen25",
    tools: Tools | None = None,
    mode: str = "strict",
    *,
    thinking: bool = False,
) -> Parsed:
    """Reads what a model wrote. Never raises on `text`; linear in its length.

    tools: what may be called; None: any name is taken. thinking: the prompt opened the
    think block. Raises ValueError for an unknown format or mode.
    """
    grammar = grammar_of(format)
    _check_mode(mode)
    if isinstance(text, str):
        source = Source(encoded(text), text)
    else:
        source = Source(encoded(text.decode("utf-8", "replace")))
    run = Run(grammar, source, compiled(tools), mode == "lenient", thinking)
    run.advance(True)
    return Parsed(run)


class Stream:
    """`parse` for text that arrives in pieces; `finish` gives what `parse` gives.

    feed: takes str or bytes, cut anywhere, and gives the executable calls that closed;
    limit: `done` becomes True after that many.
    """

    def __init__(
        self,
        format: str = "qwen25",
        tools: Tools | None = None,
        mode: str = "strict",
        *,
        thinking: bool = False,
        limit: int | None = None,
    ) -> None:
        _check_mode(mode)
        self._data = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._args = (grammar_of(format), compiled(tools), mode == "lenient", thinking)
        self._run = Run(self._args[0], Source(self._data), *self._args[1:])
        self._searched = 0
        self._retry = 0
        self._arrived = False
        self._tries = 0
        self._limit = limit
        self._given = 0

    @property
    def done(self) -> bool:
        """Whether `limit` executable calls have closed."""
        return self._limit is not None and self._run.executable >= self._limit

    def feed(self, chunk: str | bytes) -> list[Call]:
        text = chunk if isinstance(chunk, str) else self._decoder.decode(chunk)
        run = self._run
        self._data += encoded(text)
        run.source.grew(text.isascii())
        n = len(self._data)
        waited = run.wait is not None
        if run.wait is not None:
            start = max(run.pos, self._searched - len(run.wait) + 1)
            self._arrived = self._arrived or self._data.find(run.wait, start) >= 0
            self._searched = n
            if not self._arrived or n < self._retry:
                return []
            run.wait = None
        elif self._tries > 64 and n < self._retry:
            return []
        before = run.pos
        run.advance(False)
        self._searched = n
        self._arrived = False
        # A block that did not end at its close tag is read again only after it grew by
        # a quarter, which keeps any text linear.
        self._tries = self._tries + 1 if run.pos == before else 0
        again = self._tries > 64 or (waited and run.wait is not None and self._tries)
        self._retry = n + (n - run.pos) // 4 if again else 0
        return self._closed()

    def _closed(self) -> list[Call]:
        new = [c for c in self._run.attempts[self._given :] if c.error is None]
        self._given = len(self._run.attempts)
        return new

    def finish(self) -> Parsed:
        self._data += encoded(self._decoder.decode(b"", True))
        data = bytes(self._data)
        run = Run(self._args[0], Source(data), *self._args[1:])
        run.advance(True)
        return Parsed(run)


def parse_tools(response: str, tools: Tools, parser: str = "qwen25") -> dict[str, Any]:
    """What slime's tau-bench example returns: `normal_text` and `calls`.

    Each call is {"name", "parameters" (JSON text), "tool_index"}.
    """
    toolset = compiled(tools)
    parsed = parse(response, parser, toolset)
    names = toolset.names if toolset else ()
    return {
        "normal_text": parsed.content,
        "calls": [
            {
                "name": call.name,
                "parameters": call.raw_arguments if call.raw_arguments is not None else "{}",
                "tool_index": names.index(call.name) if call.name in names else -1,
            }
            for call in parsed.calls
        ],
    }
