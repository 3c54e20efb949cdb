"""`parse` for text that arrives in pieces."""

from __future__ import annotations

import codecs

from toolparse._api import Tools, check_mode, encoded, sglang
from toolparse._formats import grammar_of
from toolparse._model import Call, Parsed, Source
from toolparse._run import Run
from toolparse._tools import compiled

# So often a block is looked at again, chunk by chunk, before it has to grow first.
_FREE_LOOKS = 64


class Stream:
    """`feed` takes str or bytes, cut anywhere; `finish` gives what `parse` gives for the whole.

    feed gives the executable calls that closed with this chunk. limit: `done` becomes True
    after that many, so that a rollout can stop. A block that did not end at its close tag
    (the tag stood in a value) is looked at again only after it grew by a quarter: `done`
    may then come that much later, and any text stays linear. In "sglang" mode the calls
    come with `finish`.
    """

    def __init__(
        self,
        format: str = "qwen25",
        tools: Tools | None = None,
        mode: str = "strict",
        *,
        thinking: bool = False,
        limit: int | None = None,
        max_calls: int | None = None,
        validate: bool = False,
    ) -> None:
        check_mode(mode)
        self._format = format
        self._sglang = mode == "sglang"
        self._toolset = compiled(tools)
        self._grammar = grammar_of(format)
        self._lenient = mode == "lenient"
        self._thinking = thinking
        self._max_calls = max_calls
        self._validate = validate
        self._limit = limit
        self._data = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._run = self._new(Source(self._data))
        self._searched = 0
        self._retry = 0
        self._tries = 0
        self._arrived = False
        self._given = 0

    def _new(self, source: Source) -> Run:
        return Run(
            self._grammar,
            source,
            self._toolset,
            self._lenient,
            self._thinking,
            max_calls=self._max_calls,
            validate=self._validate,
        )

    @property
    def done(self) -> bool:
        """Whether `limit` executable calls have closed."""
        return self._limit is not None and self._run.executable >= self._limit

    @property
    def calls(self) -> list[Call]:
        """The executable calls so far."""
        return [call for call in self._run.attempts if call.error is None]

    def feed(self, chunk: str | bytes) -> list[Call]:
        """Takes the next piece; gives the executable calls that closed with it."""
        data = encoded(chunk) if isinstance(chunk, str) else encoded(self._decoder.decode(chunk))
        run = self._run
        self._data += data
        run.source.grew(data.isascii())
        if self._sglang:
            return []
        n = len(self._data)
        wait = run.wait
        if wait is not None:
            if not self._arrived:
                start = max(run.pos, self._searched - len(wait) + 1)
                self._arrived = self._data.find(wait, start) >= 0
                self._searched = n
            if not self._arrived or n < self._retry:
                return []
            run.wait = None
        elif self._tries > _FREE_LOOKS and n < self._retry:
            return []
        before = run.pos
        run.advance(False)
        self._searched = n
        self._arrived = False
        self._tries = self._tries + 1 if run.pos == before else 0
        again = self._tries > _FREE_LOOKS or (wait is not None and run.wait and self._tries)
        self._retry = n + (n - run.pos) // 4 if again else 0
        attempts = run.attempts
        if len(attempts) == self._given:
            return []
        new = [call for call in attempts[self._given :] if call.error is None]
        self._given = len(attempts)
        return new

    def finish(self) -> Parsed:
        """The result for all that was fed; what was cut off is now an error."""
        self._data += encoded(self._decoder.decode(b"", True))
        source = Source(bytes(self._data))
        if self._sglang:
            return sglang(self._format, source, self._toolset, True)
        run = self._new(source)
        run.advance(True)
        return run.result()
