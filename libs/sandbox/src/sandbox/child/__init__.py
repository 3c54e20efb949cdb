"""What runs in the sandbox's own interpreter: standard library only, imports nothing outside.

The parent sends these modules as source text, so the interpreter needs no file of ours: it works
from a PEX, from a zip and in a box that holds nothing but the standard library.
"""
