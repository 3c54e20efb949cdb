"""Hostile programs that every tier must hold, as tables, and what runs them.

Each table is a family. A program is put behind `prelude` and prints ESCAPED when an attempt went
through; the harness looks for that, for a secret, and for traces outside of the sandbox.
"""
