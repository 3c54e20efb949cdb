"""The shapes and the behaviour of other libraries."""
