# cython: language_level=3
"""What a parse returns. Offsets are bytes inside; characters and texts are made when asked for."""

import json

from collections import Counter

from toolparse.result.kinds import GROUPS, KINDS
from toolparse.scan.json_value import json_value

cdef object UNSET = object()
cdef enum:
    STRIDE = 1024


cdef dict json_values(data, start, end):
    """The spans of the values of a JSON object."""
    return {
        json.loads(data[member[0]:member[1]]): (member[2], member[3])
        for member in json_value(data, start, end)[3]
    }


cdef class Source:
    """The bytes that were parsed, and the way from byte offsets to characters."""

    def __init__(self, data, text=None):
        self.data = data
        self._text = text
        self._ascii = data.isascii()
        self._marks = [0]
        self._counted = 0
        self._total = 0

    cpdef grew(self, bint plain):
        """After bytes were appended to `data`; `plain` where they are all ASCII."""
        self._ascii = self._ascii and plain
        self._text = None

    @property
    def text(self):
        if self._text is None:
            self._text = self.data.decode("utf-8", "replace")
        return self._text

    cdef object decoded(self, Py_ssize_t start, Py_ssize_t end):
        return self.data[start:end].decode("utf-8", "replace")

    def slice(self, Py_ssize_t start, Py_ssize_t end):
        """The text between two byte offsets."""
        return self.decoded(start, end)

    cpdef Py_ssize_t char(self, Py_ssize_t offset):
        """The character offset of a byte offset; linear in the text once, then constant."""
        cdef Py_ssize_t count, i
        cdef const unsigned char[::1] view
        if self._ascii or offset == 0:
            return offset
        view = self.data
        for i in range(self._counted, offset):
            self._total += (view[i] & 0xC0) != 0x80
            if (i + 1) % STRIDE == 0:
                self._marks.append(self._total)
        self._counted = max(self._counted, offset)
        count = self._marks[offset // STRIDE]
        for i in range(offset // STRIDE * STRIDE, offset):
            count += (view[i] & 0xC0) != 0x80
        return count

    def span(self, tuple span):
        """A byte span as a character span."""
        return (self.char(span[0]), self.char(span[1]))


cdef class Error:
    """Why a call was not executed, or what a policy should know.

    kind: one of `toolparse.KINDS`; group: what it means for a reward; message: one
    sentence that can be sent back to the model; span and byte_span: half-open, the
    text concerned; offset: the byte at fault; param: the argument concerned or None;
    call: the index of the attempt or None.
    """

    def __init__(self, source, kind, message, byte_span, offset=None, param=None, call=None):
        self._source = source
        self.kind = kind
        self.message = message
        self.byte_span = byte_span
        self.offset = byte_span[0] if offset is None else offset
        self.param = param
        self.call = call

    @property
    def group(self):
        return GROUPS[self.kind]

    @property
    def span(self):
        return self._source.span(self.byte_span)

    def to_dict(self):
        """Plain data for a trace."""
        return {
            "kind": self.kind, "group": self.group, "message": self.message,
            "span": list(self.span), "param": self.param, "call": self.call,
        }

    def __repr__(self):
        return f"Error({self.kind!r}, {self.message!r}, span={self.span})"


cdef class Call:
    """One attempt at a call, good or bad.

    name: str or None where it could not be read; arguments: dict, decoded on first
    use, None where they could not be read; raw_arguments: their text as written;
    id: the id that the model wrote, or None; index: its position among the attempts;
    error: None where the call is executable; repairs: the names of the repairs that
    `lenient` mode made; span and byte_span: the whole block.
    """

    def __init__(
        self, source, index, block, *, name=None, name_span=None, args_span=None, id=None,
        arguments=UNSET, values=None, converted=None, error=None, repairs=(),
        raw_arguments=None, tool_index=-1,
    ):
        self._source = source
        self.index = index
        self.start, self.end = block
        self.name_start, self.name_end = name_span or (-1, -1)
        self.args_start, self.args_end = args_span or (-1, -1)
        self.name = name
        self.id = id
        self._arguments = arguments
        self._raw = raw_arguments
        self.tool_index = tool_index
        self._values = values
        self._converted = converted
        self.error = error
        self.repairs = repairs

    @property
    def ok(self):
        """Whether the call may be executed."""
        return self.error is None

    @property
    def status(self):
        return "ok" if self.error is None else self.error.kind

    @property
    def byte_span(self):
        return (self.start, self.end)

    @property
    def span(self):
        return (self._source.char(self.start), self._source.char(self.end))

    @property
    def raw(self):
        """The block as written."""
        return self._source.decoded(self.start, self.end)

    @property
    def name_byte_span(self):
        return None if self.name_start < 0 else (self.name_start, self.name_end)

    @property
    def name_span(self):
        span = self.name_byte_span
        return None if span is None else self._source.span(span)

    @property
    def arguments_byte_span(self):
        return None if self.args_start < 0 else (self.args_start, self.args_end)

    @property
    def arguments_span(self):
        span = self.arguments_byte_span
        return None if span is None else self._source.span(span)

    @property
    def raw_arguments(self):
        if self._raw is None and self.args_start >= 0:
            self._raw = self._source.decoded(self.args_start, self.args_end)
        return self._raw

    @property
    def source(self):
        return self._source

    @property
    def arguments_json(self):
        """The arguments as JSON text: as written where that is JSON, else spelled anew."""
        raw = self.raw_arguments
        if raw is not None and self._values is None and raw[:1] == "{" and not self.repairs:
            return raw
        return json.dumps(self.arguments, ensure_ascii=False)

    @property
    def arguments(self):
        if self._arguments is UNSET:
            if self._values is not None:
                self._arguments = self._from_values()
            else:
                raw = self.raw_arguments
                self._arguments = None if raw is None else json.loads(raw)
        return self._arguments

    def to_dict(self):
        """Plain data for a trace."""
        return {
            "name": self.name, "arguments": self.arguments, "status": self.status,
            "id": self.id, "repairs": list(self.repairs), "span": list(self.span),
        }

    cdef dict _from_values(self):
        cdef dict result = {}
        for key, span in self._values.items():
            if self._converted and key in self._converted:
                result[key] = self._converted[key]
            else:
                result[key] = self._source.decoded(span[0], span[1])
        return result

    @property
    def value_byte_spans(self):
        """The spans of the values of the arguments by name, or None where they are unknown."""
        if self._values is not None:
            return dict(self._values)
        if self.args_start < 0 or self.error is not None or self.raw_arguments[:1] != "{":
            return None
        return json_values(self._source.data, self.args_start, self.args_end)

    @property
    def value_spans(self):
        spans = self.value_byte_spans
        if spans is None:
            return None
        return {key: self._source.span(span) for key, span in spans.items()}

    def __repr__(self):
        if self.error is not None:
            return f"Call({self.name!r}, {self.raw_arguments!r}, error={self.error.kind!r})"
        return f"Call({self.name!r}, {self.arguments!r})"


cdef Call new_call(
    Source source, Py_ssize_t index, Py_ssize_t start, Py_ssize_t end, object name,
    Py_ssize_t name_start, Py_ssize_t name_end, Py_ssize_t args_start, Py_ssize_t args_end,
):
    """An executable call, without the cost of keyword arguments."""
    cdef Call call = Call.__new__(Call)
    call._source = source
    call.index = index
    call.start = start
    call.end = end
    call.name = name
    call.name_start = name_start
    call.name_end = name_end
    call.args_start = args_start
    call.args_end = args_end
    call._arguments = UNSET
    call.repairs = ()
    call.tool_index = -1
    return call


cdef Parsed new_parsed(
    Source source, list attempts, list errors, object grammar, list reasoning, list markup,
    Py_ssize_t cut,
):
    cdef Parsed parsed = Parsed.__new__(Parsed)
    parsed.source = source
    parsed.attempts = attempts
    parsed.errors = errors
    parsed.grammar = grammar
    parsed.reasoning_byte_spans = reasoning
    parsed.markup_byte_spans = markup
    parsed.cut = cut
    return parsed


cdef class Parsed:
    """calls: what may be executed; attempts: those and the refused ones, in text order;
    errors: why calls were refused.

    content: the text outside of blocks, reasoning, markup and stop tokens, byte for byte.
    reasoning: the text of the think blocks, or None. Only attempts and errors are computed
    before they are asked for.
    """

    def __init__(
        self, source, attempts, errors, grammar, reasoning, markup, cut, content=None, calls=None
    ):
        self.source = source
        self.attempts = attempts
        self.errors = errors
        self.grammar = grammar
        self.reasoning_byte_spans = reasoning
        self.markup_byte_spans = markup
        self.cut = cut
        self._content = content
        self._calls = calls

    @property
    def calls(self):
        cdef Call call
        if self._calls is None:
            if self.errors:
                self._calls = [call for call in self.attempts if call.error is None]
            else:
                self._calls = self.attempts
        return self._calls

    @property
    def content_byte_spans(self):
        """Where the content lies, as half-open byte spans in text order."""
        cdef Py_ssize_t n = len(self.source.data)
        taken = [call.byte_span for call in self.attempts]
        taken += self.reasoning_byte_spans
        taken += self.markup_byte_spans
        if self.cut >= 0:
            taken.append((self.cut, n))
        taken.sort()
        spans = []
        pos = 0
        for start, end in taken:
            if start > pos:
                spans.append((pos, start))
            pos = max(pos, end)
        if pos < n:
            spans.append((pos, n))
        return spans

    @property
    def content_spans(self):
        """The same in characters."""
        return [self.source.span(span) for span in self.content_byte_spans]

    @property
    def content(self):
        if self._content is None:
            self._content = "".join(
                [self.source.decoded(span[0], span[1]) for span in self.content_byte_spans]
            )
        return self._content

    @property
    def reasoning(self):
        spans = self.reasoning_byte_spans
        if not spans:
            return None
        return "".join([self.source.decoded(span[0], span[1]) for span in spans])

    @property
    def reasoning_spans(self):
        return [self.source.span(span) for span in self.reasoning_byte_spans]

    @property
    def stop_byte_span(self):
        """The stop tokens at the end, or None."""
        return (self.cut, len(self.source.data)) if self.cut >= 0 else None

    @property
    def stop_span(self):
        span = self.stop_byte_span
        return None if span is None else self.source.span(span)

    @property
    def flags(self):
        """What does not hinder a call but a trainer may want to know: trailing text, code
        fences, stop tokens, spellings that the template would not write."""
        if self._flags is None:
            from toolparse.result.canonical import flags

            self._flags = flags(self)
        return self._flags

    @property
    def is_canonical(self):
        """Whether the template would write the calls as the model did."""
        if self.errors:
            return False
        return not any([f.group == "non_canonical" and f.kind != "stop_token" for f in self.flags])

    @property
    def canonical_text(self):
        """What the template writes for the executable calls, or None without any."""
        calls = [(call.name or "", call.arguments or {}) for call in self.calls]
        return self.grammar.write(calls) if calls else None

    @property
    def counts(self):
        """Errors and flags per kind, every kind named, for metrics."""
        found = Counter([error.kind for error in self.errors])
        found.update([flag.kind for flag in self.flags])
        return {kind: found[kind] for kind in KINDS}

    def to_dict(self):
        """Plain data for a trace: content, reasoning, attempts, errors, flags."""
        return {
            "content": self.content,
            "reasoning": self.reasoning,
            "attempts": [call.to_dict() for call in self.attempts],
            "errors": [error.to_dict() for error in self.errors],
            "flags": [flag.to_dict() for flag in self.flags],
        }

    def __repr__(self):
        return f"Parsed(calls={self.calls!r}, errors={self.errors!r}, content={self.content!r})"
