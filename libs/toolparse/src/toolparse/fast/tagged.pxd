from libc.string cimport memcmp


cdef inline int is_space(unsigned char c) noexcept nogil:
    return c == 32 or c == 10 or c == 13 or c == 9


cdef inline Py_ssize_t skip(const unsigned char* data, Py_ssize_t pos, Py_ssize_t n) noexcept nogil:
    while pos < n and is_space(data[pos]):
        pos += 1
    return pos


cdef inline int at(
    const unsigned char* data, Py_ssize_t pos, Py_ssize_t n, const unsigned char* tag,
    Py_ssize_t size,
) noexcept nogil:
    return pos + size <= n and memcmp(data + pos, tag, size) == 0


cdef Py_ssize_t stop_start(
    const unsigned char* data, Py_ssize_t n, tuple stops, bytes last_bytes
)
cdef Py_ssize_t after_think(
    const unsigned char* data, Py_ssize_t n, bytes think_open, bytes think_close,
    bytes opener, bytes other, bint thinking, list reasoning, list markup,
)
