"""Answers: found in a text, normalised, and compared by rules."""

from turnwise.answers.boxed import boxed
from turnwise.answers.squad import exact_match, f1, normalise
from turnwise.answers.thoughts import final_text
from turnwise.answers.verifier import Check, MathVerifier

__all__ = ["Check", "MathVerifier", "boxed", "exact_match", "f1", "final_text", "normalise"]
