# cython: language_level=3, boundscheck=False, wraparound=False
"""The fast path of the key/value family; see `tagged.pyx`."""

from libc.string cimport memchr, memcmp

from toolparse.fast.tagged cimport after_think, at, is_space, skip, stop_start
from toolparse.result.model cimport Call, Source, new_call, new_parsed

cdef object typed
from toolparse.driver.tools import Misfit, typed

cdef enum:
    LESS = 60
    NAME_LIMIT = 256


cdef class PairTags:
    """The tags of a key/value grammar."""

    cdef bytes section_open, section_close, call_open, name_end, key_open, key_end
    cdef bytes value_open, value_close, call_close, think_open, think_close, last_bytes
    cdef bint framed, single, line_keys
    cdef tuple stops

    def __init__(self, shape, single, think, stops):
        self.section_open = shape.section_open
        self.section_close = shape.section_close
        self.call_open = shape.call_open
        self.name_end = shape.name_end
        self.key_open = shape.key_open
        self.key_end = shape.key_end
        self.value_open = shape.value_open
        self.value_close = shape.value_close
        self.call_close = shape.call_close
        self.framed = shape.framed
        self.line_keys = shape.line_keys
        self.single = single
        self.think_open, self.think_close = think
        self.stops = tuple(stops)
        self.last_bytes = bytes({stop[len(stop) - 1] for stop in stops})


cdef object quick(
    const unsigned char* p, Py_ssize_t start, Py_ssize_t end, object types, bytes data
):
    """The value of a typed argument; raises Misfit."""
    cdef Py_ssize_t i = start
    cdef long long value = 0
    if end - start <= 18 and i < end:
        if p[i] == 45:
            i += 1
        if i < end and p[i] >= 49 and p[i] <= 57:
            while i < end and p[i] >= 48 and p[i] <= 57:
                value = value * 10 + (p[i] - 48)
                i += 1
            if i == end and ("integer" in types or "number" in types):
                return -value if p[start] == 45 else value
    if end - start == 4 and memcmp(p + start, b"true", 4) == 0 and "boolean" in types:
        return True
    if end - start == 5 and memcmp(p + start, b"false", 5) == 0 and "boolean" in types:
        return False
    return typed(data[start:end].decode("utf-8"), types)[0]


def tagged_pairs(
    Source source not None, PairTags tags not None, object grammar, object tools, bint thinking
):
    """The result for a faultless text of a key/value format without attributes, or None."""
    cdef bytes data = source.data
    cdef const unsigned char* p = data
    cdef Py_ssize_t size = len(data), n, pos, start, end, from_, stop, args_start, args_end
    cdef Py_ssize_t name_start, name_end, key_start, key_end, frame, first, last
    cdef const unsigned char* hit
    cdef bint section = len(tags.section_open) > 0
    cdef bytes opener = tags.section_open if section else tags.call_open
    cdef const unsigned char* opening = opener
    cdef Py_ssize_t opening_size = len(opener)
    cdef list attempts = [], reasoning = [], markup = []
    cdef dict values, converted
    cdef object name, key, tool, verbatim, types
    cdef Call call
    n = stop_start(p, size, tags.stops, tags.last_bytes)
    pos = after_think(
        p, n, tags.think_open, tags.think_close, opener, tags.call_open, thinking, reasoning, markup
    )
    if pos < 0:
        return None
    while pos < n:
        hit = <const unsigned char*>memchr(p + pos, opening[0], n - pos)
        if hit == NULL:
            break
        start = hit - p
        if not at(p, start, n, opening, opening_size):
            if at(p, start, n, tags.think_open, len(tags.think_open)):
                return None
            if at(p, start, n, tags.think_close, len(tags.think_close)):
                return None
            if section and at(p, start, n, tags.call_open, len(tags.call_open)):
                return None
            pos = start + 1
            continue
        pos = start + opening_size
        while True:
            # One call of the section, at its open tag.
            if section:
                from_ = skip(p, pos, n)
                if not at(p, from_, n, tags.call_open, len(tags.call_open)):
                    return None
                if from_ > pos and start < 0:
                    markup.append((pos, from_))
                if start < 0:
                    start = from_
                pos = from_ + len(tags.call_open)
            name_end = name_of(p, pos, n, tags.name_end)
            if name_end < 0:
                return None
            name_start = pos
            pos = name_end + len(tags.name_end)
            while name_start < name_end and is_space(p[name_start]):
                name_start += 1
            while name_start < name_end and is_space(p[name_end - 1]):
                name_end -= 1
            if name_start == name_end:
                return None
            name = data[name_start:name_end].decode("utf-8")
            tool = None
            if tools is not None:
                tool = tools.tool(name)
                if tool is None:
                    return None
            verbatim = tool.verbatim if tool is not None else None
            values = {}
            converted = None
            args_start = args_end = -1
            while True:
                pos = skip(p, pos, n)
                if at(p, pos, n, tags.call_close, len(tags.call_close)):
                    pos += len(tags.call_close)
                    break
                if not at(p, pos, n, tags.key_open, len(tags.key_open)):
                    return None
                if args_start < 0:
                    args_start = pos
                key_start = pos + len(tags.key_open)
                key_end = key_of(p, key_start, n, tags.key_end)
                if key_end < 0:
                    return None
                pos = key_end + len(tags.key_end)
                if len(tags.value_open):
                    pos = skip(p, pos, n)
                    if not at(p, pos, n, tags.value_open, len(tags.value_open)):
                        return None
                    pos += len(tags.value_open)
                first = frame = pos
                stop = value_end(tags, p, pos, n)
                if stop < 0:
                    return None
                pos = stop + len(tags.value_close)
                args_end = pos
                last = stop
                if tags.framed:
                    if first < last and p[first] == 10:
                        first += 1
                    elif first + 1 < last and p[first] == 13 and p[first + 1] == 10:
                        first += 2
                    if first < last and p[last - 1] == 10:
                        last -= 1
                        # A carriage return is the value's own unless the frame began with one.
                        if first < last and p[last - 1] == 13 and p[frame] == 13:
                            last -= 1
                if is_space(p[key_start]) or is_space(p[key_end - 1]):
                    return None
                key = data[key_start:key_end].decode("utf-8")
                if key in values:
                    return None
                values[key] = (first, last)
                if verbatim is None or key in verbatim:
                    continue
                types = tool.types.get(key)
                if types is None:
                    continue
                if converted is None:
                    converted = {}
                try:
                    converted[key] = quick(p, first, last, types, data)
                except Misfit:
                    return None
            end = pos
            if section:
                from_ = skip(p, end, n)
                if at(p, from_, n, tags.section_close, len(tags.section_close)):
                    end = from_ + len(tags.section_close)
                    section_ended = True
                elif at(p, from_, n, tags.call_open, len(tags.call_open)):
                    section_ended = False
                else:
                    return None
            else:
                section_ended = True
            call = new_call(
                source, len(attempts), start, end, name, name_start, name_end,
                args_start, args_end,
            )
            call._values = values
            call._converted = converted
            attempts.append(call)
            pos = end
            start = -1
            if section_ended:
                break
    return new_parsed(
        source, attempts, [], grammar, reasoning, markup, n if n < size else -1
    )


cdef Py_ssize_t name_of(const unsigned char* p, Py_ssize_t pos, Py_ssize_t n, bytes end_tag):
    """The end of a name, or -1."""
    cdef Py_ssize_t i = pos
    cdef Py_ssize_t stop = min(n, pos + NAME_LIMIT)
    cdef const unsigned char* tag = end_tag
    cdef Py_ssize_t size = len(end_tag)
    while i < stop:
        if size:
            if p[i] == tag[0] and at(p, i, n, tag, size):
                return i if i > pos else -1
            if p[i] == LESS or p[i] == 10:
                return -1
        elif p[i] == LESS or p[i] == 10:
            return i
        i += 1
    return -1


cdef Py_ssize_t key_of(const unsigned char* p, Py_ssize_t pos, Py_ssize_t n, bytes end_tag):
    """The end of a key, or -1."""
    cdef Py_ssize_t i = pos
    cdef Py_ssize_t stop = min(n, pos + NAME_LIMIT) - len(end_tag) + 1
    cdef const unsigned char* tag = end_tag
    while i < stop:
        if p[i] == tag[0] and at(p, i, n, tag, len(end_tag)):
            return i if i > pos else -1
        if p[i] == LESS or p[i] == 10:
            return -1
        i += 1
    return -1


cdef Py_ssize_t value_end(PairTags tags, const unsigned char* p, Py_ssize_t pos, Py_ssize_t n):
    """The close tag of a value, or -1 where another tag comes first that may end it."""
    cdef const unsigned char* hit
    cdef const unsigned char* value_close = tags.value_close
    cdef const unsigned char* call_close = tags.call_close
    cdef const unsigned char* key_open = tags.key_open
    cdef Py_ssize_t value_size = len(tags.value_close), call_size = len(tags.call_close)
    cdef Py_ssize_t key_size = len(tags.key_open)
    with nogil:
        while pos < n:
            hit = <const unsigned char*>memchr(p + pos, LESS, n - pos)
            if hit == NULL:
                return -1
            pos = hit - p
            if at(p, pos, n, value_close, value_size):
                return pos
            if at(p, pos, n, call_close, call_size) or at(p, pos, n, key_open, key_size):
                return -1
            pos += 1
    return -1
