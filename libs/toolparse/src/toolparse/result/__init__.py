"""What a parse gives: calls, errors, flags, spans."""
