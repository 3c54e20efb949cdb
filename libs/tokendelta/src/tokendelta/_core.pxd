# The C contract of the token buffers. All sizes are in tokens.

cdef class Tokens:
    cdef object _array          # int32 NumPy array that owns the memory
    cdef object _readonly       # read-only view of the same memory
    cdef object _logprob_array  # float32 NumPy array of the sampled tokens alone
    cdef int[::1] _ids
    cdef float[::1] _logprobs
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t sampled

    cdef int _reserve(self, Py_ssize_t extra) except -1
    cdef int _reserve_logprobs(self, Py_ssize_t extra) except -1


cdef Py_ssize_t prefix_length(const int[::1] left, const int[::1] right) noexcept nogil
