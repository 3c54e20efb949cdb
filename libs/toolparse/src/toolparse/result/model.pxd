cdef class Source:
    cdef readonly object data
    cdef object _text
    cdef bint _ascii
    cdef list _marks
    cdef Py_ssize_t _counted, _total
    cdef object decoded(self, Py_ssize_t start, Py_ssize_t end)
    cpdef Py_ssize_t char(self, Py_ssize_t offset)
    cpdef grew(self, bint plain)


cdef class Error:
    cdef Source _source
    cdef readonly str kind
    cdef readonly str message
    cdef readonly Py_ssize_t offset
    cdef readonly object param
    cdef readonly tuple byte_span
    cdef readonly object call


cdef class Call:
    cdef Source _source
    cdef readonly Py_ssize_t index
    cdef Py_ssize_t start, end, name_start, name_end, args_start, args_end
    cdef readonly object name
    cdef readonly object id
    cdef object _arguments
    cdef object _raw
    cdef readonly Error error
    cdef readonly tuple repairs
    cdef object _values
    cdef object _converted
    cdef readonly Py_ssize_t tool_index
    cdef dict _from_values(self)


cdef Call new_call(
    Source source, Py_ssize_t index, Py_ssize_t start, Py_ssize_t end, object name,
    Py_ssize_t name_start, Py_ssize_t name_end, Py_ssize_t args_start, Py_ssize_t args_end,
)


cdef class Parsed:
    cdef readonly Source source
    cdef readonly list attempts
    cdef readonly list errors
    cdef list _calls
    cdef readonly object grammar
    cdef readonly list reasoning_byte_spans
    cdef readonly list markup_byte_spans
    cdef readonly Py_ssize_t cut
    cdef object _content
    cdef object _flags


cdef Parsed new_parsed(
    Source source, list attempts, list errors, object grammar, list reasoning, list markup,
    Py_ssize_t cut,
)
