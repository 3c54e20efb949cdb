# cython: language_level=3, boundscheck=False, wraparound=False
"""Byte scanners over UTF-8: one pass, no allocation per token, the GIL released.

`_scan_py.py` is the same contract in plain Python and the oracle of the tests.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

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


cdef int grow_members(Scan* scan) noexcept nogil:
    cdef Py_ssize_t room = scan.member_room * 2
    cdef Member* grown
    if scan.members == scan.small_members:
        grown = <Member*>malloc(room * sizeof(Member))
        if grown != NULL:
            memcpy(grown, scan.members, scan.member_count * sizeof(Member))
    else:
        grown = <Member*>realloc(scan.members, room * sizeof(Member))
    if grown == NULL:
        return -1
    scan.members = grown
    scan.member_room = room
    return 0


cdef int grow_keys(Scan* scan) noexcept nogil:
    cdef Py_ssize_t room = scan.key_room * 2
    cdef Key* grown
    if scan.keys == scan.small_keys:
        grown = <Key*>malloc(room * sizeof(Key))
        if grown != NULL:
            memcpy(grown, scan.keys, scan.key_count * sizeof(Key))
    else:
        grown = <Key*>realloc(scan.keys, room * sizeof(Key))
    if grown == NULL:
        return -1
    scan.keys = grown
    scan.key_room = room
    return 0


cdef inline int hex_value(unsigned char c) noexcept nogil:
    if c >= 48 and c <= 57:
        return c - 48
    c |= 32
    if c >= 97 and c <= 102:
        return c - 87
    return -1


cdef inline int is_space(unsigned char c) noexcept nogil:
    return c == 32 or c == 10 or c == 13 or c == 9


cdef inline Py_ssize_t skip_space(
    const unsigned char* data, Py_ssize_t pos, Py_ssize_t n
) noexcept nogil:
    while pos < n and is_space(data[pos]):
        pos += 1
    return pos


cdef int unicode_escape(
    const unsigned char* data, Py_ssize_t pos, Py_ssize_t n, int* unit
) noexcept nogil:
    """The four hex digits at `pos`."""
    cdef int value = 0
    cdef int digit
    cdef Py_ssize_t i
    for i in range(pos, pos + 4):
        if i >= n:
            return TRUNCATED
        digit = hex_value(data[i])
        if digit < 0:
            return SYNTAX
        value = value * 16 + digit
    unit[0] = value
    return OK


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


cdef inline uint64_t hash_step(uint64_t value, unsigned int byte) noexcept nogil:
    return (value ^ byte) * <uint64_t>0x100000001B3


cdef uint64_t hash_key(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t end, int escaped
) noexcept nogil:
    """FNV-1a of the key as it decodes, so that `a` and `\\u0061` are the same key."""
    cdef uint64_t value = 0xCBF29CE484222325
    cdef Py_ssize_t i = start
    cdef int unit = 0, low = 0
    cdef unsigned char c
    if not escaped:
        for i in range(start, end):
            value = hash_step(value, data[i])
        return value
    while i < end:
        c = data[i]
        if c != 92:
            value = hash_step(value, c)
            i += 1
            continue
        c = data[i + 1]
        i += 2
        if c != 117:
            if c == 98:
                c = 8
            elif c == 102:
                c = 12
            elif c == 110:
                c = 10
            elif c == 114:
                c = 13
            elif c == 116:
                c = 9
            value = hash_step(value, c)
            continue
        unicode_escape(data, i, end, &unit)
        i += 4
        if unit >= 0xD800 and unit <= 0xDBFF:
            unicode_escape(data, i + 2, end, &low)
            i += 6
            unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
            value = hash_step(value, 0xF0 | (unit >> 18))
            value = hash_step(value, 0x80 | ((unit >> 12) & 63))
            value = hash_step(value, 0x80 | ((unit >> 6) & 63))
            value = hash_step(value, 0x80 | (unit & 63))
        elif unit >= 0x800:
            value = hash_step(value, 0xE0 | (unit >> 12))
            value = hash_step(value, 0x80 | ((unit >> 6) & 63))
            value = hash_step(value, 0x80 | (unit & 63))
        elif unit >= 0x80:
            value = hash_step(value, 0xC0 | (unit >> 6))
            value = hash_step(value, 0x80 | (unit & 63))
        else:
            value = hash_step(value, unit)
    return value


cdef int same_key(const unsigned char* data, Key* a, Key* b) noexcept nogil:
    if a.hash != b.hash:
        return 0
    if a.escaped or b.escaped:
        return 1
    return a.end - a.start == b.end - b.start and (
        memcmp(data + a.start, data + b.start, a.end - a.start) == 0
    )


cdef void sort_keys(Key* keys, Py_ssize_t count, Key* spare) noexcept nogil:
    """Bottom-up merge sort by hash, stable, so equal hashes stay in text order."""
    cdef Py_ssize_t width = 1, left, middle, right, i, j, k
    cdef Key* source = keys
    cdef Key* target = spare
    cdef Key* swap
    while width < count:
        left = 0
        while left < count:
            middle = min(left + width, count)
            right = min(left + 2 * width, count)
            i = left
            j = middle
            for k in range(left, right):
                if i < middle and (j >= right or source[i].hash <= source[j].hash):
                    target[k] = source[i]
                    i += 1
                else:
                    target[k] = source[j]
                    j += 1
            left += 2 * width
        swap = source
        source = target
        target = swap
        width *= 2
    if source != keys:
        memcpy(keys, source, count * sizeof(Key))


cdef void note_duplicate(Scan* scan, Py_ssize_t start) noexcept nogil:
    if scan.duplicate < 0 or start < scan.duplicate:
        scan.duplicate = start


cdef void check_keys(Scan* scan, const unsigned char* data, Py_ssize_t first) noexcept nogil:
    """Notes the first key of the object that closes now which repeats an earlier one."""
    cdef Py_ssize_t count = scan.key_count - first
    cdef Key* keys = scan.keys + first
    cdef Key* spare
    cdef Py_ssize_t i, j
    if count > 24:
        spare = <Key*>malloc(count * sizeof(Key))
        if spare != NULL:
            sort_keys(keys, count, spare)
            free(spare)
            for i in range(1, count):
                if same_key(data, &keys[i - 1], &keys[i]):
                    note_duplicate(scan, keys[i].start - 1)
            scan.key_count = first
            return
    for i in range(1, count):
        for j in range(i):
            if same_key(data, &keys[j], &keys[i]):
                note_duplicate(scan, keys[i].start - 1)
                break
    scan.key_count = first


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


cdef Py_ssize_t find_bytes(
    const unsigned char* data, Py_ssize_t pos, Py_ssize_t n,
    const unsigned char* what, Py_ssize_t size,
) noexcept nogil:
    """The first offset of `what` in data[pos:n], or -1."""
    cdef const unsigned char* hit
    while pos + size <= n:
        hit = <const unsigned char*>memchr(data + pos, what[0], n - size + 1 - pos)
        if hit == NULL:
            return -1
        pos = hit - data
        if memcmp(hit, what, size) == 0:
            return pos
        pos += 1
    return -1


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


def find_any(const unsigned char[::1] data not None, Py_ssize_t pos, Py_ssize_t n, tuple markers):
    """The first of `markers` in data[pos:n] as (offset, index), or (-1, -1).

    The earlier marker in the tuple wins at the same offset.
    """
    cdef const unsigned char* what[16]
    cdef Py_ssize_t sizes[16]
    cdef unsigned char first[256]
    cdef Py_ssize_t count = len(markers)
    cdef Py_ssize_t i, at = pos
    cdef int found = -1
    cdef int single = 1
    cdef bytes marker
    if count == 0 or count > 16 or pos >= n or n > data.shape[0]:
        return (-1, -1)
    for i in range(256):
        first[i] = 0
    for i in range(count):
        marker = markers[i]
        what[i] = marker
        sizes[i] = len(marker)
        first[what[i][0]] = 1
        single = single and what[i][0] == what[0][0]
    with nogil:
        at = find_first(&data[0], pos, n, what, sizes, count, first, single, &found)
    if found < 0:
        return (-1, -1)
    return (at, found)


cdef Py_ssize_t find_first(
    const unsigned char* data, Py_ssize_t pos, Py_ssize_t n, const unsigned char** what,
    Py_ssize_t* sizes, Py_ssize_t count, unsigned char* first, int single, int* found
) noexcept nogil:
    cdef const unsigned char* hit
    cdef Py_ssize_t i
    while pos < n:
        if single:
            hit = <const unsigned char*>memchr(data + pos, what[0][0], n - pos)
            if hit == NULL:
                return -1
            pos = hit - data
        elif not first[data[pos]]:
            pos += 1
            continue
        for i in range(count):
            if pos + sizes[i] <= n and memcmp(data + pos, what[i], sizes[i]) == 0:
                found[0] = <int>i
                return pos
        pos += 1
    return -1
