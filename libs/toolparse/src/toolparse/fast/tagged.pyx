# cython: language_level=3, boundscheck=False, wraparound=False
"""Tagged JSON without a fault, in one loop, no Python per token; what its neighbours share.

A function of this folder gives the finished result, or None at the first thing out of the ordinary
(a fault, an undeclared tool, a call in the reasoning, a value that does not fit); the
general path then reads the text again from the start. The tests hold both against each
other. Think blocks and stop tokens are ordinary.
"""

from libc.string cimport memchr, memcmp

from toolparse.scan.find cimport find_bytes
from toolparse.result.model cimport Call, Parsed, Source, new_call, new_parsed
from toolparse.scan.json_value cimport OK, Scan, scan_close, scan_json, scan_open

cdef enum:
    LESS = 60


cdef class Tags:
    """The tags of a grammar as C strings. The bytes objects are kept alive here."""

    def __init__(self, open_tag, close_tag, names, arguments, think, stops):
        self.open_tag = open_tag
        self.close_tag = close_tag
        self.name_key = names[0]
        self.args_key = arguments[0]
        self.alias_key = arguments[1] if len(arguments) > 1 else arguments[0]
        self.name = text_of(self.name_key)
        self.args = text_of(self.args_key)
        self.alias = text_of(self.alias_key)
        self.think_open, self.think_close = think
        self.stops = tuple(stops)
        self.last_bytes = bytes({stop[len(stop) - 1] for stop in stops})


cdef Text text_of(bytes value):
    cdef Text text
    text.start = value
    text.size = len(value)
    return text


cdef int call_members(
    Scan* scan, const unsigned char* p, Py_ssize_t body, Py_ssize_t n, Text name, Text args,
    Text alias, Members* spans,
) noexcept nogil:
    """Whether the object at `body` is a call without a fault: where its name and arguments stand.

    Leaves scan.pos after the object.
    """
    cdef Py_ssize_t k, size, name_start = -1, name_end = -1, args_start = -1, args_end = -1
    cdef const unsigned char* key
    if scan_json(scan, p, body, n) != OK or scan.duplicate >= 0:
        return 0
    for k in range(scan.member_count):
        size = scan.members[k].key_end - scan.members[k].key_start
        key = p + scan.members[k].key_start
        if size == name.size and memcmp(key, name.start, size) == 0:
            name_start = scan.members[k].value_start
            name_end = scan.members[k].value_end
        elif (size == args.size and memcmp(key, args.start, size) == 0) or (
            size == alias.size and memcmp(key, alias.start, size) == 0
        ):
            if args_start >= 0:
                return 0
            args_start = scan.members[k].value_start
            args_end = scan.members[k].value_end
        elif memchr(key, 92, size) != NULL:
            return 0
    if name_start < 0 or args_start < 0:
        return 0
    if p[name_start] != 34 or name_end - name_start < 3 or p[args_start] != 123:
        return 0
    if memchr(p + name_start + 1, 92, name_end - name_start - 2) != NULL:
        return 0
    spans.name_start = name_start + 1
    spans.name_end = name_end - 1
    spans.args_start = args_start
    spans.args_end = args_end
    return 1


cdef Py_ssize_t stop_start(
    const unsigned char* data, Py_ssize_t n, tuple stops, bytes last_bytes
):
    """Where the stop tokens at the end begin; `n` without any."""
    cdef Py_ssize_t end = n, cut = n, size
    cdef const unsigned char* last = last_bytes
    cdef Py_ssize_t kinds = len(last_bytes)
    cdef const unsigned char* token
    cdef bint found
    while True:
        while end > 0 and is_space(data[end - 1]):
            end -= 1
        if end == 0 or memchr(last, data[end - 1], kinds) == NULL:
            return cut
        found = False
        for stop in stops:
            token = <bytes>stop
            size = len(<bytes>stop)
            if size <= end and memcmp(data + end - size, token, size) == 0:
                end -= size
                cut = end
                found = True
                break
        if not found:
            return cut


cdef Py_ssize_t after_think(
    const unsigned char* data, Py_ssize_t n, bytes think_open, bytes think_close,
    bytes opener, bytes other, bint thinking, list reasoning, list markup,
):
    """Where content begins; -1 where the think block is out of the ordinary."""
    cdef Py_ssize_t start = 0, end
    cdef Py_ssize_t close_size = len(think_close)
    if not thinking:
        start = skip(data, 0, n)
        if not at(data, start, n, think_open, len(think_open)):
            return 0
        markup.append((start, start + len(think_open)))
        start += len(think_open)
    end = find_bytes(data, start, n, think_close, close_size)
    if end < 0 or find_bytes(data, start, end, opener, len(opener)) >= 0:
        return -1
    if other is not opener and find_bytes(data, start, end, other, len(other)) >= 0:
        return -1
    reasoning.append((start, end))
    markup.append((end, end + close_size))
    return end + close_size


def tagged_json(
    Source source not None, Tags tags not None, object grammar, object tools, bint thinking
):
    """The result for a faultless text of a tagged-JSON format, or None."""
    cdef bytes data = source.data
    cdef const unsigned char* p = data
    cdef Py_ssize_t size = len(data), n, pos, start, end, body
    cdef Members spans
    cdef const unsigned char* hit
    cdef const unsigned char* open_tag = tags.open_tag
    cdef const unsigned char* close_tag = tags.close_tag
    cdef const unsigned char* think_open = tags.think_open
    cdef const unsigned char* think_close = tags.think_close
    cdef Py_ssize_t open_size = len(tags.open_tag), close_size = len(tags.close_tag)
    cdef Py_ssize_t think_open_size = len(tags.think_open)
    cdef Py_ssize_t think_close_size = len(tags.think_close)
    cdef list attempts = [], reasoning = [], markup = []
    cdef Scan scan
    cdef int code
    cdef object name
    cdef Call call
    n = stop_start(p, size, tags.stops, tags.last_bytes)
    pos = after_think(
        p, n, tags.think_open, tags.think_close, tags.open_tag, tags.open_tag, thinking,
        reasoning, markup,
    )
    if pos < 0:
        return None
    while pos < n:
        hit = <const unsigned char*>memchr(p + pos, LESS, n - pos)
        if hit == NULL:
            break
        start = hit - p
        if not at(p, start, n, open_tag, open_size):
            if at(p, start, n, think_open, think_open_size):
                return None
            if at(p, start, n, think_close, think_close_size):
                return None
            pos = start + 1
            continue
        body = skip(p, start + open_size, n)
        if body >= n or p[body] != 123:
            return None
        scan_open(&scan)
        with nogil:
            code = call_members(&scan, p, body, n, tags.name, tags.args, tags.alias, &spans)
        end = scan.pos
        scan_close(&scan)
        if not code:
            return None
        end = skip(p, end, n)
        if not at(p, end, n, close_tag, close_size):
            return None
        end += close_size
        name = data[spans.name_start:spans.name_end].decode("utf-8")
        if tools is not None and name not in tools:
            return None
        attempts.append(new_call(
            source, len(attempts), start, end, name, spans.name_start, spans.name_end,
            spans.args_start, spans.args_end,
        ))
        pos = end
    return new_parsed(
        source, attempts, [], grammar, reasoning, markup, n if n < size else -1
    )
