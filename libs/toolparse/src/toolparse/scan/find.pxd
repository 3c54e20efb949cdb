cdef Py_ssize_t find_bytes(
    const unsigned char* data, Py_ssize_t pos, Py_ssize_t n,
    const unsigned char* what, Py_ssize_t size,
) noexcept nogil
