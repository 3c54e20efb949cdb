# cython: language_level=3, boundscheck=False, wraparound=False
"""The fast path of bare objects (Llama 3); see `tagged.pyx`."""

from libc.string cimport memchr

from toolparse.fast.tagged cimport (
    Members, Tags, after_think, at, call_members, skip, stop_start,
)
from toolparse.result.model cimport Source, new_call, new_parsed
from toolparse.scan.json_value cimport Scan, scan_close, scan_open

cdef enum:
    LESS = 60
    BRACE = 123
    SEMICOLON = 59


def bare_objects(
    Source source not None, Tags tags not None, object grammar, object tools, bint thinking
):
    """The result for a faultless text of objects behind a tag or at the start, or None."""
    cdef bytes data = source.data
    cdef const unsigned char* p = data
    cdef const unsigned char* hit
    cdef const unsigned char* tag = tags.open_tag
    cdef const unsigned char* think_open = tags.think_open
    cdef const unsigned char* think_close = tags.think_close
    cdef Py_ssize_t tag_size = len(tags.open_tag)
    cdef Py_ssize_t open_size = len(tags.think_open), close_size = len(tags.think_close)
    cdef Py_ssize_t size = len(data), n, pos, start, body, end, following
    cdef list attempts = [], reasoning = [], markup = []
    cdef Members spans
    cdef Scan scan
    cdef int code
    n = stop_start(p, size, tags.stops, tags.last_bytes)
    pos = after_think(
        p, n, tags.think_open, tags.think_close, tags.open_tag, tags.open_tag, thinking,
        reasoning, markup,
    )
    if pos < 0:
        return None
    body = skip(p, pos, n)
    start = body if body < n and p[body] == BRACE else -1
    while True:
        if start < 0:
            # The next tag in content.
            while True:
                hit = NULL
                if pos < n:
                    hit = <const unsigned char*>memchr(p + pos, LESS, n - pos)
                if hit == NULL:
                    return new_parsed(
                        source, attempts, [], grammar, reasoning, markup, n if n < size else -1
                    )
                pos = hit - p
                if at(p, pos, n, tag, tag_size):
                    break
                if at(p, pos, n, think_open, open_size) or at(p, pos, n, think_close, close_size):
                    return None
                pos += 1
            start = pos
            body = skip(p, pos + tag_size, n)
            if body >= n or p[body] != BRACE:
                return None
            markup.append((start, body))
        while True:
            # The object at `body`, whose block begins at `start`.
            scan_open(&scan)
            with nogil:
                code = call_members(&scan, p, body, n, tags.name, tags.args, tags.alias, &spans)
            end = scan.pos
            scan_close(&scan)
            if not code:
                return None
            name = data[spans.name_start:spans.name_end].decode("utf-8")
            if tools is not None and name not in tools:
                return None
            following = skip(p, end, n)
            if following < n and p[following] == SEMICOLON:
                following = skip(p, following + 1, n)
                if following >= n or p[following] != BRACE:
                    following = -1
            else:
                following = -1
            # A tag that opens several calls belongs to none of them.
            attempts.append(new_call(
                source, len(attempts), body if following >= 0 else start, end, name,
                spans.name_start, spans.name_end, spans.args_start, spans.args_end,
            ))
            pos = end
            if following < 0:
                break
            markup.append((end, following))
            start = body = following
        start = -1
