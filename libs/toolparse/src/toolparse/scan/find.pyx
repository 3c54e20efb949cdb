# cython: language_level=3, boundscheck=False, wraparound=False
"""Searches for tags in UTF-8 bytes. `plain.py` is the same contract in plain Python."""

from libc.string cimport memchr, memcmp

cdef enum:
    MOST = 32


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


def find_any(const unsigned char[::1] data not None, Py_ssize_t pos, Py_ssize_t n, tuple markers):
    """The first of `markers` in data[pos:n] as (offset, index), or (-1, -1).

    The earlier marker in the tuple wins at the same offset.
    """
    cdef const unsigned char* what[MOST]
    cdef Py_ssize_t sizes[MOST]
    cdef unsigned char first[256]
    cdef Py_ssize_t count = len(markers)
    cdef Py_ssize_t i, at = pos
    cdef int found = -1
    cdef int single = 1
    cdef bytes marker
    if count > MOST:
        raise ValueError(f"{count} markers, but at most {MOST} are looked for at once")
    if count == 0 or pos >= n or n > data.shape[0]:
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
