from libc.string cimport memcmp

from toolparse.scan.json_value cimport Scan

cdef struct Text:
    const unsigned char* start
    Py_ssize_t size

# Where a call's name, without its quotes, and its arguments stand.
cdef struct Members:
    Py_ssize_t name_start
    Py_ssize_t name_end
    Py_ssize_t args_start
    Py_ssize_t args_end


cdef class Tags:
    cdef bytes open_tag, close_tag, name_key, args_key, alias_key, think_open, think_close
    cdef bytes last_bytes
    cdef tuple stops
    # The keys of a call as C strings.
    cdef Text name, args, alias


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
cdef Text text_of(bytes value)
cdef int call_members(
    Scan* scan, const unsigned char* p, Py_ssize_t body, Py_ssize_t n, Text name, Text args,
    Text alias, Members* spans,
) noexcept nogil
