"""The formats: the table of names, and a grammar for each family."""
