# cython: language_level=3, boundscheck=False, wraparound=False
"""The fast path of the section + header + JSON family; see `tagged.pyx`."""

from libc.string cimport memchr

from toolparse.fast.tagged cimport after_think, at, skip, stop_start
from toolparse.scan.find cimport find_bytes
from toolparse.result.model cimport Call, Source, new_call, new_parsed
from toolparse.scan.json_value cimport OK, Scan, scan_close, scan_json, scan_open

cdef enum:
    LESS = 60
    NAME_LIMIT = 256


cdef class SectionTags:
    """The tags of a section grammar."""

    cdef bytes section_open, section_close, call_open, name_end, think_open, think_close, last_bytes
    cdef tuple call_close, others, stops

    def __init__(self, section_open, section_close, call_open, name_end, call_close, think, stops):
        self.section_open = section_open[0]
        self.section_close = section_close
        self.call_open = call_open
        self.name_end = name_end
        self.call_close = tuple(call_close)
        # What makes a text the general path's business, outside of a section.
        self.others = (*section_open[1:], call_open, *think)
        self.think_open, self.think_close = think
        self.stops = tuple(stops)
        self.last_bytes = bytes({stop[len(stop) - 1] for stop in stops})


cdef bint any_at(const unsigned char* p, Py_ssize_t pos, Py_ssize_t n, tuple tags):
    cdef bytes tag
    for tag in tags:
        if at(p, pos, n, tag, len(tag)):
            return True
    return False


def section_json(
    Source source not None, SectionTags tags not None, object grammar, object tools, bint thinking
):
    """The result for a faultless text of a section format, or None."""
    cdef bytes data = source.data
    cdef const unsigned char* p = data
    cdef const unsigned char* hit
    cdef Py_ssize_t size = len(data), n, pos, start, head, sep, body, end, limit, name_start
    cdef list attempts = [], reasoning = [], markup = []
    cdef bytes tag
    cdef Scan scan
    cdef int code
    cdef bint first
    cdef Call call
    n = stop_start(p, size, tags.stops, tags.last_bytes)
    pos = after_think(
        p, n, tags.think_open, tags.think_close, tags.section_open, tags.call_open, thinking,
        reasoning, markup,
    )
    if pos < 0:
        return None
    for tag in tags.others if reasoning else ():
        if find_bytes(p, reasoning[0][0], reasoning[0][1], tag, len(tag)) >= 0:
            return None
    while pos < n:
        hit = <const unsigned char*>memchr(p + pos, LESS, n - pos)
        if hit == NULL:
            break
        start = hit - p
        if not at(p, start, n, tags.section_open, len(tags.section_open)):
            if any_at(p, start, n, tags.others):
                return None
            pos = start + 1
            continue
        pos = start + len(tags.section_open)
        first = True
        while True:
            head = skip(p, pos, n)
            if at(p, head, n, tags.section_close, len(tags.section_close)):
                if first:
                    return None
                end = head + len(tags.section_close)
                markup.append((pos, end))
                pos = end
                break
            if not at(p, head, n, tags.call_open, len(tags.call_open)):
                return None
            markup.append((start if first else pos, head))
            start = head
            head += len(tags.call_open)
            limit = min(n, head + NAME_LIMIT + len(tags.name_end))
            sep = find_bytes(p, head, limit, tags.name_end, len(tags.name_end))
            if sep < 0 or memchr(p + head, LESS, sep - head) != NULL:
                return None
            name, native = grammar.header(data[head:sep].decode("utf-8"))
            if not name or (tools is not None and name not in tools):
                return None
            tag = name.encode("utf-8")
            name_start = find_bytes(p, head, sep, tag, len(tag))
            body = skip(p, sep + len(tags.name_end), n)
            if body >= n or p[body] != 123 or name_start < 0:
                return None
            scan_open(&scan)
            with nogil:
                code = scan_json(&scan, p, body, n)
            end = scan.pos
            if scan.duplicate >= 0:
                code = -1
            scan_close(&scan)
            if code != OK:
                return None
            pos = end
            for closer in tags.call_close:
                tag = closer
                pos = skip(p, pos, n)
                if not at(p, pos, n, tag, len(tag)):
                    return None
                pos += len(tag)
            call = new_call(
                source, len(attempts), start, pos, name, name_start,
                name_start + len(name.encode("utf-8")), body, end,
            )
            call.id = native
            attempts.append(call)
            first = False
    return new_parsed(
        source, attempts, [], grammar, reasoning, markup, n if n < size else -1
    )
