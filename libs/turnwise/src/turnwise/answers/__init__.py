"""Answers: found in a text, normalised, and compared by rules."""

from turnwise.answers.boxed import boxed
from turnwise.answers.verifier import Check, MathVerifier
from turnwise.answers.words import exact_match, f1, normalise

__all__ = ["Check", "MathVerifier", "boxed", "exact_match", "f1", "normalise"]
