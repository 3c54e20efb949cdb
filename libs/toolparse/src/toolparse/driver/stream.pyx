# cython: language_level=3
"""`parse` for text that arrives in pieces."""

import codecs

from libc.string cimport memchr

from toolparse.result.model cimport Source
from toolparse.scan.find cimport find_bytes

from toolparse.driver.api import check_mode, encoded, sglang
from toolparse.grammars.table import grammar_of
from toolparse.driver.run import Run
from toolparse.driver.tools import compiled

cdef extern from "Python.h":
    char* PyByteArray_AsString(object bytearray)

cdef enum:
    # So often a block is looked at again, chunk by chunk, before it has to grow first.
    FREE_LOOKS = 64


cdef class Stream:
    """`feed` takes str or bytes, cut anywhere; `finish` gives what `parse` gives for the whole.

    feed gives the executable calls that closed with this chunk. limit: `done` becomes True
    after that many, so that a rollout can stop. A block that did not end at its close tag
    (the tag stood in a value) is looked at again only after it grew by a quarter: `done`
    may then come that much later, and any text stays linear. In "sglang" mode the calls
    come with `finish`. Raises ValueError as `parse` does.
    """

    cdef object _format, _toolset, _grammar, _max_calls, _limit, _decoder, _run, _wait
    cdef bint _sglang, _lenient, _thinking, _validate, _arrived, _plain
    cdef bytearray _data
    cdef Source _source
    cdef bytes _first
    cdef Py_ssize_t _searched, _retry, _tries

    def __init__(
        self, format="qwen25", tools=None, mode="strict", *, thinking=False, limit=None,
        max_calls=None, validate=False,
    ):
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
        self._source = Source(self._data)
        self._run = self._new(self._source)
        self._first = self._grammar.first_byte
        self._wait = None

    def _new(self, source):
        return Run(
            self._grammar, source, self._toolset, self._lenient, self._thinking,
            max_calls=self._max_calls, validate=self._validate,
        )

    @property
    def done(self):
        """Whether `limit` executable calls have closed."""
        return self._limit is not None and self._run.executable >= self._limit

    @property
    def calls(self):
        """The executable calls so far."""
        return [call for call in self._run.attempts if call.error is None]

    @property
    def attempts(self):
        """All attempts so far. Refused ones become part of the reasoning where a close tag
        shows that the prompt had opened it."""
        return list(self._run.attempts)

    def feed(self, chunk):
        """Takes the next piece; gives the executable calls that closed with it."""
        cdef bytes data
        if isinstance(chunk, str):
            try:
                data = (<str>chunk).encode("utf-8")
            except UnicodeEncodeError:
                data = encoded(chunk)
        else:
            data = encoded(self._decoder.decode(chunk))
        self._data += data
        self._source.grew(data.isascii())
        if self._sglang or not data:
            return []
        cdef Py_ssize_t n = len(self._data)
        cdef Py_ssize_t start, size
        cdef const unsigned char* text = <const unsigned char*>PyByteArray_AsString(self._data)
        cdef const unsigned char* tag
        if self._wait is not None:
            if not self._arrived:
                size = len(<bytes>self._wait)
                tag = <bytes>self._wait
                start = self._searched - size + 1
                self._arrived = find_bytes(text, max(start, 0), n, tag, size) >= 0
                self._searched = n
            if not self._arrived or n < self._retry:
                return []
        elif self._tries > FREE_LOOKS and n < self._retry:
            return []
        elif self._plain and memchr(<const unsigned char*>data, self._first[0], len(data)) == NULL:
            # Content that can begin nothing.
            return []
        return self._advance(n)

    cdef list _advance(self, Py_ssize_t n):
        run = self._run
        waited = self._wait is not None
        run.wait = None
        before = run.pos
        if self._plain:
            # What was skipped as plain content since the last look.
            run.pos = max(before, self._searched - self._grammar.longest)
        run.advance(False)
        self._wait = run.wait
        self._searched = n
        self._arrived = False
        stuck = run.pos == before
        self._tries = self._tries + 1 if stuck else 0
        again = self._tries > FREE_LOOKS or (waited and self._wait is not None and stuck)
        self._retry = n + (n - run.pos) // 4 if again else 0
        self._plain = (
            len(self._first) == 1 and run.pos > 0 and not run.inside and not run.in_think
            and self._wait is None and self._data.find(self._first, run.pos) < 0
        )
        attempts = run.attempts
        if len(attempts) == run.given:
            return []
        new = [call for call in attempts[run.given :] if call.error is None]
        run.given = len(attempts)
        return new

    def finish(self):
        """The result for all that was fed; what was cut off is now an error."""
        self._data += encoded(self._decoder.decode(b"", True))
        source = Source(bytes(self._data))
        if self._sglang:
            return sglang(self._format, source, self._toolset, True)
        if self._max_calls is None and not self._validate:
            fast = self._grammar.fast(source, self._toolset, self._thinking)
            if fast is not None:
                return fast
        run = self._new(source)
        run.advance(True)
        return run.result()
