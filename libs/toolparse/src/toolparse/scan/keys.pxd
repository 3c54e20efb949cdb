from toolparse.scan.json_value cimport Scan

cdef int grow_members(Scan* scan) noexcept nogil
cdef int grow_keys(Scan* scan) noexcept nogil
cdef int unicode_escape(
    const unsigned char* data, Py_ssize_t pos, Py_ssize_t n, int* unit
) noexcept nogil
cdef unsigned long long hash_key(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t end, int escaped
) noexcept nogil
cdef void check_keys(Scan* scan, const unsigned char* data, Py_ssize_t first) noexcept nogil
