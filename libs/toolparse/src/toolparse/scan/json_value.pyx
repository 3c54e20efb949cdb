# cython: language_level=3, boundscheck=False, wraparound=False
"""The JSON scanner over UTF-8 bytes: one pass, nothing allocated per token, the GIL released.

`plain.py` is the same contract in plain Python and the oracle of the tests.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from toolparse.scan.keys cimport check_keys, grow_keys, grow_members, hash_key, unicode_escape

MAX_DEPTH = 128
MAX_DIGITS = 4000

cdef enum:
    LIMIT_DEPTH = 128
    LIMIT_DIGITS = 4000

# First digits of 2**1024 - 2**970, the smallest decimal that rounds to infinity (IEEE 754).
cdef const unsigned char* OVERFLOW = b"179769313486231580793728971405341"


cdef void scan_open(Scan* scan) noexcept nogil:
    scan.members = scan.small_members
    scan.member_count = 0
    scan.member_room = 8
    scan.keys = scan.small_keys
    scan.key_count = 0
    scan.key_room = 16
    scan.duplicate = -1
    scan.pos = 0


cdef void scan_close(Scan* scan) noexcept nogil:
    if scan.members != scan.small_members:
        free(scan.members)
    if scan.keys != scan.small_keys:
        free(scan.keys)


cdef inline int is_space(unsigned char c) noexcept nogil:
    return c == 32 or c == 10 or c == 13 or c == 9


cdef inline Py_ssize_t skip_space(
    const unsigned char* data, Py_ssize_t pos, Py_ssize_t n
) noexcept nogil:
    while pos < n and is_space(data[pos]):
        pos += 1
    return pos


cdef int scan_string(
    Scan* scan, const unsigned char* data, Py_ssize_t pos, Py_ssize_t n, int* escaped
) noexcept nogil:
    """From the opening quote; leaves scan.pos after the closing one, or at the fault."""
    cdef uint64_t word, hits
    cdef uint64_t ones = 0x0101010101010101
    cdef uint64_t high = 0x8080808080808080
    cdef unsigned char c
    cdef int code, unit = 0, low = 0
    cdef Py_ssize_t mark
    pos += 1
    escaped[0] = 0
    while True:
        while pos + 8 <= n:
            memcpy(&word, data + pos, 8)
            hits = (word ^ (ones * 34)) - ones
            hits &= ~(word ^ (ones * 34))
            hits |= ((word ^ (ones * 92)) - ones) & ~(word ^ (ones * 92))
            hits |= (word - ones * 32) & ~word
            if hits & high:
                break
            pos += 8
        while pos < n:
            c = data[pos]
            if c == 34 or c == 92 or c < 32:
                break
            pos += 1
        if pos >= n:
            scan.pos = n
            return TRUNCATED
        c = data[pos]
        if c == 34:
            scan.pos = pos + 1
            return OK
        if c < 32:
            scan.pos = pos
            return CONTROL
        escaped[0] = 1
        if pos + 1 >= n:
            scan.pos = n
            return TRUNCATED
        c = data[pos + 1]
        if c != 117:
            if c in (34, 92, 47, 98, 102, 110, 114, 116):
                pos += 2
                continue
            scan.pos = pos
            return SYNTAX
        mark = pos
        scan.pos = mark
        code = unicode_escape(data, pos + 2, n, &unit)
        if code != OK:
            if code == TRUNCATED:
                scan.pos = n
            return code
        pos += 6
        if unit >= 0xDC00 and unit <= 0xDFFF:
            return SURROGATE
        if unit >= 0xD800 and unit <= 0xDBFF:
            if pos >= n or (data[pos] == 92 and pos + 1 >= n):
                scan.pos = n
                return TRUNCATED
            if data[pos] != 92 or data[pos + 1] != 117:
                return SURROGATE
            code = unicode_escape(data, pos + 2, n, &low)
            if code != OK:
                if code == TRUNCATED:
                    scan.pos = n
                else:
                    scan.pos = pos
                return code
            if low < 0xDC00 or low > 0xDFFF:
                return SURROGATE
            pos += 6


cdef int float_overflows(
    const unsigned char* data, Py_ssize_t pos, Py_ssize_t point, Py_ssize_t end, long exponent
) noexcept nogil:
    """Whether digits[pos:end] with the decimal point at `point` times 10**exponent is infinite."""
    cdef Py_ssize_t i = pos
    cdef Py_ssize_t k = 0
    cdef long magnitude
    cdef unsigned char c
    while i < end and (data[i] == 48 or data[i] == 46):
        i += 1
    if i >= end:
        return 0
    magnitude = (point - i - 1 if i < point else point - i) + exponent
    if magnitude != 308:
        return magnitude > 308
    while k < 33:
        c = data[i] if i < end else 48
        if c == 46:
            i += 1
            continue
        if c != OVERFLOW[k]:
            return c > OVERFLOW[k]
        i += 1
        k += 1
    return 1


cdef int scan_number(
    Scan* scan, const unsigned char* data, Py_ssize_t pos, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t first, point, mantissa_end
    cdef long exponent = 0
    cdef int negative = 0, is_float = 0
    scan.pos = pos
    if data[pos] == 45:
        pos += 1
    if pos >= n:
        scan.pos = n
        return TRUNCATED
    first = pos
    if data[pos] == 48:
        pos += 1
    elif data[pos] >= 49 and data[pos] <= 57:
        while pos < n and data[pos] >= 48 and data[pos] <= 57:
            pos += 1
    else:
        return SYNTAX
    point = pos
    if pos < n and data[pos] == 46:
        is_float = 1
        pos += 1
        if pos >= n:
            scan.pos = n
            return TRUNCATED
        if data[pos] < 48 or data[pos] > 57:
            scan.pos = pos
            return SYNTAX
        while pos < n and data[pos] >= 48 and data[pos] <= 57:
            pos += 1
    mantissa_end = pos
    if pos < n and (data[pos] | 32) == 101:
        is_float = 1
        pos += 1
        if pos < n and (data[pos] == 43 or data[pos] == 45):
            negative = data[pos] == 45
            pos += 1
        if pos >= n:
            scan.pos = n
            return TRUNCATED
        if data[pos] < 48 or data[pos] > 57:
            scan.pos = pos
            return SYNTAX
        while pos < n and data[pos] >= 48 and data[pos] <= 57:
            if exponent < 100000000:
                exponent = exponent * 10 + (data[pos] - 48)
            pos += 1
        if negative:
            exponent = -exponent
    if mantissa_end - first > LIMIT_DIGITS:
        return NUMBER
    if is_float and float_overflows(data, first, point, mantissa_end, exponent):
        return NUMBER
    scan.pos = pos
    return OK


cdef int scan_word(
    Scan* scan, const unsigned char* data, Py_ssize_t pos, Py_ssize_t n,
    const unsigned char* word, Py_ssize_t size,
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        if pos + i >= n:
            scan.pos = n
            return TRUNCATED
        if data[pos + i] != word[i]:
            scan.pos = pos
            return SYNTAX
    scan.pos = pos + size
    return OK


cdef int scan_json(
    Scan* scan, const unsigned char* data, Py_ssize_t pos, Py_ssize_t n
) noexcept nogil:
    """One RFC 8259 value at `pos`.

    Leaves scan.pos after the value, or at the fault. The members of an outermost
    object are recorded as far as they were read.
    """
    cdef int depth = 0, code, escaped = 0
    cdef unsigned char c
    cdef unsigned char closers[129]
    cdef Member* member
    cdef Key* key
    while True:
        # A value is wanted at pos.
        pos = skip_space(data, pos, n) if depth else pos
        if pos >= n:
            scan.pos = n
            return TRUNCATED
        c = data[pos]
        if c == 123 or c == 91:
            if depth == LIMIT_DEPTH:
                scan.pos = pos
                return DEPTH
            depth += 1
            closers[depth] = c + 2
            scan.first_key[depth] = scan.key_count
            pos = skip_space(data, pos + 1, n)
            if pos >= n:
                scan.pos = n
                return TRUNCATED
            if data[pos] != c + 2 and c == 91:
                continue
            if data[pos] != c + 2:
                pos = scan_key(scan, data, pos, n, depth, &code)
                if code != OK:
                    return code
                continue
        else:
            if c == 34:
                code = scan_string(scan, data, pos, n, &escaped)
            elif c == 45 or (c >= 48 and c <= 57):
                code = scan_number(scan, data, pos, n)
            elif c == 116:
                code = scan_word(scan, data, pos, n, b"true", 4)
            elif c == 102:
                code = scan_word(scan, data, pos, n, b"false", 5)
            elif c == 110:
                code = scan_word(scan, data, pos, n, b"null", 4)
            else:
                scan.pos = pos
                return SYNTAX
            if code != OK:
                return code
            pos = scan.pos
            if depth == 0:
                return OK
            if depth == 1 and closers[1] == 125:
                scan.members[scan.member_count - 1].value_end = pos
            pos = skip_space(data, pos, n)
        # After a value, or at the closer of an empty container.
        while True:
            if pos >= n:
                scan.pos = n
                return TRUNCATED
            c = data[pos]
            if c == closers[depth]:
                if c == 125:
                    check_keys(scan, data, scan.first_key[depth])
                depth -= 1
                pos += 1
                if depth == 0:
                    scan.pos = pos
                    return OK
                if depth == 1 and closers[1] == 125:
                    scan.members[scan.member_count - 1].value_end = pos
                pos = skip_space(data, pos, n)
                continue
            if c != 44:
                scan.pos = pos
                return SYNTAX
            pos = skip_space(data, pos + 1, n)
            if closers[depth] == 125:
                pos = scan_key(scan, data, pos, n, depth, &code)
                if code != OK:
                    return code
            break


cdef Py_ssize_t scan_key(
    Scan* scan, const unsigned char* data, Py_ssize_t pos, Py_ssize_t n, int depth, int* code
) noexcept nogil:
    """A key with its colon; gives the offset of the value."""
    cdef int escaped = 0
    cdef Py_ssize_t start = pos
    cdef Member* member
    cdef Key* key
    scan.pos = n
    if pos >= n:
        code[0] = TRUNCATED
        return n
    if data[pos] != 34:
        scan.pos = pos
        code[0] = SYNTAX
        return pos
    code[0] = scan_string(scan, data, pos, n, &escaped)
    if code[0] != OK:
        return pos
    if scan.key_count == scan.key_room and grow_keys(scan) < 0:
        code[0] = DEPTH
        return pos
    key = &scan.keys[scan.key_count]
    key.start = start + 1
    key.end = scan.pos - 1
    key.escaped = escaped
    key.hash = hash_key(data, key.start, key.end, escaped)
    scan.key_count += 1
    pos = skip_space(data, scan.pos, n)
    if pos >= n:
        scan.pos = n
        code[0] = TRUNCATED
        return n
    if data[pos] != 58:
        scan.pos = pos
        code[0] = SYNTAX
        return pos
    pos = skip_space(data, pos + 1, n)
    if depth == 1:
        if scan.member_count == scan.member_room and grow_members(scan) < 0:
            code[0] = DEPTH
            return pos
        member = &scan.members[scan.member_count]
        member.key_start = start
        member.key_end = key.end + 1
        member.value_start = pos
        member.value_end = -1
        scan.member_count += 1
    return pos


def json_value(const unsigned char[::1] data not None, Py_ssize_t pos, Py_ssize_t n):
    """Scans one JSON value of data[pos:n].

    Gives (code, offset, duplicate, members): `offset` is the end of the value, or
    the fault; `duplicate` the offset of the first repeated key or -1; `members` the
    spans (key_start, key_end, value_start, value_end) of an outermost object, quotes
    included, `value_end` -1 where the value did not end.
    """
    cdef Scan scan
    cdef int code
    cdef Py_ssize_t i
    cdef list members = []
    if pos < 0 or n > data.shape[0] or pos >= n:
        return (TRUNCATED, n, -1, members)
    scan_open(&scan)
    try:
        with nogil:
            code = scan_json(&scan, &data[0], pos, n)
        for i in range(scan.member_count):
            members.append((
                scan.members[i].key_start, scan.members[i].key_end,
                scan.members[i].value_start, scan.members[i].value_end,
            ))
        return (code, scan.pos, scan.duplicate, members)
    finally:
        scan_close(&scan)


