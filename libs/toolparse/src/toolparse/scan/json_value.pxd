# The C contract of the scanner: every offset is a byte offset into UTF-8.

cdef enum Code:
    OK = 0
    TRUNCATED = 1
    SYNTAX = 2
    CONTROL = 3
    SURROGATE = 4
    DEPTH = 5
    NUMBER = 6

cdef struct Member:
    Py_ssize_t key_start
    Py_ssize_t key_end
    Py_ssize_t value_start
    Py_ssize_t value_end

cdef struct Key:
    unsigned long long hash
    Py_ssize_t start
    Py_ssize_t end
    int escaped

cdef struct Scan:
    Py_ssize_t pos
    Py_ssize_t duplicate
    Member* members
    Py_ssize_t member_count
    Py_ssize_t member_room
    Key* keys
    Py_ssize_t key_count
    Py_ssize_t key_room
    Py_ssize_t first_key[129]
    Member small_members[8]
    Key small_keys[16]

cdef void scan_open(Scan* scan) noexcept nogil
cdef void scan_close(Scan* scan) noexcept nogil
cdef int scan_json(
    Scan* scan, const unsigned char* data, Py_ssize_t pos, Py_ssize_t n
) noexcept nogil
