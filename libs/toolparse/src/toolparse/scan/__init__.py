"""Reading bytes: tags, JSON values, Python literals, key/value tags."""
