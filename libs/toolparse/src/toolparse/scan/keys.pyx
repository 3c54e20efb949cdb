# cython: language_level=3, boundscheck=False, wraparound=False
"""The keys of JSON objects: room for them, and repeated ones found in n log n."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from toolparse.scan.json_value cimport OK, SYNTAX, TRUNCATED, Key, Member, Scan


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


cdef inline uint64_t hash_step(uint64_t value, unsigned int byte) noexcept nogil:
    return (value ^ byte) * <uint64_t>0x100000001B3


cdef unsigned long long hash_key(
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
